//! A sandbox's end that a test scripts.

use std::net::SocketAddr;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, StreamExt as _, stream::BoxStream};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Duration, sleep, timeout},
};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};

use super::*;
use crate::{
    domain::network::{NetworkUse, Refusal, RequestLine, SandboxSecret},
    ports::network::Pace,
};

const LONG: Duration = Duration::from_mins(1);

struct Refuses;

#[async_trait]
impl Gate for Refuses {
    async fn decide(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        Err(Refusal::NotAllowed(target.clone()))
    }

    fn opens(&self, _target: &Target) -> bool {
        false
    }

    fn admit(&self, target: &Target, _request: Option<&RequestLine<'_>>) -> Result<(), Refusal> {
        Err(Refusal::NotAllowed(target.clone()))
    }

    fn secrets(&self, _target: &Target) -> Vec<SandboxSecret> {
        Vec::new()
    }

    fn pace(&self, _target: &Target) -> Option<Pace> {
        None
    }

    fn request(&self, request: Bytes) -> BoxStream<'static, Bytes> {
        if request.starts_with(b"endless") {
            return futures_util::stream::repeat(Bytes::from(vec![b'x'; PIECE_BYTES])).boxed();
        }
        let answers = [b"heard ".as_slice(), &request].map(Bytes::copy_from_slice);
        futures_util::stream::iter(answers).boxed()
    }

    fn messages(&self, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
        messages
    }

    fn closed(&self, _used: NetworkUse) {}
}

/// Allows every host, at one address.
pub(super) struct AllowingGate {
    pub(super) address: SocketAddr,
    /// Whether the TLS of hosts has to be opened.
    pub(super) opens: bool,
    pub(super) pace: Option<Pace>,
    pub(super) used: Mutex<Vec<NetworkUse>>,
}

impl AllowingGate {
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { address, opens: false, pace: None, used: Mutex::default() }
    }
}

#[async_trait]
impl Gate for AllowingGate {
    async fn decide(&self, _target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        Ok(vec![self.address])
    }

    fn opens(&self, _target: &Target) -> bool {
        self.opens
    }

    fn admit(&self, _target: &Target, _request: Option<&RequestLine<'_>>) -> Result<(), Refusal> {
        Ok(())
    }

    fn secrets(&self, _target: &Target) -> Vec<SandboxSecret> {
        Vec::new()
    }

    fn pace(&self, _target: &Target) -> Option<Pace> {
        self.pace.clone()
    }

    fn request(&self, _request: Bytes) -> BoxStream<'static, Bytes> {
        unreachable!("none is made")
    }

    fn messages(&self, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
        messages
    }

    fn closed(&self, used: NetworkUse) {
        self.used.lock().push(used);
    }
}

pub(super) struct Sandbox {
    pub(super) to_server: mpsc::UnboundedSender<Bytes>,
    pub(super) from_server: mpsc::Receiver<Bytes>,
    pub(super) carried: tokio::task::JoinHandle<()>,
}

pub(super) fn sandbox(multiplexer: &Multiplexer) -> Sandbox {
    sandbox_of(multiplexer, Arc::new(Refuses))
}

pub(super) fn sandbox_of(multiplexer: &Multiplexer, gate: Arc<dyn Gate>) -> Sandbox {
    let (to_server, incoming) = mpsc::unbounded_channel();
    let (outgoing, from_server) = mpsc::channel(4);
    let incoming = UnboundedReceiverStream::new(incoming).map(Ok).boxed();
    let pipe = ChannelPipe { incoming, outgoing, share: Arc::new(Semaphore::new(1000)), authority: None };
    let carried = tokio::spawn(multiplexer.carry(pipe, gate));
    Sandbox { to_server, from_server, carried }
}

impl Sandbox {
    /// As the process in a sandbox does: the server's streams, in order.
    fn honest(self) -> Connection<impl futures_util::AsyncRead + futures_util::AsyncWrite + Unpin> {
        let reader = StreamReader::new(ReceiverStream::new(self.from_server).map(Ok::<_, io::Error>));
        let (local, remote) = tokio::io::simplex(1 << 20);
        let to_server = self.to_server;
        tokio::spawn(async move {
            let mut pieces = tokio_util::io::ReaderStream::new(local);
            while let Some(Ok(piece)) = pieces.next().await {
                if to_server.send(piece).is_err() {
                    return;
                }
            }
        });
        Connection::new(tokio::io::join(reader, remote).compat(), Config::default(), Mode::Server)
    }

