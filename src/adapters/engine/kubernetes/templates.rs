//! Runners: the pod templates with the runner label, what is known of them, and the stream that reports changes. Spawns
//! nothing; the stream opens its watch again inside its own polling and ends when it is dropped.
//!
//! The image of a runner is named by the template and its version, so a sandbox is made of exactly the template that
//! the catalog knows, and a template that was changed meanwhile is an image that is gone.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use k8s_openapi::{api::core::v1::PodTemplate, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Error,
    api::{ListParams, WatchEvent, WatchParams},
    core::Request,
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::warn;

use super::{
    call,
    pod::{self, TemplateError},
    watch::WATCH_MAX,
};
use crate::ports::{
    engine::{EngineError, ImageId},
    runner::{LABEL_RUNNER, RunnerImage},
};

/// Several changes at once become one item.
const SETTLE: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The beginning of the labels and annotations that are a runner's.
const OURS: &str = "sandbox.";

#[derive(Deserialize)]
struct TemplateList {
    items: Vec<Template>,
}

/// A pod template whose `template` is kept as it is.
#[derive(Deserialize)]
struct Template {
    metadata: ObjectMeta,
    #[serde(default)]
    template: Value,
}

/// The pod templates as they were listed last.
#[derive(Debug, Default)]
pub(super) struct Templates(Mutex<HashMap<ImageId, Arc<Value>>>);

impl Templates {
    /// Lists the runners. A template that cannot be one is logged.
    pub(super) async fn runners(
        &self,
        client: &Client,
        namespace: &str,
        limit: Duration,
    ) -> Result<Vec<RunnerImage>, EngineError> {
        let params = ListParams::default().labels(&selector());
        let url = format!("/api/v1/namespaces/{namespace}/podtemplates");
        let request = Request::new(url).list(&params);
        let request = request.map_err(|error| EngineError::Refused { act: "list runners", source: Box::new(error) })?;
        let list: TemplateList = call::within("list runners", limit, client.request(request)).await?;
        let (mut runners, mut known) = (Vec::new(), HashMap::new());
        for Template { metadata, template } in list.items {
            match runner(&metadata, &template) {
                Ok(runner) => {
                    known.insert(runner.id.clone(), Arc::new(template));
                    runners.push(runner);
                }
                Err(error) => warn!(template = metadata.name, %error, "a pod template is no runner"),
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
    pub(super) async fn get(
        &self,
        client: &Client,
        namespace: &str,
        image: &ImageId,
        limit: Duration,
    ) -> Result<Arc<Value>, EngineError> {
        if let Some(known) = self.known(image) {
            return Ok(known);
        }
        self.runners(client, namespace, limit).await?;
        self.known(image).ok_or_else(|| EngineError::ImageGone { image: image.clone() })
    }

    fn known(&self, image: &ImageId) -> Option<Arc<Value>> {
        self.0.lock().get(image).cloned()
    }
}

fn selector() -> String {
    format!("{LABEL_RUNNER}=true")
}

/// Labels and annotations together are what an image's labels are elsewhere; a label wins.
fn runner(metadata: &ObjectMeta, template: &Value) -> Result<RunnerImage, TemplateError> {
    pod::check(template)?;
    let (Some(name), Some(version)) = (&metadata.name, &metadata.resource_version) else {
        return Err(TemplateError::NoName);
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
    })
}

type Events = BoxStream<'static, Result<WatchEvent<PodTemplate>, Error>>;

/// The state between two items.
struct Following {
    templates: Api<PodTemplate>,
    events: Option<Events>,
    pause: Duration,
}

/// One item for each opened watch, since changes may have been missed before it, and one for each group of events.
pub(super) fn changes(client: Client, namespace: &str) -> BoxStream<'static, ()> {
    let templates = Api::namespaced(client, namespace);
    let start = Following { templates, events: None, pause: Duration::ZERO };
    stream::unfold(start, |mut following| async move {
        following.next().await;
        Some(((), following))
    })
    .boxed()
}

impl Following {
    async fn next(&mut self) {
        loop {
            let Some(events) = &mut self.events else {
                sleep(self.pause).await;
                self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
                // Begins with an event for each template that there is.
                let params = WatchParams::default().labels(&selector());
                if let Ok(events) = self.templates.watch(&params, "0").await {
                    let mut events = events.take_until(sleep(WATCH_MAX)).boxed();
                    if settle(&mut events).await {
                        self.events = Some(events);
                        return;
                    }
                }
                continue;
            };
            match events.next().await {
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_))) => {
                    self.pause = Duration::ZERO;
                    if !settle(events).await {
                        self.events = None;
                    }
                    return;
                }
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => self.events = None,
            }
        }
    }
}

/// Discards the events of a short time; false when the watch ended.
async fn settle(events: &mut Events) -> bool {
    let until = Instant::now() + SETTLE;
    loop {
        match timeout_at(until, events.next()).await {
            Ok(Some(Ok(WatchEvent::Error(_)) | Err(_)) | None) => return false,
            Ok(Some(Ok(_))) => {}
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(object: Value) -> Result<RunnerImage, TemplateError> {
        let Template { metadata, template } = serde_json::from_value(object).expect("a pod template");
        runner(&metadata, &template)
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
        let none = of(json!({"metadata": {"name": "x", "resourceVersion": "1"}}));
        assert_eq!(none, Err(TemplateError::Containers(0)));
        let unnamed = json!({"metadata": {}, "template": {"spec": {"containers": [{"image": "x"}]}}});
        assert_eq!(of(unnamed), Err(TemplateError::NoName));
    }
}
