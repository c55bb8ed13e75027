//! The rounds and their end, on a paused clock.

use async_trait::async_trait;
use tokio::time::{Instant, advance};

use super::*;
use crate::{
    domain::{ConversationId, ConversationKey, Principal, clock::ManualClock},
    ports::{
        database::DatabaseError,
        history::{KeyRecord, KeyStore, LineEnd, LineFilter, Notable, PartLine, UsageFilter, UsageLine},
    },
};

/// A database with too many lines, which does not answer when some are to be removed.
#[derive(Default)]
struct Hanging {
    removes: Notify,
    /// Other servers, which left open lines.
    dead: Vec<InstanceId>,
    /// So many of the next endings of lines fail.
    failures: Mutex<u32>,
    /// The servers whose lines were ended.
    ended: Mutex<Vec<InstanceId>>,
    /// The line of a run, as it is read from the last of these to the first, which stays.
    lines: Mutex<Vec<HistoryLine>>,
}

#[async_trait]
impl HistoryStore for Hanging {
    async fn write(&self, _: &[HistoryLine]) -> DbResult<()> {
        unreachable!()
    }

    async fn line(&self, _: &Principal, _: RunId) -> DbResult<Option<HistoryLine>> {
        let mut lines = self.lines.lock();
        Ok(if lines.len() > 1 { lines.pop() } else { lines.last().cloned() })
    }

    async fn page(&self, _: &LineFilter, limit: usize) -> DbResult<Vec<HistoryLine>> {
        Ok(self.lines.lock().iter().take(limit).cloned().collect())
    }

    /// The first line comes when these are measured.
    async fn page_bytes(&self, _: &LineFilter, limit: usize) -> DbResult<Vec<u64>> {
        Ok(self.lines.lock().iter().skip(1).take(limit).map(|_| 1).collect())
    }

    async fn usage(&self, _: &UsageFilter, _: usize) -> DbResult<Vec<UsageLine>> {
        unreachable!()
    }

    async fn notable(&self, _: Notable, _: i64, _: usize) -> DbResult<Vec<HistoryLine>> {
        unreachable!()
    }

    async fn parts(&self, _: i64, _: i64) -> DbResult<Vec<PartLine>> {
        unreachable!()
    }

    async fn beat(&self, _: InstanceId, _: i64) -> DbResult<()> {
        Ok(())
    }

    async fn forget_beats(&self, _: i64) -> DbResult<u64> {
        unreachable!()
    }

    async fn open(&self) -> DbResult<Vec<(InstanceId, Option<i64>)>> {
        Ok(self.dead.iter().map(|dead| (*dead, Some(1))).collect())
    }

    async fn close_lost(&self, instance: InstanceId, _: i64, _: i64, _: &str) -> DbResult<u64> {
        let mut failures = self.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(DatabaseError("it is away".to_owned()));
        }
        self.ended.lock().push(instance);
        Ok(1)
    }

    async fn count(&self) -> DbResult<u64> {
        Ok(1000)
    }

    async fn begun_after_oldest(&self, _: u64) -> DbResult<Option<i64>> {
        Ok(Some(1))
    }

    async fn newest_bytes(&self, _: i64, _: u64) -> DbResult<Option<(i64, u64)>> {
        Ok(None)
    }

    async fn remove_before(&self, _: i64, _: u64) -> DbResult<u64> {
        self.removes.notify_one();
        std::future::pending().await
    }
}

#[async_trait]
impl KeyStore for Hanging {
    async fn keys(&self, _: i64, _: usize) -> DbResult<Vec<KeyRecord>> {
        unreachable!()
    }

    async fn keep(&self, _: &KeyRecord, _: i64) -> DbResult<Option<KeyRecord>> {
        unreachable!()
    }

    async fn release(&self, _: &KeyRecord) -> DbResult<()> {
        unreachable!()
    }

    async fn forget(&self, _: i64, _: u64) -> DbResult<u64> {
        unreachable!()
    }
}