    /// The first channel, on which others are asked for, and those.
    pub(super) async fn channels(self) -> (Stream, mpsc::UnboundedReceiver<Stream>) {
        let mut connection = self.honest();
        let first = poll_fn(|cx| connection.poll_next_inbound(cx)).await.expect("open").expect("the first");
        let (opened, all) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(channel)) = poll_fn(|cx| connection.poll_next_inbound(cx)).await {
                drop(opened.send(channel));
            }
        });
        (first, all)
    }
}

/// Writes at once.
pub(super) async fn say(channel: &mut Stream, bytes: &[u8]) {
    channel.write_all(bytes).await.expect("written");
    channel.flush().await.expect("flushed");
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_the_channels() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    for garbage in [&b"\xff"[..], b"GET / HTTP/1.1\r\n\r\n", &[0x41; 4096]] {
        let sandbox = sandbox(&carrier);
        for _ in 0..200 {
            drop(sandbox.to_server.send(Bytes::copy_from_slice(garbage)));
        }
        timeout(LONG, sandbox.carried).await.expect("it ends").expect("without a panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_that_opens_a_channel_itself_loses_all() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let sandbox = sandbox(&carrier);
    // SYN of stream 2, with a window update of nothing.
    drop(sandbox.to_server.send(Bytes::from_static(&[0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0])));
    timeout(LONG, sandbox.carried).await.expect("it ends").expect("without a panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_that_breaks_the_rules_is_recorded_and_one_that_ends_within_a_frame_is_not() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let opens = [0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0];
    let broken = &["channels_broken"][..];
    for (sent, words) in [(&opens[..], broken), (&[0xff; 12][..], broken), (&[0; 3][..], &[][..])] {
        let gate = Arc::new(AllowingGate::at(([127, 0, 0, 1], 1).into()));
        let sandbox = sandbox_of(&carrier, gate.clone());
        drop(sandbox.to_server.send(Bytes::copy_from_slice(sent)));
        drop(sandbox.to_server);
        timeout(LONG, sandbox.carried).await.expect("it ends").expect("without a panic");
        let used = gate.used.lock().clone();
        let found: Vec<_> = used.iter().filter_map(|used| used.refusal.as_ref()).map(Refusal::word).collect();
        assert_eq!(found, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_gets_one_channel_for_each_byte_up_to_its_number() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    say(&mut first, &[1; 200]).await;
    let mut channels = Vec::new();
    for _ in 0..CHANNELS_MAX {
        channels.push(timeout(LONG, all.recv()).await.expect("in time").expect("a channel"));
    }
    assert!(timeout(Duration::from_millis(300), all.recv()).await.is_err(), "there are no more");
    // One that ends makes room for the next, and the proxy answers on it.
    drop(channels.pop());
    let mut next = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
    say(&mut next, b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n").await;
    let mut head = vec![0; 60];
    next.read_exact(&mut head).await.expect("an answer");
    assert!(head.starts_with(b"\0HTTP/1.1 403 no policy allows a.example:443\r\n"), "{}", head.escape_ascii());
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_channels_that_are_reset_at_once_leaves_room_for_as_many_as_before() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    let mut held = Vec::new();
    for round in 0..=50 {
        say(&mut first, &[1; CHANNELS_MAX]).await;
        for _ in 0..CHANNELS_MAX {
            let channel = timeout(LONG, all.recv()).await.expect("in time").expect("the channels live");
            // Its half has not ended, so that its drop resets it.
            if round == 50 {
                held.push(channel);
            }
        }
    }
    for channel in &mut held {
        timeout(LONG, channel.read_exact(&mut [0])).await.expect("in time").expect("its first byte");
    }
}

/// Returns when no task can go on. Where time is paused, it passes then alone.
async fn idle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn channel_that_is_reset_while_the_sandbox_reads_nothing_makes_room() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let mut sandbox = sandbox(&carrier);
    let (relayed, from_server) = mpsc::channel(1);
    let mut pieces = std::mem::replace(&mut sandbox.from_server, from_server);
    let reads = Arc::new(Semaphore::new(1));
    let may_read = Arc::clone(&reads);
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            drop(may_read.acquire().await);
            if relayed.send(piece).await.is_err() {
                return;
            }
        }
    });
    let (mut first, mut all) = sandbox.channels().await;
    say(&mut first, &[1; CHANNELS_MAX + 1]).await;
    let mut channels = Vec::new();
    for _ in 0..CHANNELS_MAX {
        channels.push(all.recv().await.expect("a channel"));
    }
    let nothing_is_read = reads.acquire().await.expect("it is open");
    for channel in &mut channels {
        say(channel, b"\x01endless\n").await;
    }
    idle().await;
    // Its end waits in the server's multiplexer, which cannot write; its room is granted again.
    drop(channels.pop());
    idle().await;
    drop(nothing_is_read);
    let mut next = all.recv().await.expect("the channels live, and there is one more");
    next.read_exact(&mut [0]).await.expect("its first byte");
}

#[tokio::test(start_paused = true)]
async fn programs_that_end_their_half_and_go_away_leave_room() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    say(&mut first, &[1; CHANNELS_MAX + 1]).await;
    for _ in 0..CHANNELS_MAX {
        let mut channel = all.recv().await.expect("a channel");
        channel.write_all(b"\x01endless\n").await.expect("written");
        channel.close().await.expect("its half has ended");
        // Its drop then tells the server nothing.
        idle().await;
    }
    let next = timeout(Duration::from_hours(1), all.recv()).await.expect("there is room again");
    next.expect("a channel").read_exact(&mut [0]).await.expect("its first byte");
}

#[tokio::test(start_paused = true)]
async fn program_that_begins_to_speak_socks_and_says_no_more_loses_its_connection() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    say(&mut first, &[1]).await;
    let mut channel = all.recv().await.expect("a channel");
    say(&mut channel, b"\x05\x01").await;
    let mut answer = Vec::new();
    drop(timeout(2 * HEAD_MAX, channel.read_to_end(&mut answer)).await.expect("it ends"));
    assert_eq!(answer, b"\0");
}

