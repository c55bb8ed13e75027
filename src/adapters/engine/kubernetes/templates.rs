//! Runners: the pod templates with the runner label, what is known of them, and the events of their changes.
//!
//! The image of a runner is named by the template and its version, so a sandbox is made of exactly the template that
//! the catalog knows, and a template that was changed meanwhile is an image that is gone.

use std::{
    collections::{BTreeMap, HashMap},
    future::ready,
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream::BoxStream};
use k8s_openapi::{api::core::v1::PodTemplate, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
    core::{DynamicObject, ObjectList, Request},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;
use tracing::warn;

use super::{
    super::{changes, labels},
    KubernetesEngine, call, pod,
    watch::WATCH_MAX,
};
use crate::{
    domain::text::chain,
    ports::{
        engine::{EngineError, ImageId},
        runner::RunnerImage,
    },
};

/// The beginning of the labels and annotations that are a runner's.
const OURS: &str = "sandbox.";

/// The pod templates as they were listed last.
#[derive(Debug, Default)]
pub(super) struct Templates(Mutex<HashMap<ImageId, Arc<Value>>>);

impl Templates {
    /// Lists the runners. A template that cannot be one is listed with the reason.
    pub(super) async fn runners(&self, engine: &KubernetesEngine) -> Result<Vec<RunnerImage>, EngineError> {
        let params = ListParams::default().labels(labels::RUNNERS);
        let request = Request::new(engine.url("podtemplates")).list(&params);
        let request = request.map_err(|error| EngineError::refused("list runners", error))?;
        let listed = engine.client.request(request);
        // Not the vendor's struct, so that each `template` is kept as it is.
        let list: ObjectList<DynamicObject> = call::within("list runners", engine.options.time.answer, listed).await?;
        let (mut runners, mut known) = (Vec::new(), HashMap::new());
        for DynamicObject { metadata, mut data, .. } in list.items {
            let template = data["template"].take();
            match runner(&metadata, &template) {
                Ok(runner) => {
                    known.insert(runner.id.clone(), Arc::new(template));
                    runners.push(runner);
                }
                Err(why) => runners.push(flawed(&metadata, &why)),
            }
        }
        *self.0.lock() = known;
        runners.sort_by(|a, b| (&a.reference, &a.id).cmp(&(&b.reference, &b.id)));
        Ok(runners)
    }

    /// The template of an image. One that is not known is looked for once.
    ///
    /// # Errors
    /// [`EngineError::ImageGone`] when there is none of this version.
    pub(super) async fn get(&self, engine: &KubernetesEngine, image: &ImageId) -> Result<Arc<Value>, EngineError> {
        if let Some(known) = self.known(image) {
            return Ok(known);
        }
        self.runners(engine).await?;
        self.known(image).ok_or_else(|| EngineError::ImageGone { image: image.clone() })
    }

    fn known(&self, image: &ImageId) -> Option<Arc<Value>> {
        self.0.lock().get(image).cloned()
    }
}

/// Labels and annotations together are what an image's labels are elsewhere; a label wins.
fn runner(metadata: &ObjectMeta, template: &Value) -> Result<RunnerImage, String> {
    pod::check(template)?;
    let (Some(name), Some(version)) = (&metadata.name, &metadata.resource_version) else {
        return Err("it has no name or no version".to_owned());
    };
    let ours = |all: &Option<BTreeMap<String, String>>| {
        let all = all.iter().flatten().filter(|(name, _)| name.starts_with(OURS));
        all.map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
    };
    let labels = ours(&metadata.annotations).into_iter().chain(ours(&metadata.labels)).collect();
    Ok(RunnerImage {
        id: ImageId(format!("{name}@{version}")),
        reference: template["spec"]["containers"][0]["image"].as_str().map(str::to_owned),
        created_unix_s: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        labels,
        flaw: None,
    })
}

/// A template that cannot be a runner.
fn flawed(metadata: &ObjectMeta, why: &str) -> RunnerImage {
    let text = |of: &Option<String>| of.clone().unwrap_or_default();
    let id = ImageId(format!("{}@{}", text(&metadata.name), text(&metadata.resource_version)));
    let flaw = Some(format!("the pod template cannot be used: {why}"));
    RunnerImage { id, reference: None, created_unix_s: 0, labels: HashMap::new(), flaw }
}

/// See [`changes::changes`].
pub(super) fn changes(engine: &KubernetesEngine) -> BoxStream<'static, ()> {
    let templates: Api<PodTemplate> = Api::namespaced(engine.client.clone(), &engine.namespace);
    let answer = engine.options.time.answer;
    changes::changes(move || open(templates.clone(), answer))
}

/// Opens a watch within `answer`. It begins with an event for each template that there is.
async fn open(templates: Api<PodTemplate>, answer: Duration) -> Option<changes::Events> {
    let params = WatchParams::default().labels(labels::RUNNERS);
    let events = call::within("watch", answer, templates.watch(&params, "0")).await;
    let events = events.inspect_err(|error| warn!(error = %chain(error), "pod templates are not watched")).ok()?;
    let events = events.filter_map(|event| match event {
        Ok(WatchEvent::Bookmark(_)) => ready(None),
        Ok(WatchEvent::Error(_)) | Err(_) => ready(Some(false)),
        Ok(_) => ready(Some(true)),
    });
    Some(events.take_until(sleep(WATCH_MAX)).boxed())
}

#[cfg(test)]
mod tests {
    use kube::Config;
    use serde_json::json;
    use tokio::{net::TcpListener, time::timeout};

    use super::*;
    use crate::adapters::engine::kubernetes::client::client;

    fn of(object: Value) -> Result<RunnerImage, String> {
        let DynamicObject { metadata, data, .. } = serde_json::from_value(object).expect("a pod template");
        runner(&metadata, &data["template"])
    }

    #[test]
    fn a_runner_has_labels_and_annotations_and_is_named_by_its_version() {
        let found = of(json!({
            "metadata": {
                "name": "runner-python", "resourceVersion": "77", "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"sandbox.runner": "true", "sandbox.language": "python", "app": "x"},
                "annotations": {"sandbox.aliases": "py,python3", "sandbox.language": "ruby"},
            },
            "template": {"spec": {"containers": [{"name": "main", "image": "runner-python:latest"}]}},
        }))
        .expect("a runner");
        assert_eq!((found.id.0.as_str(), found.created_unix_s), ("runner-python@77", 1_767_323_045));
        assert_eq!(found.reference.as_deref(), Some("runner-python:latest"));
        let mut labels: Vec<_> = found.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        labels.sort_unstable();
        let expected = [("sandbox.aliases", "py,python3"), ("sandbox.language", "python"), ("sandbox.runner", "true")];
        assert_eq!(labels, expected);
    }

    #[test]
    fn a_template_that_loosens_the_isolation_is_no_runner() {
        let none = of(json!({"metadata": {"name": "x", "resourceVersion": "1"}})).expect_err("no container");
        assert!(none.ends_with("(it has 0)"), "{none}");
        let unnamed = json!({"metadata": {}, "template": {"spec": {"containers": [{"image": "x"}]}}});
        assert_eq!(of(unnamed).expect_err("no name"), "it has no name or no version");
    }

    #[tokio::test]
    async fn open_gives_up_when_there_is_no_answer() {
        // It is never accepted from, so requests get no answer.
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let config = Config::new(format!("http://{address}").parse().expect("an address"));
        let client = client(config, Duration::from_mins(2)).expect("a client");
        let opened = open(Api::namespaced(client, "sandboxes"), Duration::from_millis(50));
        assert!(timeout(Duration::from_mins(1), opened).await.expect("soon").is_none());
    }
}
