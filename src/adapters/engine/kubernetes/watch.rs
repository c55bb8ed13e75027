//! The states of one pod, one after another, over watches that may break, and what the status of each says about its
//! container. A watch that the API server ends is opened again where it stopped; when its version is too old the pod is
//! listed anew. Spawns nothing; ends when it is dropped.
//!
//! A status is judged by its phases and reasons, which are the API's words; messages are passed on for the operator.

use std::time::Duration;

use futures_util::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, Error,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{TimeLimits, call, pod::CONTAINER};
use crate::{domain::SandboxId, ports::engine::EngineError};

const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// At most one watch is opened in this time, however soon the API server ends each.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// The API server ends a watch after this, in seconds.
const WATCH_S: u32 = 290;
/// A watch that the API server has not ended by now is given up: its end was lost on the way.
pub(super) const WATCH_MAX: Duration = Duration::from_mins(5);

/// What is known of the pod now.
#[derive(Debug)]
pub(super) enum PodState {
    Pod(Box<Pod>),
    /// It does not exist any more; its last state, where that was seen.
    Gone(Option<Box<Pod>>),
}

pub(super) struct PodWatch {
    pods: Api<Pod>,
    /// Selects the pod by its name.
    fields: String,
    /// Where the next watch begins; `None`: the pod is listed first.
    version: Option<String>,
    events: Option<BoxStream<'static, Result<WatchEvent<Pod>, Error>>>,
    time: TimeLimits,
    opened: Option<Instant>,
    /// Whether the API server has answered before. One that comes back refuses what it allowed, until it knows the
    /// rights again.
    was_allowed: bool,
    /// Since when the API server has not answered, and the pause before the next try.
    failing: Option<(Instant, Duration)>,
}

impl PodWatch {
    /// Watches from the version at which the pod was created.
    pub(super) fn new(pods: Api<Pod>, id: SandboxId, created: Option<String>, time: TimeLimits) -> Self {
        let (fields, events, opened, failing) = (format!("metadata.name={id}"), None, None, None);
        Self { pods, fields, version: created, events, time, opened, was_allowed: false, failing }
    }

    /// The next state.
    ///
    /// # Errors
    /// When the API server has not answered for [`TimeLimits::lost`], or refuses at the first time.
    pub(super) async fn next(&mut self) -> Result<PodState, EngineError> {
        loop {
            let Some(events) = &mut self.events else {
                if let Some(seen) = self.open().await? {
                    return Ok(seen);
                }
                continue;
            };
            match events.next().await {
                Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                    self.version.clone_from(&pod.metadata.resource_version);
                    return Ok(PodState::Pod(Box::new(pod)));
                }
                Some(Ok(WatchEvent::Deleted(pod))) => return Ok(PodState::Gone(Some(Box::new(pod)))),
                Some(Ok(WatchEvent::Bookmark(mark))) => {
                    self.version = Some(mark.metadata.resource_version);
                }
                // The version is too old, or the watch cannot go on: list the pod.
                Some(Ok(WatchEvent::Error(_))) => {
                    (self.events, self.version) = (None, None);
                }
                Some(Err(_)) | None => self.events = None,
            }
        }
    }

    /// Opens a watch; a state where the pod was listed for it.
    async fn open(&mut self) -> Result<Option<PodState>, EngineError> {
        let answer = self.time.answer;
        if let Some(version) = &self.version {
            let params = WatchParams::default().fields(&self.fields).timeout(WATCH_S);
            if let Some(opened) = self.opened {
                sleep_until(opened + WATCH_PAUSE).await;
            }
            self.opened = Some(Instant::now());
            match call::within("watch", answer, self.pods.watch(&params, version)).await {
                Ok(events) => {
                    let events = events.take_until(sleep(WATCH_MAX)).boxed();
                    (self.events, self.failing, self.was_allowed) = (Some(events), None, true);
                }
                Err(error) if call::status(&error) == Some(410) => self.version = None,
                Err(error) => self.pause(error).await?,
            }
            return Ok(None);
        }
        let params = ListParams::default().fields(&self.fields);
        match call::within("read", answer, self.pods.list(&params)).await {
            Ok(mut list) => {
                (self.failing, self.was_allowed) = (None, true);
                // The pod's own is of its last change, which may be too old again.
                self.version = list.metadata.resource_version;
                let pod = list.items.pop().map(Box::new);
                Ok(Some(pod.map_or(PodState::Gone(None), PodState::Pod)))
            }
            Err(error) => self.pause(error).await.map(|()| None),
        }
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// `error`, when it is a refusal at the first time, or the tries have lasted too long.
    async fn pause(&mut self, error: EngineError) -> Result<(), EngineError> {
        let (since, pause) = self.failing.unwrap_or_else(|| (Instant::now(), PAUSE_FIRST));
        let is_refused = matches!(error, EngineError::Refused { .. }) && !self.was_allowed;
        if is_refused || since.elapsed() >= self.time.lost {
            return Err(error);
        }
        sleep(pause).await;
        self.failing = Some((since, (pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX)));
        Ok(())
    }
}

/// The state of the container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Not yet placed, or being made.
    Coming,
    /// No node has room for it now; why.
    Unschedulable(String),
    /// It cannot be made as it is; a sentence that says why.
    Failing(String),
    Running,
    Ended(ContainerExit),
    /// The cluster took it away; a sentence that says why.
    Evicted(String),
}

