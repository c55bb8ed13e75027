//! A token that is revoked between two steps of what it is used for.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_sandbox_server::{
    domain::{
        clock::{Clock, SystemClock},
        id::TokenId,
        outcome::Ended,
        owner::{ConversationKey, Principal},
        token::TokenRecord,
    },
    services::{
        admission::{Admission, AdmissionOptions},
        runs::{RunRequest, Runs, RunsOptions},
    },
};
use serde_json::json;

use crate::support::{FakeServer, calls::create};

/// Longer than a run may take.
const PATIENCE: Duration = Duration::from_mins(1);

type Event = Box<dyn FnOnce() + Send>;

/// A clock that does something when it is next read.
#[derive(Default)]
struct EventfulClock(Mutex<Option<Event>>);

impl Clock for EventfulClock {
    fn unix_s(&self) -> i64 {
        let event = self.0.lock().expect("no panic").take();
        if let Some(event) = event {
            event();
        }
        SystemClock.unix_s()
    }

    fn unix_ns(&self) -> u64 {
        SystemClock.unix_ns()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_token_is_revoked_before_it_is_listed_is_cancelled() {
    let server = FakeServer::start().await;
    let (id, _) = create(&server, json!({"name": "a", "owner": "ann"})).await;
    let id: TokenId = id.parse().expect("an id");
    let clock = Arc::new(EventfulClock::default());
    let mut shared = server.shared.clone();
    shared.sandboxes.clock = clock.clone();
    let admission = Admission::new(AdmissionOptions {
        slots: 1,
        queue_max: 1,
        wait_max: PATIENCE,
        conversation_max: 1,
        bytes_max: 1 << 20,
        rate_a_minute: 0,
        rate_burst: 1,
    });
    let options = RunsOptions {
        program_bytes_max: 1 << 10,
        detach: true,
        kept_runs_max: 10,
        kept_bytes_max: 1 << 20,
        kept_age: PATIENCE,
    };
    let runs = Runs::new(shared, server.sessions.clone(), admission, options);

    let tokens = Arc::clone(&server.shared.tokens);
    let record = tokens.list(None).await.expect("tokens").pop().expect("one");
    let ends = runs.clone();
    // The clock is read after the token was checked, and before the run is listed.
    *clock.0.lock().expect("no panic") = Some(Box::new(move || {
        tokens.learn(vec![TokenRecord { revoked_unix_ms: Some(1), ..record }]);
        ends.cancel_all_of(id);
    }));
    let who = "ann".parse::<Principal>().expect("an owner").by(id);
    let place = ConversationKey::new(who.clone(), "c".parse().expect("an id"));
    let language = "python".parse().expect("a language");
    let run = runs.begin(RunRequest::new(place, language, "hang".to_owned().into())).expect("a run");
    assert!(clock.0.lock().expect("no panic").is_none(), "the token was revoked meanwhile");
    let view = runs.get(&who, run.id()).expect("a run").wait(PATIENCE).await;
    assert_eq!(view.result.expect("it is over").expect("a report").outcome.ended, Ended::Cancelled);
    runs.stop(PATIENCE).await;
    server.stop().await;
}
