//! How long keys are kept, and what is left of those of refused runs; on a paused clock.

use std::sync::atomic::AtomicUsize;

use async_trait::async_trait;
use tokio::time::advance;

use super::*;
use crate::domain::{
    ConversationKey,
    clock::{ManualClock, SystemClock},
};

/// A database that reads and removes keys slowly, and stores those of the owner `slow` so.
struct Slow {
    takes: Duration,
    /// Removals that fail before one succeeds.
    fails: Mutex<usize>,
    released: AtomicUsize,
}

impl Slow {
    fn new(takes: Duration, fails: usize) -> Self {
        Self { takes, fails: Mutex::new(fails), released: AtomicUsize::new(0) }
    }
}

/// With a database that answers at once.
fn at_once() -> Idempotency {
    Idempotency::new(Arc::new(Slow::new(Duration::ZERO, 0)), Arc::new(SystemClock))
}

#[async_trait]
impl KeyStore for Slow {
    async fn keys(&self, _: i64, _: usize) -> DbResult<Vec<KeyRecord>> {
        sleep(self.takes).await;
        Ok(Vec::new())
    }

    async fn keep(&self, record: &KeyRecord, _: i64) -> DbResult<Option<KeyRecord>> {
        if record.owner.name() == "slow" {
            sleep(self.takes).await;
        }
        Ok(None)
    }

