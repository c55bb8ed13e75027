//! Against a small server that speaks the protocol of attaching over real sockets.

use std::future::pending;

use axum::{
    Router,
    extract::{
        State,
        ws::{self, WebSocket, WebSocketUpgrade},
    },
    routing::get,
};
use futures_util::FutureExt as _;
use kube::Config;
use tokio::{io::AsyncWriteExt, net::TcpListener, sync::oneshot};

use super::*;
use crate::adapters::engine::kubernetes::{client::client, life::OwnEndings};

const SOON: Duration = Duration::from_mins(1);
/// Of a server that is tested for its silence, and of the others.
const SILENCE_MAX: Duration = Duration::from_secs(3);
const LONG_SILENCE_MAX: Duration = Duration::from_mins(2);

type Server = Box<dyn FnOnce(WebSocket) -> futures_util::future::BoxFuture<'static, ()> + Send>;

struct Attached {
    stdin: Stdin,
    output: BoxStream<'static, Result<Output, EngineError>>,
    lives: OwnEndings,
    id: SandboxId,
}

/// Attaches to a server that does what `play` does, and offers one protocol. After `silence_max` it is gone.
async fn attached<F>(
    silence_max: Duration,
    protocol: &'static str,
    play: impl FnOnce(WebSocket) -> F + Send + 'static,
) -> Attached
where
    F: Future<Output = ()> + Send + 'static,
{
    type Once = Arc<Mutex<Option<Server>>>;
    async fn answer(
        State((protocol, play)): State<(&'static str, Once)>,
        upgrade: WebSocketUpgrade,
    ) -> axum::response::Response {
        let play = play.lock().take().expect("attached once");
        upgrade.protocols([protocol]).on_upgrade(play)
    }
    let play: Server = Box::new(move |socket| Box::pin(play(socket)));
    let router = Router::new().route("/attach", get(answer)).with_state((protocol, Arc::new(Mutex::new(Some(play)))));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = Config::new(format!("http://{address}").parse().expect("an address"));
    let client = client(config, silence_max).expect("a client");
    let request = http::Request::get("/attach").body(Vec::new()).expect("a request");
    let connection = client.connect(request).await.expect("attached");
    let (id, lives) = (SandboxId::new(), OwnEndings::default());
    let (stdin, output) = streams(connection, id, lives.of(id), silence_max).await;
    Attached { stdin, output, lives, id }
}

fn message(channel: u8, bytes: &[u8]) -> ws::Message {
    ws::Message::Binary([&[channel], bytes].concat().into())
}

const SUCCESS: &[u8] = br#"{"metadata":{},"status":"Success"}"#;

/// The payloads of input until the connection or the input ends.
async fn input_of(socket: &mut WebSocket) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    while let Some(Ok(message)) = socket.recv().await {
        let ws::Message::Binary(bytes) = message else { continue };
        match bytes.split_first() {
            Some((&STDIN, rest)) => all.extend_from_slice(rest),
            Some((&CLOSE, rest)) => return (all, rest == [STDIN]),
            _ => panic!("an unexpected message"),
        }
    }
    (all, false)
}

#[tokio::test]
async fn both_streams_arrive_and_end_with_the_status() {
    let mut attached = attached(LONG_SILENCE_MAX, "v5.channel.k8s.io", async |mut socket: WebSocket| {
        for message in [
            message(STDOUT, b""),
            message(STDERR, b""),
            message(STDOUT, b"out"),
            message(STDERR, b"err"),
            // The status may overtake output.
            message(STATUS, SUCCESS),
            message(STDOUT, b"last"),
            message(9, b"unknown"),
            ws::Message::Binary(Bytes::new()),
        ] {
            socket.send(message).await.expect("sent");
        }
        socket.send(ws::Message::Close(None)).await.expect("closed");
    })
    .await;
    let mut seen = Vec::new();
    while let Some(output) = timeout(SOON, attached.output.next()).await.expect("soon") {
        let Output { stream, bytes } = output.expect("output");
        seen.push((stream, String::from_utf8(bytes.to_vec()).expect("UTF-8")));
    }
    let [out, err, last] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((out.0, out.1.as_str()), (StreamKind::Stdout, "out"));
    assert_eq!((err.0, err.1.as_str()), (StreamKind::Stderr, "err"));
    assert_eq!((last.0, last.1.as_str()), (StreamKind::Stdout, "last"));
}

#[tokio::test]
async fn a_connection_that_breaks_is_an_error_unless_we_ended_the_sandbox() {
    for (ended_by_us, clean) in [(false, false), (false, true), (true, false), (true, true)] {
        let (go, gone) = oneshot::channel::<()>();
        let mut attached = attached(LONG_SILENCE_MAX, "v4.channel.k8s.io", async move |mut socket: WebSocket| {
            socket.send(message(STDOUT, b"a")).await.expect("sent");
            gone.await.expect("a signal");
            if clean {
                socket.send(ws::Message::Close(None)).await.expect("closed");
            }
        })
        .await;
        let first = timeout(SOON, attached.output.next()).await.expect("soon").expect("output").expect("output");
        assert_eq!(&first.bytes[..], b"a");
        if ended_by_us {
            attached.lives.ending(attached.id);
        }
        go.send(()).expect("a signal");
        let next = timeout(SOON, attached.output.next()).await.expect("soon");
        assert_eq!(next.is_none(), ended_by_us, "{next:?}");
        if !ended_by_us {
            let error = next.expect("an error").expect_err("an error");
            assert!(matches!(error, EngineError::Lost { .. } | EngineError::Unavailable { .. }), "{error:?}");
            assert!(timeout(SOON, attached.output.next()).await.expect("soon").is_none());
        }
    }
}

