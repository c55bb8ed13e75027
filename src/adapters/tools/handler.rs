//! The client side that a server can call: it accepts notices of changed tools and progress, and refuses requests.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ErrorCode, Implementation, NumberOrString,
        ProgressNotificationParam, ProgressToken, ProtocolVersion,
    },
    service::{NotificationContext, RequestContext},
};

use super::failure::Secrets;
use crate::ports::tools::{Progress, ProgressSink};

/// Progress that is kept for calls that may have just been sent and are not registered yet, and its longest message.
const EARLY_MAX: usize = 64;
const EARLY_BYTES_MAX: usize = 4 << 10;

pub(super) struct Handler {
    pub(super) changed: Arc<dyn Fn() + Send + Sync>,
    pub(super) sinks: Arc<Sinks>,
    pub(super) secrets: Arc<Secrets>,
}

fn refused(method: &str) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("this client has no {method}"), None)
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let identity = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), identity)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    // rmcp would answer the next two. It refuses sampling and unknown requests by itself.
    #[expect(deprecated, reason = "servers of older revisions ask for it")]
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(refused("roots/list"))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(refused("elicitation/create"))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        (self.changed)();
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let message = params.message.map(|message| self.secrets.clean(&message));
        let progress = Progress { progress: params.progress, total: params.total, message };
        self.sinks.report(&params.progress_token, progress);
    }
}

/// Where the progress of each call goes. rmcp chooses a call's token when it sends the call, so progress can come
/// before its sink is known here.
#[derive(Default)]
pub(super) struct Sinks(Mutex<State>);

#[derive(Default)]
struct State {
    open: HashMap<ProgressToken, Open>,
    /// The newest for no open call: one is being sent, or was answered. No token is used twice.
    early: Vec<(ProgressToken, Progress)>,
}

struct Open {
    sink: ProgressSink,
    last: f64,
}

impl Sinks {
    /// From now on the progress of a call goes to `sink`, until the answer is dropped.
    pub(super) fn register(self: &Arc<Self>, token: ProgressToken, sink: ProgressSink) -> Registered {
        let own = {
            let mut state = self.0.lock();
            state.open.insert(token.clone(), Open { sink, last: f64::NEG_INFINITY });
            let early = std::mem::take(&mut state.early).into_iter();
            let (own, others): (Vec<_>, _) = early.partition(|(of, _)| *of == token);
            state.early = others;
            own
        };
        for (token, progress) in own {
            self.report(&token, progress);
        }
        Registered { sinks: Arc::clone(self), token }
    }

    fn report(&self, token: &ProgressToken, progress: Progress) {
        let mut state = self.0.lock();
        let sink = match state.open.get_mut(token) {
            // rmcp has a task for each notification, so they can overtake each other.
            Some(open) if progress.progress > open.last => {
                open.last = progress.progress;
                Arc::clone(&open.sink)
            }
            Some(_) => return,
            None => {
                // What is kept may stay as long as the connection. The tokens of rmcp are numbers.
                let is_long = progress.message.as_ref().is_some_and(|message| message.len() > EARLY_BYTES_MAX);
                if is_long || !matches!(token.0, NumberOrString::Number(_)) {
                    return;
                }
                if state.early.len() == EARLY_MAX {
                    state.early.remove(0);
                }
                state.early.push((token.clone(), progress));
                return;
            }
        };
        drop(state);
        sink(progress);
    }
}

pub(super) struct Registered {
    sinks: Arc<Sinks>,
    token: ProgressToken,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.sinks.0.lock().open.remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reaches_its_call_alone_and_grows() {
        let token = |number| ProgressToken(NumberOrString::Number(number));
        let progress = |progress| Progress { progress, total: None, message: None };
        let sinks = Arc::<Sinks>::default();
        let seen = Arc::<Mutex<Vec<f64>>>::default();
        let sink = || -> ProgressSink {
            let seen = Arc::clone(&seen);
            Arc::new(move |progress| seen.lock().push(progress.progress))
        };
        sinks.report(&token(1), progress(1.0));
        sinks.report(&token(2), progress(9.0));
        let registered = sinks.register(token(1), sink());
        for of in [(1, 3.0), (1, 2.0), (2, 4.0), (1, 5.0)] {
            sinks.report(&token(of.0), progress(of.1));
        }
        drop(registered);
        sinks.report(&token(1), progress(6.0));
        assert_eq!(*seen.lock(), [1.0, 3.0, 5.0]);
        let long = Some("x".repeat(EARLY_BYTES_MAX + 1));
        sinks.report(&token(3), Progress { message: long, ..progress(1.0) });
        sinks.report(&ProgressToken(NumberOrString::String("3".into())), progress(1.0));
        let of: Vec<_> = sinks.0.lock().early.iter().map(|(of, _)| of.clone()).collect();
        assert_eq!(of, [2, 2, 1].map(token));
        for number in 0..100 {
            sinks.report(&token(number), progress(1.0));
        }
        assert!(sinks.0.lock().open.is_empty() && sinks.0.lock().early.len() == EARLY_MAX);
    }
}