    async fn release(&self, _: &KeyRecord) -> DbResult<()> {
        sleep(self.takes).await;
        let mut fails = self.fails.lock();
        if *fails > 0 {
            *fails -= 1;
            return Err(DatabaseError("it is locked".to_owned()));
        }
        self.released.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn forget(&self, _: i64, _: u64) -> DbResult<u64> {
        Ok(0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_to_another_server_after_its_key_was_removed() {
    for (takes_ms, fails, removed) in [(200, 0, true), (60_000, 0, false), (200, 1, false)] {
        let store = Arc::new(Slow::new(Duration::from_millis(takes_ms), fails));
        let (keys, who) = (Idempotency::new(Arc::clone(&store) as _, Arc::new(SystemClock)), Principal::default());
        let id: ConversationId = "c".parse().expect("an id");
        let elsewhere = Failure::new(Code::HeldElsewhere, "elsewhere");
        let there = elsewhere.clone().without(&ConversationKey::new(who.clone(), id.clone()));
        let asked = Instant::now();
        let once = keys.once::<()>(&who, Some(&id), ("k".to_owned(), [0; 32]), |_| Err(there.clone()));
        let failure = once.await.err().expect("a failure");
        assert_eq!(failure, if removed { there } else { elsewhere }, "it is not sent on while the key is there");
        assert_eq!(store.released.load(Ordering::Relaxed), usize::from(removed));
        assert!(asked.elapsed() <= RELEASE_MAX + Duration::from_millis(1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_removal_of_a_key_is_tried_again() {
    for (fails, released) in [(0, 1), (RELEASE_AGAIN.len(), 1), (RELEASE_AGAIN.len() + 1, 0)] {
        let store = Arc::new(Slow::new(Duration::from_millis(1), fails));
        let (keys, who) = (Idempotency::new(Arc::clone(&store) as _, Arc::new(SystemClock)), Principal::default());
        let full = |_| Err(Failure::new(Code::QueueFull, "full"));
        assert!(keys.once::<()>(&who, None, ("k".to_owned(), [0; 32]), full).await.is_err());
        sleep(Duration::from_millis(SETTLED_MS.unsigned_abs())).await;
        assert_eq!(store.released.load(Ordering::Relaxed), released, "{fails} failures");
    }
}

/// A database with a key that another server has stored.
struct OfAnother(Mutex<Option<KeyRecord>>);

#[async_trait]
impl KeyStore for OfAnother {
    async fn keys(&self, _: i64, _: usize) -> DbResult<Vec<KeyRecord>> {
        Ok(Vec::new())
    }

    async fn keep(&self, _: &KeyRecord, _: i64) -> DbResult<Option<KeyRecord>> {
        Ok(self.0.lock().clone())
    }

    async fn release(&self, _: &KeyRecord) -> DbResult<()> {
        Ok(())
    }

    async fn forget(&self, _: i64, _: u64) -> DbResult<u64> {
        Ok(0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_server_is_remembered_only_when_its_run_cannot_be_refused_any_more() {
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    for (age_ms, is_remembered) in [(0, false), (SETTLED_MS, false), (SETTLED_MS + 1, true)] {
        let (run, unix_ms) = (RunId::new(), clock.unix_ms() - age_ms);
        let (owner, key) = (Principal::default(), "k".to_owned());
        let record = KeyRecord { owner, key, digest: [0; 32], run, conversation: None, unix_ms };
        let store = Arc::new(OfAnother(Mutex::new(Some(record))));
        let (keys, who) = (Idempotency::new(Arc::clone(&store) as _, clock.clone()), Principal::default());
        let once = async || keys.once(&who, None, ("k".to_owned(), [0; 32]), |_| Ok(())).await.expect("an answer");
        assert!(matches!(once().await, Once::Again(known) if known == run));
        // The other server has refused the run.
        *store.0.lock() = None;
        assert_eq!(matches!(once().await, Once::Again(_)), is_remembered, "{age_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_for_keys_to_be_read() {
    let store = Arc::new(Slow::new(Duration::from_hours(1), 0));
    let (keys, stop) = (Idempotency::new(store, Arc::new(SystemClock)), CancellationToken::new());
    let stopped = async {
        sleep(TRY_AGAIN).await;
        stop.cancel();
    };
    let ended = timeout(TRY_AGAIN * 2, async { tokio::join!(keys.load(stop.clone()), stopped) });
    assert!(ended.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_key_does_not_wait_for_others_to_be_stored() {
    let store = Arc::new(Slow::new(Duration::from_hours(1), 0));
    let keys = Arc::new(Idempotency::new(store, Arc::new(SystemClock)));
    let [slow, other]: [Principal; 2] = ["slow", "other"].map(|name| name.parse().expect("an owner"));
    let slowly = |n: usize| {
        let (keys, slow) = (Arc::clone(&keys), slow.clone());
        tokio::spawn(async move { keys.once(&slow, None, (n.to_string(), [0; 32]), |_| Ok(())).await.is_ok() })
    };
    let begun: Vec<_> = (0..500).map(slowly).collect();
    sleep(Duration::from_millis(1)).await;
    let once = keys.once(&other, None, ("k".to_owned(), [0; 32]), |_| Ok(()));
    assert!(timeout(KEEP_MAX / 2, once).await.is_ok());
    for slow in begun {
        assert!(slow.await.expect("it ended"), "it begins though its key is not stored");
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_an_aborted_request_is_removed_before_the_next_one_begins() {
    let store = Arc::new(Slow::new(KEEP_MAX / 2, 0));
    let keys = Idempotency::new(Arc::clone(&store) as _, Arc::new(SystemClock));
    let slow: Principal = "slow".parse().expect("an owner");
    let once = || keys.once(&slow, None, ("k".to_owned(), [0; 32]), |_| Ok(()));
    assert!(timeout(KEEP_MAX / 4, once()).await.is_err(), "it is aborted while its key is stored");
    assert!(matches!(once().await, Ok(Once::New(()))));
    assert_eq!(store.released.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn keys_of_others_never_drop_a_key_before_a_day() {
    let (keys, who) = (at_once(), Principal::default());
    let once = async |who: &Principal, conversation: &str, key: String| {
        let conversation: ConversationId = conversation.parse().expect("an id");
        let begun = keys.once(who, Some(&conversation), (key, [0; 32]), |_| Ok(())).await;
        begun.map(|once| matches!(once, Once::New(()))).map_err(|failure| (failure.code, failure.retry_after_s))
    };
    assert_eq!(once(&who, "first", "mine".to_owned()).await, Ok(true));
    advance(Duration::from_hours(1)).await;
    for n in 0..CONVERSATION_KEYS_MAX {
        assert_eq!(once(&who, "greedy", format!("greedy-{n}")).await, Ok(true));
    }
    let refused = Err((Code::RateLimited, Some(24 * 3600 + 1)));
    assert_eq!(once(&who, "greedy", "one more".to_owned()).await, refused);
    assert_eq!(once(&who, "greedy", "greedy-0".to_owned()).await, Ok(false), "a known key is still answered");
    assert_eq!(once(&who, "other", "another".to_owned()).await, Ok(true));
    for n in 0.. {
        if once(&who, &format!("c{}", n / 1000), format!("many-{n}")).await.is_err() {
            break;
        }
        assert!(n < KEYS_MAX, "a principal has a share");
    }
    assert_eq!(once(&who, "first", "mine".to_owned()).await, Ok(false), "the first key is kept");
    assert_eq!(once(&"second".parse().expect("a name"), "first", "mine".to_owned()).await, Ok(true));
    advance(AGE_MAX.saturating_sub(Duration::from_secs(3599))).await;
    assert!(!keys.knows(&who, "mine") && keys.knows(&who, "greedy-0"));
    advance(Duration::from_hours(1)).await;
    assert!(!keys.knows(&who, "greedy-0"));
    let left = &keys.all.lock()[&who];
    assert!(left.of_conversation.is_empty() && left.known.is_empty() && left.order.is_empty());
}

#[tokio::test(start_paused = true)]
async fn principals_whose_keys_have_expired_are_forgotten() {
    let keys = at_once();
    let once = async |owner: &str, begins: bool| {
        let who: Principal = owner.parse().expect("an owner");
        let begin = |_| if begins { Ok(()) } else { Err(Failure::new(Code::QueueFull, "full")) };
        keys.once(&who, None, ("k".to_owned(), [0; 32]), begin).await.is_ok()
    };
    let known = || keys.all.lock().keys().map(|who| who.name().to_owned()).collect::<Vec<_>>();
    assert!(once("ann", true).await && !once("bob", false).await);
    assert_eq!(known(), ["ann"], "a key of a run that did not begin is none");
    advance(AGE_MAX + Duration::from_secs(1)).await;
    assert!(once("eve", true).await);
    assert_eq!(known(), ["eve"]);
}