#[tokio::test]
async fn a_failure_of_the_kubelet_is_its_message() {
    let mut attached = attached(LONG_SILENCE_MAX, "v5.channel.k8s.io", async |mut socket: WebSocket| {
        let failure = br#"{"status":"Failure","message":"container not found"}"#;
        socket.send(message(STATUS, failure)).await.expect("sent");
        let _ = socket.recv().await;
    })
    .await;
    let error = timeout(SOON, attached.output.next()).await.expect("soon").expect("an error").expect_err("an error");
    let EngineError::Refused { source, .. } = error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "container not found");
}

#[tokio::test]
async fn input_is_complete_before_a_slow_reader_and_its_end_is_told_where_it_can_be() {
    let text = vec![7_u8; 32 << 20];
    for (protocol, tells_the_end) in [("v5.channel.k8s.io", true), ("v4.channel.k8s.io", false)] {
        let (report, reported) = oneshot::channel();
        let (go, slow) = oneshot::channel::<()>();
        let mut attached = attached(LONG_SILENCE_MAX, protocol, async move |mut socket: WebSocket| {
            slow.await.expect("a signal");
            report.send(input_of(&mut socket).await).expect("awaited");
        })
        .await;
        let writes = async {
            attached.stdin.write_all(b"hello").await.expect("written");
            attached.stdin.write_all(&text).await.expect("written");
            attached.stdin.shutdown().await.expect("closed");
            assert!(attached.stdin.write_all(b"more").await.is_err(), "the input has ended");
        };
        let (mut writes, mut go) = (Box::pin(writes), Some(go));
        // More than the sockets hold: the writer waits for the reader.
        assert!(timeout(Duration::from_millis(50), &mut writes).await.is_err());
        go.take().expect("once").send(()).expect("a signal");
        timeout(SOON, writes).await.expect("soon");
        if !tells_the_end {
            // With version 4 only the end of the connection ends it.
            drop(attached);
        }
        let (seen, ended) = timeout(SOON, reported).await.expect("soon").expect("a signal");
        assert!(seen == [b"hello", &text[..]].concat(), "{} bytes", seen.len());
        assert_eq!(ended, tells_the_end);
    }
}

#[tokio::test]
async fn input_is_sent_by_a_flush() {
    let (report, reported) = oneshot::channel();
    let mut attached = attached(LONG_SILENCE_MAX, "v4.channel.k8s.io", async move |mut socket: WebSocket| {
        report.send(socket.recv().await.expect("a message").expect("a message")).expect("awaited");
    })
    .await;
    attached.stdin.write_all(b"hello").await.expect("written");
    attached.stdin.flush().await.expect("flushed");
    let first = timeout(SOON, reported).await.expect("soon").expect("a signal");
    assert_eq!(first, message(STDIN, b"hello"));
}

/// Takes a message at any time, and is flushed when a test says so.
#[derive(Default)]
struct Narrow {
    taken: Vec<Message>,
    is_full: bool,
}

impl Sink<Message> for Narrow {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        self.taken.push(message);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.is_full { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_write_after_one_that_was_given_up_is_sent_whole() {
    let socket = Arc::new(Mutex::new(Socket { stream: Narrow::default(), inputs: 0 }));
    let mut stdin = Input { socket: Arc::clone(&socket), half_close: true, closed: false };
    stdin.write_all(b"one").await.expect("written");
    socket.lock().stream.is_full = true;
    assert!(stdin.write_all(b"given up").now_or_never().is_none(), "the message before it is not flushed");
    socket.lock().stream.is_full = false;
    stdin.write_all(b"second").await.expect("written");
    assert_eq!(socket.lock().stream.taken, [input(b"one"), input(b"second")]);
}

#[tokio::test]
async fn a_server_that_answers_no_more_pings_is_gone() {
    let mut attached = attached(SILENCE_MAX, "v5.channel.k8s.io", async |mut socket: WebSocket| {
        let ping = socket.recv().await.expect("a message").expect("a message");
        assert!(matches!(ping, ws::Message::Ping(_)), "{ping:?}");
        socket.send(message(STDOUT, b"answered")).await.expect("sent");
        pending::<()>().await;
    })
    .await;
    let first = timeout(SOON, attached.output.next()).await.expect("soon").expect("output").expect("output");
    assert_eq!(&first.bytes[..], b"answered");
    let error = timeout(SOON, attached.output.next()).await.expect("soon").expect("an error").expect_err("an error");
    assert!(matches!(error, EngineError::Unavailable { act: "read", .. }), "{error:?}");
    assert!(timeout(SOON, attached.output.next()).await.expect("soon").is_none());
}

#[tokio::test]
async fn a_server_whose_container_reads_no_input_is_not_gone_and_neither_is_one_that_answers_pings() {
    let (go, slow) = oneshot::channel::<()>();
    let mut attached = attached(SILENCE_MAX, "v5.channel.k8s.io", async move |mut socket: WebSocket| {
        slow.await.expect("a signal");
        let mut pings = 0;
        while pings < 5 * PINGS_MAX {
            let message = socket.recv().await.expect("a message").expect("a message");
            pings += u32::from(matches!(message, ws::Message::Ping(_)));
        }
        socket.send(message(STDOUT, b"late")).await.expect("sent");
        pending::<()>().await;
    })
    .await;
    attached.stdin.write_all(b"input").await.expect("written");
    assert!(timeout(2 * SILENCE_MAX, attached.output.next()).await.is_err(), "it is blocked by its input");
    go.send(()).expect("awaited");
    let late = timeout(SOON, attached.output.next()).await.expect("soon").expect("output").expect("output");
    assert_eq!(&late.bytes[..], b"late");
}