#[tokio::test(start_paused = true)]
async fn program_that_sends_all_of_a_refused_request_comes_to_its_answer() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    say(&mut first, &[1]).await;
    let mut channel = all.recv().await.expect("a channel");
    let body = vec![b'x'; 4 << 20];
    let head = format!("POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n", body.len());
    let sent = async {
        channel.write_all(head.as_bytes()).await?;
        channel.write_all(&body).await?;
        channel.close().await
    };
    timeout(LONG, sent).await.expect("all of it is taken").expect("written");
    let mut answer = Vec::new();
    timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends").expect("an answer");
    assert!(answer.starts_with(b"\0HTTP/1.1 403 no policy allows a.example:80\r\n"), "{}", answer.escape_ascii());
}

#[tokio::test(start_paused = true)]
async fn connection_for_which_there_is_no_room_is_told_so() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    let all_of_them = carrier.permits.available_permits().try_into().expect("few");
    let of_others = carrier.permits.acquire_many(all_of_them).await.expect("all of them");
    say(&mut first, &[1; 3]).await;
    let http = b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n".as_slice();
    for (said, answered) in [
        (http, b"\0HTTP/1.1 503 too many connections are open\r\n".as_slice()),
        (b"\x05\x01\0\x05\x01\0\x03\x09a.example\x01\xbb", b"\0\x05\0\x05\x01\0\x01"),
        (b"\x01install this\n", b"\0"),
    ] {
        let mut channel = all.recv().await.expect("a channel");
        channel.write_all(said).await.expect("written");
        channel.close().await.expect("closed");
        let mut answer = Vec::new();
        channel.read_to_end(&mut answer).await.expect("an answer");
        assert!(answer.starts_with(answered), "{}", answer.escape_ascii());
        assert!(answered.len() > 1 || answer.len() == 1, "{}", answer.escape_ascii());
    }
    drop(of_others);
    say(&mut first, &[1]).await;
    let mut next = all.recv().await.expect("a channel");
    say(&mut next, http).await;
    let mut head = vec![0; 60];
    next.read_exact(&mut head).await.expect("an answer");
    assert!(head.starts_with(b"\0HTTP/1.1 403 no policy allows a.example:443\r\n"), "{}", head.escape_ascii());
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_the_server_is_one_line_and_its_answer_ends() {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox(&carrier).channels().await;
    say(&mut first, &[1; 3]).await;
    let endless = [b"\x01".to_vec(), vec![b'x'; 80 << 10]].concat();
    for (said, answered) in [
        (b"\x01install this\nand more".to_vec(), b"\0heard install this".as_slice()),
        (b"\x01\n".to_vec(), b"\0heard "),
        (endless, b"\0"),
    ] {
        let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
        // One that is too long is not taken to its end.
        let _ = channel.write_all(&said).await;
        let _ = channel.flush().await;
        let mut answer = Vec::new();
        // One that is refused is reset.
        drop(timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends"));
        assert_eq!(answer, answered);
    }
}
