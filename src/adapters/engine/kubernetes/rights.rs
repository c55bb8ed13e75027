//! Which of the rights that docs/kubernetes.md lists the API server does not give. Without some of them a server would
//! only log from time to time what it cannot see. Spawns nothing.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, api::PostParams};

use super::{Inner, call};

const NEEDED: [(&str, &str); 9] = [
    ("create", "pods"),
    ("get", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("delete", "pods"),
    ("get", "pods/attach"),
    ("create", "pods/attach"),
    ("list", "podtemplates"),
    ("watch", "podtemplates"),
];

/// A sentence that names the missing rights. One that the API server says nothing about is not missing.
pub(super) async fn missing(engine: &Inner) -> Option<String> {
    let asked = NEEDED.map(|(verb, resource)| async move {
        (!is_allowed(engine, verb, resource).await).then(|| format!("{verb} {resource}"))
    });
    let missing: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
    let namespace = &engine.namespace;
    (!missing.is_empty()).then(|| {
        format!(
            "The server may not {} in the namespace {namespace}: its Role must allow what docs/kubernetes.md lists.",
            missing.join(", ")
        )
    })
}

async fn is_allowed(engine: &Inner, verb: &str, resource: &str) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = ResourceAttributes {
        namespace: Some(engine.namespace.clone()),
        verb: Some(verb.to_owned()),
        resource: Some(resource.to_owned()),
        subresource: Some(subresource.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(engine.client.clone());
    let params = PostParams::default();
    let answer = call::within("ask for rights", engine.time.answer, reviews.create(&params, &review)).await;
    answer.ok().and_then(|review| review.status).is_none_or(|status| status.allowed)
}
