//! The client of the API server, and which rights that gives it: the vendor's layers over a connector of ours, since
//! the vendor's own has no TCP keep-alive. Without it, a connection whose other end vanished stays open, because an
//! idle watch or stream never writes and so never gets an error.
//!
//! Each connection is driven in a task of the vendor's, which ends with the connection.

use std::time::Duration;

use futures_util::future::join_all;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{
    Api, Client, Config, Error,
    api::PostParams,
    client::{Body, ConfigExt as _, retry::RetryPolicy},
};
use tower::{BoxError, ServiceBuilder, retry::RetryLayer};

use super::{KubernetesEngine, call};
use crate::ports::engine::EngineError;

/// Unanswered probes before a connection is closed.
const PROBES: u32 = 3;
/// The rights of docs/kubernetes.md that are used. Without some of them a server would only log from time to time what
/// it cannot see.
const RIGHTS: [(&str, &[&str]); 3] = [
    ("pods", &["create", "get", "list", "watch", "delete"]),
    ("pods/attach", &["get", "create"]),
    ("podtemplates", &["list", "watch"]),
];

/// A client whose connections break when nothing comes back over them for `silence_max`.
///
/// # Errors
/// When the certificates, the credentials or the proxy of the configuration cannot be used.
pub(super) fn client(mut config: Config, silence_max: Duration) -> Result<Client, Error> {
    if config.proxy_url.is_some() {
        // A stream whose program reads no input is silent, since its pings are not answered.
        config.read_timeout = None;
        // The vendor's own stack says which proxies it can use.
        return Client::try_from(config);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_nodelay(true);
    // No limit on unacknowledged data: it would also close a stream whose program does not read its input.
    connector.set_keepalive(Some(silence_max / (PROBES + 1)));
    connector.set_keepalive_interval(Some(silence_max / (PROBES + 1)));
    connector.set_keepalive_retries(Some(PROBES));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let http = legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// A sentence that names the missing rights, and whether the API server answered for each right. One that it says
/// nothing about is not missing, nor one that it does not let the server ask for.
pub(super) async fn missing_rights(engine: &KubernetesEngine) -> (Option<String>, bool) {
    let rights = RIGHTS.into_iter().flat_map(|(resource, verbs)| verbs.iter().map(move |verb| (*verb, resource)));
    let asked =
        rights.map(|(verb, resource)| async move { (verb, resource, is_allowed(engine, verb, resource).await) });
    let answers = join_all(asked).await;
    let is_whole = answers.iter().all(|(_, _, allowed)| allowed.is_some());
    let missing = answers.iter().filter(|(_, _, allowed)| *allowed == Some(false));
    let missing: Vec<_> = missing.map(|(verb, resource, _)| format!("{verb} {resource}")).collect();
    let namespace = &engine.namespace;
    let sentence = (!missing.is_empty()).then(|| {
        format!(
            "The server may not {} in the namespace {namespace}: its Role must allow what docs/kubernetes.md lists.",
            missing.join(", ")
        )
    });
    (sentence, is_whole)
}

/// `None` when there was no answer.
async fn is_allowed(engine: &KubernetesEngine, verb: &str, resource: &str) -> Option<bool> {
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
    let answer = call::within("ask for rights", engine.options.time.answer, reviews.create(&params, &review)).await;
    match answer {
        Ok(review) => review.status.map(|status| status.allowed),
        // An account that may not ask would be refused at each probe, of which there may be one a second.
        Err(EngineError::Refused { .. }) => Some(true),
        Err(_) => None,
    }
}
