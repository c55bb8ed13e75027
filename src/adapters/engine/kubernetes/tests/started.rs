//! A sandbox from its creation to its end, against a small API server over real sockets, which can attach.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json, Router,
    body::Body as Answered,
    extract::{
        Path, Query, State,
        ws::{Message, WebSocket, WebSocketUpgrade},
    },
    routing::{MethodRouter, get},
};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use parking_lot::Mutex;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, sync::Notify, time::timeout};

use super::*;
use crate::ports::{engine::Stdin, runner::ATTACHED};

const SOON: Duration = Duration::from_mins(1);
const PODS: &str = "/api/v1/namespaces/boxes/pods";

/// The pod of the small API server, and what its client did.
struct Scene {
    id: SandboxId,
    /// The pod and the query.
    attached: Mutex<(String, HashMap<String, String>)>,
    input: Mutex<Vec<u8>>,
    /// Called when the container has ended.
    ended: Notify,
}

async fn create_pod(State(scene): State<Arc<Scene>>) -> (StatusCode, Json<Value>) {
    (StatusCode::CREATED, Json(pod(scene.id, "10", &Value::Null)))
}

/// The container runs, and ends after its streams.
async fn watch_pod(State(scene): State<Arc<Scene>>) -> Answered {
    let event = |version: &str, state: Value| {
        let mut status = waiting("");
        status["containerStatuses"][0]["state"] = state;
        format!("{}\n", json!({"type": "MODIFIED", "object": pod(scene.id, version, &status)}))
    };
    let running = event("11", json!({"running": {}}));
    let last = event("12", json!({"terminated": {"exitCode": 3, "reason": "Error"}}));
    let ended = stream::once(async move {
        scene.ended.notified().await;
        Ok(last)
    });
    Answered::from_stream(stream::iter([Ok::<_, io::Error>(running)]).chain(ended))
}

async fn attach_to_pod(
    State(scene): State<Arc<Scene>>,
    Path(pod): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> axum::response::Response {
    *scene.attached.lock() = (pod, query);
    upgrade.protocols(["v4.channel.k8s.io"]).on_upgrade(move |socket| play(socket, scene))
}

/// Reads a program to its last word, and prints.
async fn play(mut socket: WebSocket, scene: Arc<Scene>) {
    let mut input = Vec::new();
    while !input.ends_with(b"end") {
        let Some(Ok(Message::Binary(bytes))) = socket.recv().await else { panic!("no input") };
        let Some((&0, rest)) = bytes.split_first() else { panic!("of another channel") };
        input.extend_from_slice(rest);
    }
    *scene.input.lock() = input;
    let success = br#"{"metadata":{},"status":"Success"}"#;
    for (channel, bytes) in [(1_u8, &b"out"[..]), (2, &b"err"[..]), (3, &success[..])] {
        socket.send(Message::Binary([&[channel], bytes].concat().into())).await.expect("sent");
    }
    socket.send(Message::Close(None)).await.expect("closed");
    scene.ended.notify_one();
}

/// An engine whose API server has one pod, and answers so where the streams of it are asked for.
async fn engine_with(id: SandboxId, attach: MethodRouter<Arc<Scene>>) -> (KubernetesEngine, Arc<Scene>) {
    let scene = Scene { id, attached: Mutex::default(), input: Mutex::default(), ended: Notify::new() };
    let scene = Arc::new(scene);
    let router = Router::new()
        .route("/api/v1/namespaces/boxes/podtemplates", get(|| async { Json(templates()) }))
        .route(PODS, get(watch_pod).post(create_pod))
        .route(&format!("{PODS}/{{pod}}/attach"), attach)
        .with_state(Arc::clone(&scene));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = Config::new(format!("http://{address}").parse().expect("an address"));
    let options = KubernetesOptions::default();
    let client = client::client(config, options.time.lost).expect("a client");
    (KubernetesEngine::with(client, "boxes".to_owned(), Vec::new(), options), scene)
}

#[tokio::test]
async fn a_sandbox_is_created_watched_attached_to_and_seen_to_its_end() {
    let spec = spec("ruby@7");
    let (engine, scene) = engine_with(spec.id, get(attach_to_pod)).await;
    let mut sandbox = timeout(SOON, engine.start(&spec)).await.expect("soon").expect("started");
    sandbox.stdin.write_all(b"program, end").await.expect("written");
    sandbox.stdin.flush().await.expect("flushed");
    let output = sandbox.output.map(|piece| piece.expect("output").bytes);
    let output: Vec<Bytes> = timeout(SOON, output.collect()).await.expect("soon");
    assert_eq!(output, ["out", "err"]);
    let exit = timeout(SOON, sandbox.exit).await.expect("soon").expect("an exit");
    assert_eq!((exit.status, exit.oom_killed), (3, false));
    assert_eq!(*scene.input.lock(), [&ATTACHED[..], &b"program, end"[..]].concat());
    let query = [("container", "sandbox"), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")];
    let query: HashMap<_, _> = query.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(*scene.attached.lock(), (spec.id.to_string(), query));
}

#[tokio::test]
async fn refused_streams_fail_the_start_by_their_status() {
    let started = async |code: StatusCode| {
        let spec = spec("ruby@7");
        let (engine, _scene) = engine_with(spec.id, get(move || async move { code })).await;
        timeout(SOON, engine.start(&spec)).await.expect("soon").expect_err("refused")
    };
    let refused = started(StatusCode::FORBIDDEN).await;
    assert!(matches!(refused, EngineError::Refused { act: "attach", .. }), "{refused:?}");
    assert!(sentence(&refused).contains("the Role of the server"), "{refused:?}");
    let passing = started(StatusCode::INTERNAL_SERVER_ERROR).await;
    assert!(matches!(passing, EngineError::Unavailable { act: "attach", .. }), "{passing:?}");
}

#[tokio::test(start_paused = true)]
async fn a_greeting_that_is_not_taken_is_a_late_attachment() {
    // The other end takes nothing.
    let (near, _far) = tokio::io::duplex(1);
    let (mut stdin, limit): (Stdin, _) = (Box::pin(near), TimeLimits::default().answer);
    let late = life::send_attached(&mut stdin, limit).await.expect_err("late");
    assert!(matches!(late, EngineError::Timeout { act: "attach", limit: of } if of == limit), "{late:?}");
}
