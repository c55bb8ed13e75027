//! Several servers on one database in memory, on a paused clock.

pub(crate) mod memory;

use tokio::time::{advance, sleep};

use self::memory::Memory;
use super::*;
use crate::domain::{
    ConversationId, Principal,
    clock::{ManualClock, SystemClock},
};

/// What a server has is in use as long as it says so.
#[derive(Default, Clone)]
struct Busy {
    conversations: Arc<Mutex<Vec<ConversationKey>>>,
    /// Those of them that have a session and no run.
    sessions: Arc<Mutex<Vec<ConversationKey>>>,
    lost: Arc<Mutex<Vec<ConversationKey>>>,
}

impl Occupancy for Busy {
    fn is_idle(&self, conversation: &ConversationKey) -> bool {
        !self.conversations.lock().contains(conversation)
    }

    fn has_run(&self, conversation: &ConversationKey) -> bool {
        !self.is_idle(conversation) && !self.sessions.lock().contains(conversation)
    }

    fn lost(&self, conversation: &ConversationKey) {
        self.lost.lock().push(conversation.clone());
    }
}

struct Server {
    peers: Peers,
    busy: Busy,
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Server {
    async fn start(store: &Arc<Memory>) -> Self {
        let server = Self::begin(store);
        sleep(ROUND * 2).await;
        server
    }

    fn begin(store: &Arc<Memory>) -> Self {
        Self::begin_with(store, Arc::new(SystemClock))
    }

    fn begin_with(store: &Arc<Memory>, clock: Arc<dyn Clock>) -> Self {
        let me = Peer { instance: InstanceId::new(), url: "http://127.0.0.1:1".to_owned() };
        let peers = Peers::new(me, Arc::clone(store) as _, clock);
        let (busy, stop) = (Busy::default(), CancellationToken::new());
        let task = tokio::spawn({
            let (peers, busy, stop) = (peers.clone(), busy.clone(), stop.clone());
            async move { peers.follow(busy, stop).await }
        });
        Self { peers, busy, task, stop }
    }

    fn instance(&self) -> InstanceId {
        self.peers.0.as_ref().expect("not alone").me.instance
    }

    /// Where a conversation is after this server was asked for it: `None` for here.
    async fn take(&self, conversation: &ConversationKey) -> Option<InstanceId> {
        self.peers.take(conversation).await.expect("a holder").map(|peer| peer.instance)
    }
}

/// Two servers that know each other.
async fn two_servers() -> (Arc<Memory>, Server, Server) {
    let store = Arc::default();
    let servers = (Server::start(&store).await, Server::start(&store).await);
    sleep(ROUND * 2).await;
    (store, servers.0, servers.1)
}

fn key(id: &str) -> ConversationKey {
    ConversationKey::new(Principal::default(), id.parse().expect("an id"))
}

#[tokio::test(start_paused = true)]
async fn one_server_has_a_conversation_until_nothing_was_in_it_for_long() {
    let (store, a, b) = two_servers().await;
    let c = key("c");
    assert_eq!(a.peers.check(&c).map_err(|failure| failure.code), Err(Code::HeldElsewhere));
    assert_eq!((a.take(&c).await, b.take(&c).await), (None, Some(a.instance())));
    let asked = store.asked.load(Ordering::Relaxed);
    for _ in 0..100 {
        assert_eq!((a.peers.check(&c), a.take(&c).await), (Ok(()), None));
    }
    assert_eq!(store.asked.load(Ordering::Relaxed), asked, "what is held waits for nothing");

    a.busy.conversations.lock().push(c.clone());
    sleep(IDLE_MAX * 3).await;
    assert_eq!(b.take(&c).await, Some(a.instance()), "a program or a session is in it");
    a.busy.conversations.lock().clear();
    sleep(IDLE_MAX * 2).await;
    assert_eq!((b.take(&c).await, a.take(&c).await), (None, Some(b.instance())));

    // Others of that id, and the server's own, are apart.
    let theirs = ConversationKey::new("ann".parse().expect("a name"), c.id.clone());
    assert_eq!(a.take(&theirs).await, None);
    let own = ConversationKey::new(Principal::self_test(), ConversationId::fresh());
    assert_eq!(a.peers.check(&own), Ok(()));
    assert!(a.peers.0.as_ref().expect("not alone").records.lock().get(&own).is_none());
}

#[tokio::test(start_paused = true)]
async fn what_two_requests_take_at_once_is_given_back() {
    let (store, a, b) = two_servers().await;
    let c = key("c");
    // The statement of the first one comes to the database after that of the second.
    store.take_ms.store(200, Ordering::Relaxed);
    let second = async {
        sleep(Duration::from_millis(1)).await;
        store.take_ms.store(0, Ordering::Relaxed);
        a.take(&c).await
    };
    assert_eq!(tokio::join!(a.take(&c), second), (None, None));
    sleep(IDLE_MAX * 2).await;
    assert_eq!(b.take(&c).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_a_request_takes_that_is_aborted_is_given_back() {
    let (store, a, b) = two_servers().await;
    let c = key("c");
    store.take_ms.store(200, Ordering::Relaxed);
    timeout(Duration::from_millis(150), a.take(&c)).await.expect_err("the request is aborted");
    store.take_ms.store(0, Ordering::Relaxed);
    assert_eq!(store.holders.lock()[&c].0, a.instance());
    sleep(IDLE_MAX * 2).await;
    assert_eq!(b.take(&c).await, None);
}

#[tokio::test(start_paused = true)]
async fn what_a_server_makes_is_held_at_once() {
    let (_, a, b) = two_servers().await;
    let made = ConversationKey::new(Principal::default(), ConversationId::fresh());
    assert_eq!(a.peers.check(&made), Ok(()));
    tokio::task::yield_now().await;
    sleep(Duration::from_millis(1)).await;
    assert_eq!(b.take(&key(made.id.as_str())).await, Some(a.instance()), "stored without waiting for a round");
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_server_had_is_taken_and_what_a_stopped_one_had_at_once() {
    let (store, a, b) = two_servers().await;
    let c = Server::start(&store).await;
    sleep(ROUND * 2).await;
    assert_eq!((a.take(&key("a")).await, b.take(&key("b")).await), (None, None));
    a.task.abort();
    sleep(DEAD_AFTER / 2).await;
    assert_eq!(c.take(&key("a")).await, Some(a.instance()), "it may live");
    b.stop.cancel();
    b.task.await.expect("it ends");
    assert_eq!(c.take(&key("b")).await, None);
    sleep(DEAD_AFTER + ROUND).await;
    assert_eq!(c.take(&key("a")).await, None);
    assert_eq!(c.peers.others(), []);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_reach_the_database_goes_on_and_gives_way_later() {
    let (store, a, b) = two_servers().await;
    assert_eq!(a.take(&key("known")).await, None);
    store.is_away.store(true, Ordering::Relaxed);
    for server in [&a, &b] {
        assert_eq!((server.take(&key("new")).await, server.peers.check(&key("new"))), (None, Ok(())));
    }
    assert_eq!(a.peers.check(&key("known")), Ok(()));
    store.is_away.store(false, Ordering::Relaxed);
    sleep(ROUND * 3).await;
    let gave_way: Vec<_> = [&a, &b].iter().flat_map(|one| one.busy.lost.lock().clone()).collect();
    assert_eq!(gave_way, [key("new")]);

    // So long that the others thought that it was dead.
    advance(DEAD_AFTER * 2).await;
    sleep(ROUND).await;
    store.holders.lock().insert(key("known"), (b.instance(), i64::MAX));
    sleep(ROUND * 2).await;
    advance(DEAD_AFTER * 2).await;
    sleep(ROUND * 2).await;
    assert!(a.busy.lost.lock().contains(&key("known")));
}

#[tokio::test(start_paused = true)]
async fn before_the_others_are_known_nothing_is_taken_from_them() {
    let store: Arc<Memory> = Arc::default();
    let a = Server::start(&store).await;
    assert_eq!(a.take(&key("c")).await, None);
    let me = Peer { instance: InstanceId::new(), url: "http://127.0.0.1:2".to_owned() };
    let early = Peers::new(me, Arc::clone(&store) as _, Arc::new(SystemClock));
    // Its first round has not been: it goes on by itself, and does not write that it has the conversation.
    assert_eq!(early.take(&key("c")).await.expect("a holder"), None);
    assert_eq!(store.holders.lock()[&key("c")].0, a.instance());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_from_a_server_that_has_just_come() {
    let (store, _a, b) = two_servers().await;
    sleep(ROUND / 2).await;
    let c = Server::begin(&store);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(c.take(&key("x")).await, None);
    assert_eq!(b.peers.others().len(), 1, "it does not know the server yet");
    let taken = b.peers.take(&key("x")).await;
    assert_eq!(taken.map_err(|failure| failure.code), Err(Code::HeldElsewhere));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_taken_from_a_server_that_has_come_back() {
    let (store, a, b) = two_servers().await;
    assert_eq!(a.take(&key("x")).await, None);
    a.task.abort();
    // Between two rounds.
    sleep(DEAD_AFTER + ROUND * 5 / 2).await;
    assert_eq!(b.peers.others(), []);
    store.announce(&a.peers.0.as_ref().expect("not alone").me, i64::MAX).await.expect("announced");
    let taken = b.peers.take(&key("x")).await;
    assert_eq!(taken.map_err(|failure| failure.code), Err(Code::HeldElsewhere));
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_beat_takes_long_looks_whether_it_was_taken_for_dead() {
    let store: Arc<Memory> = Arc::default();
    let a = Server::start(&store).await;
    assert_eq!(a.take(&key("x")).await, None);
    store.is_away.store(true, Ordering::Relaxed);
    sleep(ROUND * 3 + ROUND / 2).await;
    store.is_away.store(false, Ordering::Relaxed);
    store.announce_ms.store(4000, Ordering::Relaxed);
    sleep(ROUND).await;
    // Meanwhile another server has come and taken it.
    let b = Peer { instance: InstanceId::new(), url: "http://127.0.0.1:2".to_owned() };
    store.holders.lock().insert(key("x"), (b.instance, i64::MAX));
    store.peers.lock().insert(b.instance.to_string(), (b, 1));
    sleep(ROUND * 2).await;
    assert_eq!(*a.busy.lost.lock(), [key("x")]);
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_machine_was_suspended_looks_whether_it_was_taken_for_dead() {
    let (store, clock): (Arc<Memory>, Arc<ManualClock>) = (Arc::default(), Arc::default());
    let a = Server::begin_with(&store, Arc::clone(&clock) as _);
    sleep(ROUND * 2).await;
    assert_eq!(a.take(&key("x")).await, None);
    // Another server has taken it.
    let b = Peer { instance: InstanceId::new(), url: "http://127.0.0.1:2".to_owned() };
    store.holders.lock().insert(key("x"), (b.instance, i64::MAX));
    store.peers.lock().insert(b.instance.to_string(), (b, 1));
    sleep(ROUND + ROUND / 2).await;
    assert!(a.busy.lost.lock().is_empty(), "without a silence nothing is looked up");
    clock.suspend(DEAD_AFTER.as_secs().try_into().expect("seconds"));
    sleep(ROUND + ROUND / 2).await;
    assert_eq!(*a.busy.lost.lock(), [key("x")]);
}

#[tokio::test(start_paused = true)]
async fn a_beat_that_cannot_be_stored_does_not_hold_up_the_next() {
    let store: Arc<Memory> = Arc::default();
    let a = Server::start(&store).await;
    store.announce_ms.store(3_600_000, Ordering::Relaxed);
    sleep(ROUND).await;
    store.announce_ms.store(0, Ordering::Relaxed);
    let beat = || store.peers.lock()[&a.instance().to_string()].1;
    let before = beat();
    sleep(DEAD_AFTER).await;
    assert_ne!(beat(), before);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_others_live_until_they_are_seen_not_to() {
    let (store, a, b) = two_servers().await;
    store.is_away.store(true, Ordering::Relaxed);
    sleep(DEAD_AFTER * 2).await;
    a.task.abort();
    store.is_away.store(false, Ordering::Relaxed);
    sleep(ROUND + ROUND / 2).await;
    assert_eq!(b.peers.others().len(), 1, "it may not have had its turn yet");
    sleep(DEAD_AFTER + ROUND).await;
    assert_eq!(b.peers.others(), []);
}

#[tokio::test(start_paused = true)]
async fn a_server_leaves_what_an_earlier_process_had_once() {
    let store: Arc<Memory> = Arc::default();
    store.announce_ms.store(3_600_000, Ordering::Relaxed);
    let a = Server::begin(&store);
    sleep(ROUND).await;
    // The first round has left and waits for its beat.
    store.holders.lock().insert(key("x"), (a.instance(), 1));
    store.announce_ms.store(0, Ordering::Relaxed);
    sleep(DEAD_AFTER).await;
    assert!(store.holders.lock().contains_key(&key("x")));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_in_use_is_forgotten_while_the_database_is_away() {
    let store: Arc<Memory> = Arc::default();
    let a = Server::start(&store).await;
    store.is_away.store(true, Ordering::Relaxed);
    a.busy.conversations.lock().push(key("busy"));
    assert_eq!((a.take(&key("unused")).await, a.take(&key("busy")).await), (None, None));
    for _ in 0..40 {
        assert_eq!(a.take(&key("used")).await, None);
        sleep(ROUND).await;
    }
    let records = a.peers.0.as_ref().expect("not alone").records.lock();
    assert_eq!(["unused", "busy", "used"].map(|id| records.contains_key(&key(id))), [false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_first_statement_that_hangs_is_given_up() {
    let store: Arc<Memory> = Arc::default();
    store.leave_ms.store(3_600_000, Ordering::Relaxed);
    let a = Server::begin(&store);
    sleep(ROUND).await;
    store.leave_ms.store(0, Ordering::Relaxed);
    sleep(DEAD_AFTER).await;
    assert!(store.peers.lock().contains_key(&a.instance().to_string()), "it beats");
    a.stop.cancel();
    a.task.await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_killed_is_forgotten_with_what_it_had() {
    let (store, a, b) = two_servers().await;
    for id in ["x", "y"] {
        assert_eq!(a.take(&key(id)).await, None);
    }
    a.task.abort();
    let left = || (store.peers.lock().len(), store.holders.lock().len());
    sleep(FORGOTTEN_AFTER.saturating_sub(ROUND * 2)).await;
    assert_eq!(left(), (2, 2));
    sleep(ROUND * 5).await;
    assert_eq!(left(), (1, 0));
    assert_eq!(b.take(&key("x")).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_server_with_many_conversations_beats_in_time() {
    let (store, a, b) = two_servers().await;
    store.take_ms.store(10, Ordering::Relaxed);
    let stored = || store.holders.lock().len();
    for _ in 0..3000 {
        let made = ConversationKey::new(Principal::default(), ConversationId::fresh());
        assert_eq!(a.peers.check(&made), Ok(()));
    }
    for second in 0..120 {
        assert_eq!(b.peers.others().len(), 1, "after {second} s");
        sleep(Duration::from_secs(1)).await;
        assert!(second != 50 || stored() == 3000, "{}", stored());
    }
    assert_eq!(stored(), 0, "all are given back");
}

#[tokio::test(start_paused = true)]
async fn a_server_whose_statement_hangs_beats_on() {
    let (store, a, b) = two_servers().await;
    store.take_ms.store(3_600_000, Ordering::Relaxed);
    let made = ConversationKey::new(Principal::default(), ConversationId::fresh());
    assert_eq!(a.peers.check(&made), Ok(()));
    a.busy.conversations.lock().push(made.clone());
    for second in 0..60 {
        assert_eq!(b.peers.others().len(), 1, "after {second} s");
        sleep(Duration::from_secs(1)).await;
    }
    store.take_ms.store(0, Ordering::Relaxed);
    sleep(DEAD_AFTER + ROUND).await;
    assert_eq!(b.take(&key(made.id.as_str())).await, Some(a.instance()));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_gives_back_each_conversation_when_its_last_run_has_ended() {
    let (_, a, b) = two_servers().await;
    let [idle, session, running] = ["idle", "session", "running"].map(key);
    for conversation in [&idle, &session, &running] {
        assert_eq!(a.take(conversation).await, None);
    }
    a.busy.conversations.lock().extend([session.clone(), running.clone()]);
    a.busy.sessions.lock().push(session.clone());
    sleep(LEAVING_IDLE).await;
    a.peers.leave();
    sleep(Duration::from_millis(1)).await;
    assert_eq!((b.take(&idle).await, b.take(&session).await), (None, None), "at once, without waiting for a round");
    assert!(a.busy.lost.lock().contains(&session), "its session ends first");
    assert_eq!(b.take(&running).await, Some(a.instance()));
    assert_eq!(a.peers.take(&key("new")).await.map_err(|failure| failure.code), Err(Code::HeldElsewhere));
    a.busy.conversations.lock().clear();
    sleep(ROUND).await;
    assert_eq!(b.take(&running).await, None);
}
