//! Runner images, and the stream that reports changes. Spawns nothing; the stream reconnects inside its own
//! polling and ends when it is dropped.

use std::{collections::HashMap, pin::Pin, time::Duration};

use bollard::{
    Docker,
    errors::Error,
    models::EventMessage,
    query_parameters::{EventsOptionsBuilder, ListImagesOptionsBuilder},
};
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::{Instant, sleep, timeout_at};

use super::{call, convert};
use crate::ports::{
    engine::EngineError,
    runner::{LABEL_RUNNER, RunnerImage},
};

/// One build or removal causes several events, which become one item.
const SETTLE: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Events that may add, remove or rename an image, by Docker's and Podman's names. Engines ignore unknown ones.
pub(super) const ACTIONS: [&str; 10] =
    ["build", "create", "delete", "import", "load", "loadfromarchive", "pull", "remove", "tag", "untag"];

pub(super) async fn runners(docker: &Docker, limit: Duration) -> Result<Vec<RunnerImage>, EngineError> {
    let filters = HashMap::from([("label", vec![format!("{LABEL_RUNNER}=true")])]);
    let options = ListImagesOptionsBuilder::new().filters(&filters).build();
    let images = call::within("list images", limit, docker.list_images(Some(options))).await?;
    let mut runners: Vec<_> = images.into_iter().filter_map(convert::runner_image).collect();
    runners.sort_by(|a, b| (&a.reference, &a.id).cmp(&(&b.reference, &b.id)));
    Ok(runners)
}

type Events = Pin<Box<dyn Stream<Item = Result<EventMessage, Error>> + Send>>;

/// The state between two items.
struct Following {
    docker: Docker,
    events: Option<Events>,
    pause: Duration,
}

/// One item for each opened connection, since changes may have been missed before it, and one for each group of events.
pub(super) fn changes(docker: Docker) -> BoxStream<'static, ()> {
    let start = Following { docker, events: None, pause: Duration::ZERO };
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
                let mut events = open(&self.docker);
                // The client connects when it is polled, and reports only a failure.
                if settle(&mut events).await {
                    self.events = Some(events);
                    return;
                }
                continue;
            };
            if let Some(Ok(_)) = events.next().await {
                self.pause = Duration::ZERO;
                if !settle(events).await {
                    self.events = None;
                }
                return;
            }
            self.events = None;
        }
    }
}

/// Discards the events of a short time; false when the connection ended.
async fn settle(events: &mut Events) -> bool {
    let until = Instant::now() + SETTLE;
    loop {
        match timeout_at(until, events.next()).await {
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(_)) | None) => return false,
            Err(_) => return true,
        }
    }
}

fn open(docker: &Docker) -> Events {
    let filters = HashMap::from([("type", vec!["image"]), ("event", ACTIONS.to_vec())]);
    Box::pin(docker.events(Some(EventsOptionsBuilder::new().filters(&filters).build())))
}