#[tokio::test(start_paused = true)]
async fn the_stop_does_not_wait_for_the_removal_of_old_lines() {
    let (store, clock) = (Arc::new(Hanging::default()), Arc::new(ManualClock::at(1_800_000_000)));
    let options = HistoryOptions { source_bytes_max: 0, kept: None, kept_max: 10, kept_bytes: u64::MAX };
    let history = History::new(store.clone(), InstanceId::new(), clock, options);
    let stop = CancellationToken::new();
    let stops = stop.clone();
    let following = tokio::spawn(async move { history.follow(stops).await });
    store.removes.notified().await;
    stop.cancel();
    timeout(CALL_MAX / 2, following).await.expect("the stop waits for no answer").expect("it ended");
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_in_mind_since_when_servers_are_dead() {
    let mut dead: Vec<_> = (0..3).map(|_| InstanceId::new()).collect();
    let store = Arc::new(Hanging { dead: dead.clone(), failures: Mutex::new(1), ..Hanging::default() });
    let options = HistoryOptions { source_bytes_max: 0, kept: None, kept_max: 10_000, kept_bytes: u64::MAX };
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let history = History::new(store.clone(), InstanceId::new(), clock, options);
    let mut known = Upkeep::default();
    let begun = Instant::now();
    while begun.elapsed() < DEAD_AFTER {
        history.upkeep(&mut known).await.expect("an answer");
        assert!(store.ended.lock().is_empty(), "they may live");
        advance(ROUND).await;
    }
    history.upkeep(&mut known).await.expect_err("one ending fails");
    advance(ROUND).await;
    history.upkeep(&mut known).await.expect("an answer");
    let mut ended = store.ended.lock().clone();
    ended.sort_unstable();
    dead.sort_unstable();
    assert_eq!(ended, dead);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_of_another_server_is_waited_for() {
    let wait = Duration::from_hours(1);
    let open = HistoryLine::begun(ConversationKey::new(Principal::default(), ConversationId::fresh()));
    let ended = HistoryLine { end: Some(LineEnd::lost(1, LOST)), ..open.clone() };
    let options = HistoryOptions { source_bytes_max: 0, kept: None, kept_max: 10, kept_bytes: u64::MAX };
    for (lines, wait, is_ended, at_least, at_most) in [
        (vec![ended.clone(), open.clone(), open.clone()], wait, true, 1, 19),
        (vec![ended], wait, true, 0, 0),
        (vec![open.clone()], wait, false, 20, 21),
        (vec![open.clone()], Duration::from_secs(3), false, 3, 4),
        (vec![open.clone()], Duration::ZERO, false, 0, 0),
    ] {
        let store = Arc::new(Hanging { lines: Mutex::new(lines), ..Hanging::default() });
        let clock = Arc::new(ManualClock::at(1_800_000_000));
        let history = History::new(store, InstanceId::new(), clock, options);
        let begun = Instant::now();
        let found = history.run_within(wait, &Principal::default(), open.run).await.expect("a line");
        let seconds = begun.elapsed().as_secs();
        assert_eq!(found.end.is_some(), is_ended);
        assert!((at_least..=at_most).contains(&seconds), "{seconds} s");
    }
}

#[tokio::test]
async fn a_line_that_comes_while_a_page_is_read_hides_no_other() {
    let line = || HistoryLine::begun(ConversationKey::new(Principal::default(), ConversationId::fresh()));
    let lines: Vec<_> = (0..3).map(|_| line()).collect();
    let store = Arc::new(Hanging { lines: Mutex::new(lines.clone()), ..Hanging::default() });
    let options = HistoryOptions { source_bytes_max: 0, kept: None, kept_max: 10, kept_bytes: u64::MAX };
    let history = History::new(store, InstanceId::new(), Arc::new(ManualClock::at(1_800_000_000)), options);
    let page = history.page(&LineFilter::default(), 2).await.expect("a page");
    assert_eq!((page.lines.len(), page.after), (2, Some(lines[1].run)), "the last one is on the next page");
    assert_eq!(history.page(&LineFilter::default(), 3).await.expect("a page").after, Some(lines[1].run));
}

#[test]
fn source_is_never_longer_than_its_limit() {
    for (program, kept) in
        [("print 1", "print 1"), ("print 1000", "print 10"), ("\0\0\0\0", "\u{fffd}\u{fffd}"), ("aaaaaaaä", "aaaaaaa")]
    {
        assert_eq!(source(program.as_bytes(), 8), kept, "{program:?}");
    }
    assert_eq!(source(&[0xff; 9], 8), "\u{fffd}\u{fffd}");
}
