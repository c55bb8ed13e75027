//! Two servers in one process on a paused clock, and texts in memory that may be refused or not delivered.

use std::{future::ready, sync::Arc};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::sync::{
    broadcast::{self, error::TryRecvError},
    watch,
};
use tokio_stream::wrappers::BroadcastStream;

use super::*;
use crate::domain::test_scale::until;

struct Memory {
    texts: broadcast::Sender<String>,
    /// Texts with changes are refused.
    is_away: AtomicBool,
    /// Texts are taken and not delivered.
    is_pooled: AtomicBool,
    /// How often.
    listened: watch::Sender<usize>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let (is_away, is_pooled) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { texts: broadcast::Sender::new(64), is_away, is_pooled, listened: watch::Sender::new(0) })
    }
}

#[async_trait]
impl Notices for Memory {
    async fn send(&self, text: &str) -> DbResult<()> {
        assert!(text.len() <= NOTICE_BYTES_MAX);
        if text.contains('\n') && self.is_away.load(Ordering::Relaxed) {
            return Err(DatabaseError("away".to_owned()));
        }
        if !self.is_pooled.load(Ordering::Relaxed) {
            drop(self.texts.send(text.to_owned()));
        }
        Ok(())
    }

    async fn listen(&self) -> DbResult<BoxStream<'static, String>> {
        self.listened.send_modify(|times| *times += 1);
        Ok(BroadcastStream::new(self.texts.subscribe()).filter_map(|text| ready(text.ok())).boxed())
    }
}

fn key(text: &str) -> ConversationKey {
    text.parse().expect("a key")
}

fn path(text: &str) -> SafePath {
    SafePath::from_text(text).expect("a path")
}

/// A server that runs until the test ends.
fn serve(memory: &Arc<Memory>) -> Arc<Announcements> {
    let (server, memory) = (Arc::new(Announcements::default()), Arc::clone(memory));
    let serving = Arc::clone(&server);
    tokio::spawn(async move { serving.share(InstanceId::new(), &*memory, &CancellationToken::new()).await });
    server
}

/// A server with a reader of the first owner, and readers of each owner at another server. Both hear each other.
async fn pair<const N: usize>(
    memory: &Arc<Memory>,
    owners: [&ConversationKey; N],
) -> (Arc<Announcements>, Receiver<Changed>, [Receiver<Changed>; N]) {
    let (here, there) = (serve(memory), serve(memory));
    let mut own = here.subscribe(&owners[0].owner);
    let mut readers = owners.map(|conversation| there.subscribe(&conversation.owner));
    for reader in readers.iter_mut().chain([&mut own]) {
        assert_eq!(reader.recv().await, Ok(Changed::default()), "it may have missed something before");
    }
    (here, own, readers)
}

