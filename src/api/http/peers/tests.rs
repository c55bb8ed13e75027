//! Which requests are kept for forwarding, and the answer when their server does not answer.

use std::{
    future::ready,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{Router, middleware, routing::any};
use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::pause,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::*;
use crate::{
    domain::{ConversationId, InstanceId, clock::SystemClock, test_scale::until},
    ports::peers::PeerStore as _,
    services::peers::{ROUND, tests::memory::Memory},
};

/// A server beside others that are in the store, which are known when this returns.
async fn beside(others: &[&Peer]) -> (Relay, CancellationToken) {
    let (relay, stop, _) = beside_in(Arc::default(), others).await;
    (relay, stop)
}

async fn beside_in(store: Arc<Memory>, others: &[&Peer]) -> (Relay, CancellationToken, Arc<Memory>) {
    for other in others {
        store.announce(other, 1).await.expect("announced");
    }
    let (peers, stop) =
        (Peers::new(closed(), Arc::clone(&store) as _, Arc::new(SystemClock)), CancellationToken::new());
    tokio::spawn({
        let (peers, stop) = (peers.clone(), stop.clone());
        async move { peers.follow((), stop).await }
    });
    until("the others are known", || peers.others().len() >= others.len()).await;
    (Relay::new(peers, Bodies::new(1000, Duration::from_secs(1), 1000)), stop, store)
}

/// The conversation of a session keeps its mark that it was made here.
#[tokio::test(start_paused = true)]
async fn the_conversation_of_a_session_is_not_used_beside_another_server() {
    let (_listener, other) = listen().await;
    let (relay, stop, store) = beside_in(Arc::default(), &[&other]).await;
    let made = ConversationKey::new(Principal::default(), ConversationId::fresh());
    assert_eq!(relay.check_is_here(&HeaderMap::new(), &made).await, Ok(()));
    assert_eq!(relay.peers.check(&made), Ok(()));
    // Given back, then taken by the other.
    tokio::time::sleep(Duration::from_mins(2)).await;
    store.announce(&other, 2).await.expect("announced");
    store.take(&made, other.instance, 1, &[]).await.expect("a holder");
    tokio::time::sleep(ROUND).await;
    let refused = relay.check_is_here(&HeaderMap::new(), &made).await.expect_err("it is elsewhere");
    assert_eq!((refused.code, refused.retry_after_s), (Code::HeldElsewhere, Some(RETRY_AFTER_S)));
    stop.cancel();
}

async fn listen() -> (TcpListener, Peer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, Peer { instance: InstanceId::new(), url })
}

/// A server that does not listen.
fn closed() -> Peer {
    Peer { instance: InstanceId::new(), url: "http://127.0.0.1:1".to_owned() }
}

/// A server that dies when it has read a request.
async fn dying() -> Peer {
    let (listener, peer) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            read_head(&mut socket).await;
        }
    });
    peer
}

async fn read_head(socket: &mut TcpStream) {
    let mut read = Vec::new();
    let is_read = |read: &[u8]| read.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    while !is_read(&read) && socket.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {}
}

async fn sent(relay: &Relay, peer: &Peer, method: Method) -> Result<StatusCode, Code> {
    let request = http::Request::builder().method(method).uri("/v1/runs").body(()).expect("a request");
    let answer = relay.send(peer, &request.into_parts().0, Bytes::new()).await;
    answer.map(|answer| answer.status()).map_err(|failure| failure.code)
}

#[tokio::test]
async fn what_became_of_a_request_is_unknown_when_its_server_ended_before_it_answered() {
    let dying = dying().await;
    let closed = closed();
    let (relay, stop) = beside(&[&dying, &closed]).await;
    assert_eq!(sent(&relay, &dying, Method::POST).await, Err(Code::ServerLost));
    assert_eq!(sent(&relay, &dying, Method::DELETE).await, Err(Code::ServerLost));
    assert_eq!(sent(&relay, &dying, Method::GET).await, Err(Code::HeldElsewhere), "reading again does no harm");
    assert_eq!(sent(&relay, &closed, Method::POST).await, Err(Code::HeldElsewhere), "it has begun nothing");
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_server_that_froze_ends_when_it_counts_as_dead() {
    let (_listener, frozen) = listen().await;
    let (relay, stop) = beside(&[&frozen]).await;
    let both = async { tokio::join!(sent(&relay, &frozen, Method::POST), sent(&relay, &frozen, Method::GET)) };
    let ended = timeout(DEAD_AFTER + 2 * ROUND, both).await.expect("an end");
    assert_eq!(ended, (Err(Code::ServerLost), Err(Code::HeldElsewhere)));
    stop.cancel();
}

#[tokio::test]
async fn an_answer_of_a_server_that_froze_breaks_off_when_it_counts_as_dead() {
    let (listener, frozen) = listen().await;
    let (relay, stop) = beside(&[&frozen]).await;
    let begun = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        read_head(&mut socket).await;
        let begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
        socket.write_all(begin).await.expect("written");
        socket
    });
    let request = http::Request::get("/v1/runs/r/events").body(()).expect("a request");
    let answer = relay.send(&frozen, &request.into_parts().0, Bytes::new()).await.expect("an answer");
    let _socket = begun.await.expect("without a panic");
    let mut body = answer.into_body().into_data_stream();
    assert_eq!(body.next().await.expect("a piece").expect("bytes"), "one");
    pause();
    let ended = timeout(DEAD_AFTER + 2 * ROUND, body.next()).await.expect("an end");
    assert!(ended.is_some_and(|piece| piece.is_err()), "it is not whole");
    assert!(body.next().await.is_none());
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_run_is_not_looked_for_at_a_server_that_froze_for_long() {
    let (_listener, frozen) = listen().await;
    let (relay, stop) = beside(&[&frozen]).await;
    let found = timeout(FIND_MAX + ROUND, relay.find_run(&HeaderMap::new(), RunId::new())).await;
    assert!(found.expect("an end").is_none());
    stop.cancel();
}

