//! An engine of scripted answers behind a socket, for tests that need no container.
//!
//! ```text
//! ScriptedEngine::start ── accept: one task, with one for each connection; all end when the engine is dropped
//! ```

use std::{convert::Infallible, sync::Arc};

use bollard::{ClientVersion, Docker};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{net::UnixListener, task::JoinSet};

use super::super::forward::{self, Body};

type Answer = Box<dyn Fn(&str) -> (u16, Value) + Send + Sync>;

/// Ends when it is dropped.
pub(in super::super::super) struct ScriptedEngine {
    folder: tempfile::TempDir,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    answer: Answer,
    calls: Mutex<Vec<String>>,
}

impl ScriptedEngine {
    /// `answer` receives a call without its version, such as `POST /containers/create?name=x`.
    pub(in super::super::super) fn start(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("engine.sock")).expect("a socket");
        let state = Arc::new(State { answer: Box::new(answer), calls: Mutex::default() });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&state)));
        Self { folder, state, _tasks: tasks }
    }

    pub(super) fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("engine.sock").display())
    }

    pub(in super::super::super) fn client(&self) -> Docker {
        client(&self.host())
    }

    /// The calls until now.
    pub(super) fn calls(&self) -> Vec<String> {
        self.state.calls.lock().clone()
    }
}

pub(super) fn client(host: &str) -> Docker {
    Docker::connect_with_unix(host, 10, &ClientVersion { major_version: 1, minor_version: 41 }).expect("a client")
}

async fn accept(listener: UnixListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(|request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(respond(&state, request).await) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(state: &State, request: Request<Incoming>) -> Response<Body> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let target = target.strip_prefix("/v").and_then(|rest| rest.find('/').map(|at| &rest[at..])).unwrap_or(target);
    let call = format!("{} {target}", request.method());
    let _ = request.into_body().collect().await;
    let (status, value) = (state.answer)(&call);
    state.calls.lock().push(call);
    let status = StatusCode::from_u16(status).expect("a status");
    let text = if value.is_null() { String::new() } else { value.to_string() };
    let mut response = Response::new(forward::body(text));
    *response.status_mut() = status;
    response
}
