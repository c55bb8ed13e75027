//! The states of one pod, one after another, over watches that may break. A watch that the API server ends is opened
//! again where it stopped; when its version is too old the pod is read anew. Spawns nothing; ends when it is dropped.

use std::time::Duration;

use futures_util::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Error,
    api::{WatchEvent, WatchParams},
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{TimeLimits, call};
use crate::{domain::id::SandboxId, ports::engine::EngineError};

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
    name: String,
    /// Where the next watch begins; `None`: the pod is read first.
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
        let (name, events, opened, failing) = (id.to_string(), None, None, None);
        Self { pods, name, version: created, events, time, opened, was_allowed: false, failing }
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
                // The version is too old, or the watch cannot go on: read the pod.
                Some(Ok(WatchEvent::Error(_))) => {
                    (self.events, self.version) = (None, None);
                }
                Some(Err(_)) | None => self.events = None,
            }
        }
    }

    /// Opens a watch; a state where the pod was read for it.
    async fn open(&mut self) -> Result<Option<PodState>, EngineError> {
        let answer = self.time.answer;
        if let Some(version) = &self.version {
            let params = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH_S);
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
        match call::within("read", answer, self.pods.get(&self.name)).await {
            Ok(pod) => {
                (self.failing, self.was_allowed) = (None, true);
                self.version.clone_from(&pod.metadata.resource_version);
                Ok(Some(PodState::Pod(Box::new(pod))))
            }
            Err(error) if call::status(&error) == Some(404) => Ok(Some(PodState::Gone(None))),
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
