//! How long a sandbox may take, and what is asked of it again.

use std::task::Poll;

use futures_util::stream;
use tokio::{io::duplex, time::advance};
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::{domain::SafePath, services::files::tests::fixture};

struct Scene {
    _root: tempfile::TempDir,
    files: Arc<Files>,
    carrier: Carrier,
}

impl Scene {
    /// A conversation with one file, and a sandbox that has nothing.
    async fn new(file_bytes: usize) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let files = fixture::with_bytes_max(&root.path().join("root"), 8 << 20);
        let (id, path) = ("c".parse().expect("an id"), SafePath::from_text("a").expect("a path"));
        files.write(&id, &path, vec![b'x'; file_bytes].into()).await.expect("written");
        let carrier = Carrier::new(&files, &id, 64 << 20, u64::MAX);
        Self { _root: root, files, carrier }
    }

    /// Sends to a session that takes a frame in `frame` and tells so many failures; the number of frames.
    async fn send(&mut self, frame: Duration, failed: u64) -> (usize, Result<(), Failure>) {
        let (sender, mut frames) = mpsc::channel::<Bytes>(1);
        let (replies, received) = mpsc::channel(1);
        let sandbox = async move {
            let mut count = 0;
            while let Some(bytes) = frames.recv().await {
                count += 1;
                advance(frame).await;
                if bytes[5..] == *b"\x04" {
                    replies.send(FileMessage::Taken { failed }).await.expect("a taker");
                }
            }
            count
        };
        let sending = async {
            let sent = self.carrier.send(&sender, ReceiverStream::new(received)).await;
            drop(sender);
            sent
        };
        tokio::join!(sandbox, sending)
    }
}

fn entry(path: &'static str) -> FileMessage {
    FileMessage::Entry { is_folder: false, mode: 0o644, modified_unix_s: 7, path: path.into() }
}

#[tokio::test]
async fn sandbox_that_goes_away_ends_the_writing() {
    let mut scene = Scene::new(4 << 20).await;
    let (stdin, other) = duplex(1024);
    drop(other);
    let mut stdin: Stdin = Box::pin(stdin);
    let written = timeout(Duration::from_mins(1), scene.carrier.write(&mut stdin)).await.expect("in time");
    assert_eq!(written.expect_err("it is gone").code, Code::EngineLost);
}

#[tokio::test(start_paused = true)]
async fn session_has_its_time_for_each_frame() {
    let mut scene = Scene::new(2 << 20).await;
    let (count, sent) = scene.send(Duration::from_secs(15), 0).await;
    sent.expect("taken");
    assert_eq!(count, 10, "an entry, eight pieces and the end");
}

#[tokio::test(start_paused = true)]
async fn session_that_takes_nothing_is_given_up() {
    let mut scene = Scene::new(2 << 20).await;
    let (sender, _frames) = mpsc::channel(1);
    let sent = tokio::select! {
        sent = scene.carrier.send(&sender, stream::pending()) => sent,
        // The clock stands still by itself while a thread reads the disk.
        () = async { loop { advance(Duration::from_secs(1)).await } } => unreachable!("it has no end"),
    };
    assert_eq!(sent.expect_err("it takes nothing").code, Code::EngineLost);
    let collected = scene.carrier.collect(&sender, stream::pending()).await;
    assert_eq!(collected.expect_err("it takes nothing").code, Code::EngineLost);
}

#[tokio::test(start_paused = true)]
async fn what_a_session_could_not_write_is_refused_and_sent_again() {
    let mut scene = Scene::new(10).await;
    let (count, sent) = scene.send(Duration::ZERO, 1).await;
    let failure = sent.expect_err("one is missing");
    assert_eq!((count, failure.code), (3, Code::QuotaExceeded));
    assert!(failure.message.contains("nothing was executed"), "{}", failure.message);
    assert!(matches!(scene.send(Duration::ZERO, 0).await, (3, Ok(()))), "all of it");
    assert!(matches!(scene.send(Duration::ZERO, 0).await, (1, Ok(()))), "the end alone");
}

#[tokio::test]
async fn messages_after_a_limit_are_read_to_the_end_of_the_round() {
    let mut scene = Scene::new(10).await;
    let large = std::iter::repeat_n(FileMessage::Bytes(vec![0; 1 << 20].into()), 10);
    let round = [entry("large")].into_iter().chain(large).chain([entry("late"), FileMessage::End { left_out: 0 }]);
    let mut messages = stream::iter(round.chain([FileMessage::Taken { failed: 7 }]));
    let returned = scene.carrier.receive(&mut messages).await.expect("received");
    assert!(returned.limit.is_some());
    assert_eq!(messages.next().await, Some(FileMessage::Taken { failed: 7 }), "the next round");
    let listed = scene.files.list(&"c".parse().expect("an id")).await.expect("a list");
    assert_eq!(listed.files.len(), 1, "{listed:?}");
}

#[tokio::test]
async fn round_that_was_not_stored_is_asked_for_again() {
    let mut scene = Scene::new(10).await;
    let (sender, mut frames) = mpsc::channel(1);
    let end = FileMessage::End { left_out: 0 };
    let large = std::iter::repeat_n(FileMessage::Bytes(vec![0; 1 << 20].into()), 9);
    let over = [entry("large")].into_iter().chain(large).chain([end.clone()]).collect();
    let rounds = [(vec![end.clone()], ""), (over, ""), (vec![entry("cut off")], "\x01"), (vec![end.clone()], "\x01")];
    for (messages, asked) in rounds.into_iter().chain([(vec![end], "")]) {
        let _ = scene.carrier.collect(&sender, stream::iter(messages)).await;
        assert_eq!(frames.recv().await.expect("a frame")[6..], *asked.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn messages_without_end_are_given_up() {
    let mut scene = Scene::new(10).await;
    let endless = stream::poll_fn(|context| {
        // The clock is set at the first poll.
        let _ = Box::pin(advance(Duration::from_secs(10))).as_mut().poll(context);
        Poll::Ready(Some(FileMessage::Bytes(Bytes::new())))
    });
    let returned = scene.carrier.receive(endless).await;
    assert_eq!(returned.expect_err("no end").code, Code::EngineLost);
}