/// How the container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerExit {
    pub status: i32,
    pub oom_killed: bool,
    /// The container never ran, or the kubelet did not see it end: the reason and the message. The status is of no
    /// program then.
    pub unknown: Option<String>,
}

/// Reasons for waiting that do not pass in the time of a start, with what to do.
const FAILING: [(&str, &str); 8] = [
    ("ErrImageNeverPull", "load the image onto the nodes, or change imagePullPolicy in the pod template"),
    ("ErrImagePull", "name an image in the pod template that the nodes can fetch (imagePullSecrets for a private one)"),
    (
        "ImagePullBackOff",
        "name an image in the pod template that the nodes can fetch (imagePullSecrets for a private one)",
    ),
    ("InvalidImageName", "correct the name of the image in the pod template"),
    ("ImageInspectError", "look at the log of the node's container runtime"),
    ("RegistryUnavailable", "make the registry of the image reachable for the nodes"),
    ("CreateContainerConfigError", "correct what the pod template names, and see that the claim has the folder"),
    ("CreateContainerError", "look at the log of the node's container runtime"),
];
/// Reasons of a container that its runtime could not start, or whose end the kubelet did not see.
const UNKNOWN: [&str; 3] = ["StartError", "ContainerCannotRun", "ContainerStatusUnknown"];

pub(super) fn read(pod: &Pod) -> State {
    let Some(status) = &pod.status else { return State::Coming };
    let container = status.container_statuses.iter().flatten().find(|one| one.name == CONTAINER);
    let is_failed = status.phase.as_deref() == Some("Failed");
    // A pod has a reason of its own where the cluster ended it: its container was killed for that.
    if let Some(end) = container.and_then(end).filter(|_| !is_failed || status.reason.is_none()) {
        return State::Ended(end);
    }
    if is_failed {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        let message = status.message.as_deref().unwrap_or_default();
        return State::Evicted(format!("the cluster ended the pod ({reason}): {message}"));
    }
    let state = container.and_then(|container| container.state.as_ref());
    if state.is_some_and(|state| state.running.is_some()) {
        return State::Running;
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref())
        && let Some(reason) = &waiting.reason
        && let Some((_, fix)) = FAILING.iter().find(|(known, _)| known == reason)
    {
        let message = waiting.message.as_deref().unwrap_or_default();
        return State::Failing(format!("the pod waits with {reason} ({message}): {fix}"));
    }
    let mut conditions = status.conditions.iter().flatten();
    let unplaced = conditions.find(|one| one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable"));
    match unplaced {
        Some(condition) => State::Unschedulable(condition.message.clone().unwrap_or_default()),
        None => State::Coming,
    }
}

fn end(container: &ContainerStatus) -> Option<ContainerExit> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or_default();
    let message = ended.message.as_deref().unwrap_or_default();
    Some(ContainerExit {
        status: ended.exit_code,
        oom_killed: reason == "OOMKilled",
        unknown: UNKNOWN.contains(&reason).then(|| format!("{reason}: {message}")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(status: &Value) -> State {
        read(&serde_json::from_value(json!({"metadata": {}, "status": status})).expect("a pod"))
    }

    fn container(state: &Value) -> State {
        of(&json!({"phase": "Running", "containerStatuses": [{"name": "sandbox", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": state}]}))
    }

    #[test]
    fn a_container_ends_with_its_status_before_the_phase_changes() {
        let end = |status, oom_killed| State::Ended(ContainerExit { status, oom_killed, unknown: None });
        assert_eq!(container(&json!({"terminated": {"exitCode": 3, "reason": "Error"}})), end(3, false));
        assert_eq!(container(&json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})), end(137, true));
        let State::Ended(end) = container(&json!({"terminated": {"exitCode": 128, "reason": "StartError",
            "message": "no such file"}}))
        else {
            panic!("not ended")
        };
        assert_eq!(end.unknown.as_deref(), Some("StartError: no such file"));
    }

    #[test]
    fn a_reason_to_wait_is_an_error_only_when_it_does_not_pass() {
        assert_eq!(container(&json!({"waiting": {"reason": "ContainerCreating"}})), State::Coming);
        assert_eq!(container(&json!({"running": {}})), State::Running);
        for (reason, fix) in FAILING {
            let state = container(&json!({"waiting": {"reason": reason, "message": "why"}}));
            let State::Failing(sentence) = state else { panic!("{reason}: {state:?}") };
            assert!(sentence.contains(reason) && sentence.contains("(why)") && sentence.ends_with(fix), "{sentence}");
        }
    }

    #[test]
    fn a_pod_without_a_place_and_an_evicted_one_say_why() {
        let unplaced = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        assert_eq!(of(&unplaced), State::Unschedulable("0/2 nodes are available".to_owned()));
        let evicted = of(&json!({"phase": "Failed", "reason": "Evicted", "message": "ephemeral-storage"}));
        assert!(matches!(&evicted, State::Evicted(why) if why.contains("(Evicted): ephemeral-storage")), "{evicted:?}");
        // So it is read where its watch broke meanwhile.
        let killed = json!([{"name": "sandbox", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]);
        let late = of(&json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": killed}));
        assert!(matches!(&late, State::Evicted(_)), "{late:?}");
        let own = of(&json!({"phase": "Failed", "containerStatuses": killed}));
        assert!(matches!(&own, State::Ended(ContainerExit { status: 137, .. })), "{own:?}");
        assert_eq!(of(&json!({"phase": "Pending"})), State::Coming);
        assert_eq!(of(&json!(null)), State::Coming);
    }
}