#[tokio::test(start_paused = true)]
async fn changes_are_announced_at_the_other_server_once_and_to_their_owner_alone() {
    let [ann, bob] = ["@ann/c", "@bob/c"].map(key);
    let memory = Memory::new();
    let (here, mut own, [mut of_ann, mut of_bob]) = pair(&memory, [&ann, &bob]).await;
    let file = path("d/\u{e4} b");
    here.announce(&ann, Some(&file));
    here.announce_elsewhere(&bob, None);
    assert_eq!(of_ann.recv().await, Ok(Changed::of(&ann, Some(&file))));
    assert_eq!(of_bob.recv().await, Ok(Changed::of(&bob, None)));
    // What follows comes after all of that.
    here.announce_elsewhere(&ann, None);
    assert_eq!(of_ann.recv().await, Ok(Changed::of(&ann, None)));
    assert_eq!(of_bob.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(own.try_recv(), Ok(Changed::of(&ann, Some(&file))));
    assert_eq!(own.try_recv(), Err(TryRecvError::Empty), "its own texts announce nothing");
    assert_eq!(here.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_announced_as_a_whole_and_what_comes_after_it_too() {
    let ann = key("@ann/c");
    let memory = Memory::new();
    let (here, _own, [mut of_ann]) = pair(&memory, [&ann]).await;
    for number in 0..10_000 {
        here.announce(&ann, Some(&path(&format!("f{number}"))));
    }
    assert_eq!(of_ann.recv().await, Ok(Changed::of(&ann, None)));
    here.announce(&ann, Some(&path("last")));
    assert_eq!(of_ann.recv().await, Ok(Changed::of(&ann, Some(&path("last")))));
}

#[tokio::test(start_paused = true)]
async fn after_changes_that_could_not_be_sent_any_file_may_have_changed() {
    let ann = key("@ann/c");
    let memory = Memory::new();
    let (here, _own, [mut of_ann]) = pair(&memory, [&ann]).await;
    memory.is_away.store(true, Ordering::Relaxed);
    here.announce(&ann, None);
    until("it is lost", || here.lost() > 0).await;
    assert_eq!(of_ann.try_recv(), Err(TryRecvError::Empty));
    memory.is_away.store(false, Ordering::Relaxed);
    assert_eq!(of_ann.recv().await, Ok(Changed::default()));
    here.announce(&ann, None);
    assert_eq!(of_ann.recv().await, Ok(Changed::of(&ann, None)), "no connection was lost");
    assert_eq!(*memory.listened.borrow(), 2);
}

/// As through a pooler in transaction mode, or a connection that was lost silently.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_hear_itself_listens_again_and_tells_its_readers_once_it_does() {
    let ann = key("@ann/c");
    let memory = Memory::new();
    memory.is_pooled.store(true, Ordering::Relaxed);
    let server = serve(&memory);
    let mut of_ann = server.subscribe(&ann.owner);
    memory.listened.subscribe().wait_for(|times| *times > 2).await.expect("it listens again");
    server.announce(&ann, None);
    assert_eq!(of_ann.try_recv(), Ok(Changed::of(&ann, None)), "readers here hear what changes here");
    assert_eq!(of_ann.try_recv(), Err(TryRecvError::Empty));
    memory.is_pooled.store(false, Ordering::Relaxed);
    assert_eq!(of_ann.recv().await, Ok(Changed::default()));
}

#[test]
fn what_waits_is_bounded_with_the_longest_paths_and_the_most_owners() {
    let of = |waiting: &Waiting| waiting.changes.values().flatten().cloned().collect::<Vec<_>>();
    let mut waiting = Waiting::default();
    let conversation = key("c");
    for number in 0..10_000 {
        waiting.add(&conversation, Some(&path(&format!("f{number}"))));
    }
    assert_eq!(of(&waiting), [Changed::of(&conversation, None)]);
    for number in 0..10_000 {
        waiting.add(&key(&format!("c{number}")), None);
    }
    assert_eq!(of(&waiting), [Changed::default()]);
    let long = path(&format!("{}/{}/{}", "x".repeat(200), "x".repeat(200), "x".repeat(200)));
    waiting.add(&key("@ann/c"), Some(&long));
    assert_eq!(of(&waiting)[..1], [Changed::of(&key("@ann/c"), None)]);
    for number in 0..=OWNERS_MAX {
        waiting.add(&key(&format!("@o{number}/c")), None);
    }
    assert_eq!(waiting, Waiting::any());
    waiting.add(&conversation, None);
    assert_eq!(waiting, Waiting::any());
}

#[test]
fn texts_are_short_enough_and_say_all_that_waits() {
    let me = InstanceId::new();
    assert_eq!(Waiting::default().texts(me), [me.to_string()]);
    assert_eq!(Waiting::any().texts(me), [format!("{me}\n[null,null,null]")]);
    let (mut waiting, mut expected) = (Waiting::default(), Vec::new());
    for owner in 0..3 {
        let conversation = key(&format!("@{owner:0>64}/{:0>128}", 1));
        for number in 0..CHANGES_MAX {
            let name = "\u{1}".repeat(255);
            let file = path(&format!("{number:0>2}/{}/{name}", &name[..250]));
            waiting.add(&conversation, Some(&file));
            expected.push((Some(conversation.owner.clone()), Changed::of(&conversation, Some(&file))));
        }
    }
    let texts = waiting.texts(me);
    assert!(texts.len() > 1 && texts.iter().all(|text| text.len() <= NOTICE_BYTES_MAX));
    assert!(texts.iter().all(|text| text.lines().next() == Some(me.to_string().as_str())));
    let said: Vec<_> = texts.iter().flat_map(|text| text.lines().skip(1)).filter_map(Changed::parse).collect();
    assert_eq!(said, expected);
}

#[test]
fn lines_that_are_not_known_are_left_out() {
    let announcements = Announcements::default();
    let mut of_ann = announcements.subscribe(&key("@ann/c").owner);
    let lines = ["", "x", "{}", "[]", "[\"ann\"]", "[\"ann\",\"..\",null]", "[\"ann\",\"c\",\"../x\"]", "[1,2,3]"];
    announcements.receive(lines.into_iter().chain(["[\"ann\",\"c\",\"x\"]"]));
    assert_eq!(of_ann.try_recv(), Ok(Changed::of(&key("@ann/c"), Some(&path("x")))));
    assert_eq!(of_ann.try_recv(), Err(TryRecvError::Empty));
}