#[tokio::test]
async fn an_unknown_session_may_be_at_the_server_that_did_not_answer() {
    let unknown = any(async || ApiError::new(Code::SessionNotFound, "There is no such session."));
    let post = || http::Request::post("/v1/sessions/s/cells").body(Body::from("{}")).expect("a request");
    let (dying, (listener, other)) = (dying().await, listen().await);
    let answers = Router::new().fallback(async || "known");
    tokio::spawn(async move { axum::serve(listener, answers).await });
    for (others, expected) in [(vec![&dying], StatusCode::BAD_GATEWAY), (vec![&dying, &other], StatusCode::OK)] {
        let (relay, stop) = beside(&others).await;
        let here = Router::new().fallback_service(unknown.clone());
        let here = here.layer(middleware::from_fn_with_state(relay, send_on));
        assert_eq!(here.oneshot(post()).await.expect("an answer").status(), expected);
        stop.cancel();
    }
}

#[tokio::test]
async fn a_list_counts_the_servers_that_did_not_answer() {
    let (dying, (listener, other)) = (dying().await, listen().await);
    let theirs = Router::new().fallback(async || r#"{"runs": [{"runId": "run-2"}], "after": "run-2"}"#);
    tokio::spawn(async move { axum::serve(listener, theirs).await });
    let (relay, stop) = beside(&[&dying, &other]).await;
    let own = async || r#"{"runs": [{"runId": "run-3"}, {"runId": "run-1"}]}"#;
    let here = Router::new().fallback(own).layer(middleware::from_fn_with_state(relay, send_on));
    let answer = here.oneshot(http::Request::get("/v1/runs?limit=2").body(Body::empty()).expect("a request")).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.headers().get("sandbox-unanswered"), Some(&HeaderValue::from_static("1")));
    let text = axum::body::to_bytes(answer.into_body(), 1000).await.expect("a body");
    assert_eq!(text, r#"{"runs":[{"runId":"run-3"},{"runId":"run-2"}],"after":"run-2"}"#);
    stop.cancel();
}

#[tokio::test]
async fn a_list_says_that_another_server_left_items_out() {
    let (listener, other) = listen().await;
    let theirs = Router::new().fallback(async || ([("sandbox-truncated", "true")], r#"[{"startedAt": "2"}]"#));
    tokio::spawn(async move { axum::serve(listener, theirs).await });
    let (relay, stop) = beside(&[&other]).await;
    let here = Router::new().fallback(async || r#"[{"startedAt": "1"}]"#);
    let here = here.layer(middleware::from_fn_with_state(relay, send_on));
    let request = http::Request::get("/e2b/v2/sandboxes").body(Body::empty()).expect("a request");
    let answer = here.oneshot(request).await.expect("an answer");
    assert_eq!(answer.headers().get("sandbox-truncated"), Some(&HeaderValue::from_static("true")));
    let text = axum::body::to_bytes(answer.into_body(), 1000).await.expect("a body");
    assert_eq!(text, r#"[{"startedAt":"2"},{"startedAt":"1"}]"#);
    stop.cancel();
}

#[tokio::test]
async fn a_page_after_an_item_of_a_server_that_did_not_answer_can_be_asked_for_again() {
    let dying = dying().await;
    let (relay, stop) = beside(&[&dying]).await;
    let own = async || r#"{"data": [{"id": "cntr_1", "created_at": 1}]}"#;
    let here = Router::new().fallback(own).layer(middleware::from_fn_with_state(relay, send_on));
    for (query, expected) in [
        ("after=cntr_1", StatusCode::OK),
        ("after=cntr_2", StatusCode::SERVICE_UNAVAILABLE),
        ("limit=x", StatusCode::BAD_REQUEST),
    ] {
        let request = http::Request::get(format!("/openai/v1/containers?{query}"));
        let request = request.body(Body::empty()).expect("a request");
        assert_eq!(here.clone().oneshot(request).await.expect("an answer").status(), expected, "{query}");
    }
    stop.cancel();
}

/// Otherwise it names one that a client finds free at another server.
#[tokio::test]
async fn a_list_waits_until_the_conversations_of_its_server_are_stored() {
    let closed = closed();
    let (relay, stop, store) = beside_in(Arc::default(), &[&closed]).await;
    store.take_ms.store(100, Ordering::Relaxed);
    let made = ConversationKey::new(Principal::default(), ConversationId::fresh());
    assert_eq!(relay.peers.check(&made), Ok(()));
    let here = Router::new().fallback(async || r#"{"runs": []}"#);
    let here = here.layer(middleware::from_fn_with_state(relay, send_on));
    let request = http::Request::get("/v1/runs").body(Body::empty()).expect("a request");
    assert_eq!(here.oneshot(request).await.expect("an answer").status(), StatusCode::OK);
    assert!(store.holders.lock().contains_key(&made));
    stop.cancel();
}

#[tokio::test]
async fn few_lists_of_one_owner_are_put_together_at_once() {
    let (_listener, frozen) = listen().await;
    let (relay, stop) = beside(&[&frozen]).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let own = {
        let begun = Arc::clone(&begun);
        move || {
            begun.fetch_add(1, Ordering::Relaxed);
            ready("[]")
        }
    };
    let here = Router::new().fallback(own).layer(middleware::from_fn_with_state(relay, send_on));
    let ask = |owner: &str| {
        let who: Principal = owner.parse().expect("an owner");
        let request = http::Request::get("/jupyter/api/kernels").extension(who).body(Body::empty());
        Box::pin(here.clone().oneshot(request.expect("a request")))
    };
    let mut waiting: Vec<_> = (0..2 * LISTS_MAX).map(|_| ask("ann")).collect();
    for one in &mut waiting {
        assert!(one.now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(begun.load(Ordering::Relaxed), LISTS_MAX);
    assert!(ask("bob").now_or_never().is_none());
    assert_eq!(begun.load(Ordering::Relaxed), LISTS_MAX + 1, "those of another owner do not wait for hers");
    stop.cancel();
}

#[test]
fn files_are_not_kept() {
    let request = |method: Method, kind: &'static str, bytes: usize| {
        let request = http::Request::builder().method(method).header("content-type", kind);
        can_be_repeated(&request.body(Body::from(vec![0; bytes])).expect("a request"), 1000)
    };
    assert!(request(Method::GET, "", 0) && request(Method::DELETE, "", 0));
    assert!(request(Method::POST, "application/json; charset=utf-8", 1001), "its reader says that it is too long");
    assert!(request(Method::POST, "multipart/form-data; boundary=a", 1000));
    assert!(!request(Method::POST, "multipart/form-data; boundary=a", 1001));
    assert!(!request(Method::PUT, "application/octet-stream", 1), "the content of a file");
    let of_any_length = |path: &str| {
        let stream = Body::from_stream(futures_util::stream::empty::<Result<Bytes, std::io::Error>>());
        can_be_repeated(&http::Request::post(path).body(stream).expect("a request"), 1000)
    };
    assert!(!of_any_length("/upload") && !of_any_length("/e2b/files"));
    assert!(of_any_length("/v1/runs/r/stdin"), "its reader says that it is too long");
}

#[test]
fn container_of_an_upload_is_that_of_its_caller() {
    let of = |path: &str, sandbox: &str| {
        let who: Principal = "ann".parse().expect("an owner");
        let request = http::Request::post(path).header("e2b-sandbox-id", sandbox).extension(who);
        container(&request.body(()).expect("a request").into_parts().0)
    };
    let named = |id: &str| Some(ConversationKey::new("ann".parse().expect("an owner"), id.parse().expect("an id")));
    assert_eq!(of("/e2b/files?path=a", "i1"), named("i1"));
    assert_eq!(of("/openai/v1/containers/c1/files", "i1"), named("c1"));
    for (path, sandbox) in [
        ("/e2b/files", "../a"),
        ("/e2b/files/a", "i1"),
        ("/e2b/execute", "i1"),
        ("/openai/v1/containers", "i1"),
        ("/openai/v1/containers/c1/files/f/files", "i1"),
        ("/openai/v1/containers/%ff/files", "i1"),
        ("/v1/conversations/c/files", "i1"),
    ] {
        assert_eq!(of(path, sandbox), None, "{path}");
    }
}

#[test]
fn hops_are_counted_and_what_is_no_number_is_too_many() {
    let said = |text: &'static str| hops(&HeaderMap::from_iter([(SENT_ON, HeaderValue::from_static(text))]));
    assert_eq!((hops(&HeaderMap::new()), said("0"), said("1"), said("2")), (0, 0, 1, 2));
    assert!([said(""), said("x"), said("-1"), said("256")].iter().all(|hops| *hops >= HOPS_MAX));
}
