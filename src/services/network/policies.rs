//! The policies that apply now: those of the settings, and those that operators made, which the database keeps.
//!
//! All are in memory, so no run and no connection waits for the database.
//!
//! ```text
//! follow ── one task: what other servers changed
//! ```

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    domain::{
        Clock, Code, Failure,
        clock::every,
        network::{Policy, PolicyError, PolicyText},
    },
    ports::database::{DatabaseError, PolicyStore, ROUND_MAX, in_time, no_database, within},
};

/// How often changes of other servers are read.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);
/// Policies that operators may make, and how long one may be as JSON.
const MADE_MAX: usize = 200;
const DEFINITION_BYTES_MAX: usize = 16 << 10;

/// The policies that hold now.
pub struct Policies {
    configured: Vec<Arc<Policy>>,
    made: RwLock<Vec<Arc<Policy>>>,
    /// Names and definitions of those that were stored and did not hold at the last read: each is logged once until it
    /// changes. Held while they are read: a read that began earlier would put older ones back.
    broken: Mutex<HashSet<(String, String)>>,
    /// Where made ones outlive the process; without it there are none.
    store: Option<Arc<dyn PolicyStore>>,
    clock: Arc<dyn Clock>,
}

impl Policies {
    pub fn new(configured: Vec<Policy>, store: Option<Arc<dyn PolicyStore>>, clock: Arc<dyn Clock>) -> Self {
        let configured = configured.into_iter().map(Arc::new).collect();
        Self { configured, made: RwLock::default(), broken: Mutex::default(), store, clock }
    }

    /// Those that hold now: first those of the settings, each group in the order of its names.
    pub fn all(&self) -> Vec<Arc<Policy>> {
        let made = self.made.read();
        // A name in the settings counts before one that was made earlier.
        let made = made.iter().filter(|policy| !self.is_configured(&policy.name));
        self.configured.iter().chain(made).cloned().collect()
    }

    pub(super) fn by_name(&self, name: &str) -> Option<Arc<Policy>> {
        // A name in the settings counts first, as in `all`. Asked for each connection, so nothing else is copied.
        let configured = self.configured.iter().find(|policy| policy.name == name).cloned();
        configured.or_else(|| self.made.read().iter().find(|policy| policy.name == name).cloned())
    }

    /// Whether a policy is of the settings, and cannot be changed while the server runs.
    pub fn is_configured(&self, name: &str) -> bool {
        self.configured.iter().any(|policy| policy.name == name)
    }

    /// Makes a policy, or another one in place of the one of that name; returns the name. It holds from the next
    /// connection on, in sandboxes that have begun too.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what it cannot be, [`Code::DatabaseUnavailable`].
    pub async fn put(&self, name: &str, text: &PolicyText) -> Result<String, Failure> {
        if let Some((list, _, most)) = text.lists().into_iter().find(|(_, count, most)| count > most) {
            return Err(Failure::argument(list, format!("it has more than {most} items: make several policies")));
        }
        let policy = Policy::parse(name, text).map_err(|why| match why {
            // Members of a request are in camel case.
            PolicyError::Bytes => Failure::argument("bytesPerMinute", why),
            _ => Failure::argument(why.field(), &why),
        })?;
        if self.is_configured(&policy.name) {
            let why = format!("`{}` is in the server's settings: change it there", policy.name);
            return Err(Failure::argument("name", why));
        }
        if self.by_name(&policy.name).is_none() && self.made.read().len() >= MADE_MAX {
            return Err(Failure::argument("name", format!("there are {MADE_MAX} policies already: delete one")));
        }
        if serde_json::to_vec(text).is_ok_and(|json| json.len() > DEFINITION_BYTES_MAX) {
            let why = format!("A policy has at most {DEFINITION_BYTES_MAX} bytes as JSON: make several of it.");
            return Err(Failure::new(Code::InvalidArgument, why));
        }
        in_time(self.store()?.put_policy(&policy.name, text, self.clock.unix_ms())).await?;
        self.load().await?;
        Ok(policy.name)
    }

    /// Deletes a policy that was made, by a name as [`Self::put`] takes it; returns the name. Connections that there
    /// are go on.
    ///
    /// # Errors
    /// [`Code::NotFound`] for one that was not made, [`Code::DatabaseUnavailable`].
    pub async fn remove(&self, name: &str) -> Result<String, Failure> {
        let name = name.to_ascii_lowercase();
        if !in_time(self.store()?.remove_policy(&name)).await? {
            let why = "There is no such policy, or it is in the server's settings.";
            return Err(Failure::new(Code::NotFound, why));
        }
        self.load().await?;
        Ok(name)
    }

    /// Reads those of the database.
    ///
    /// # Errors
    /// When it does not answer; those that were read before go on.
    pub async fn load(&self) -> Result<(), DatabaseError> {
        let Some(store) = &self.store else { return Ok(()) };
        let mut broken = self.broken.lock().await;
        let rows = within(ROUND_MAX, store.policies()).await?;
        let logged = mem::take(&mut *broken);
        let mut read = Vec::new();
        for row in rows {
            let (name, definition) = &row;
            let parsed = serde_json::from_str(definition).map_err(|error| error.to_string());
            let why = |error: PolicyError| format!("{}: {error}", error.field());
            let policy = parsed.and_then(|text| Policy::parse(name, &text).map_err(why));
            match policy {
                Ok(policy) => read.push(Arc::new(policy)),
                Err(error) => {
                    if !logged.contains(&row) {
                        warn!(name, error, "a stored network policy does not hold");
                    }
                    broken.insert(row);
                }
            }
        }
        *self.made.write() = read;
        Ok(())
    }

    /// Reads what other servers changed, until the server stops.
    pub async fn follow(&self, stop: CancellationToken) {
        let mut ticks = every(FOLLOW_EVERY);
        let mut was_away = false;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Some(read) = stop.run_until_cancelled(self.load()).await else { return };
            if let (Err(error), false) = (&read, was_away) {
                warn!(%error, "network policies are not read from the database; those that are known go on");
            }
            was_away = read.is_err();
        }
    }

    fn store(&self) -> Result<&Arc<dyn PolicyStore>, Failure> {
        self.store.as_ref().ok_or_else(no_database)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::domain::clock::ManualClock;

    /// Its next read takes long.
    struct SlowStore {
        rows: RwLock<Vec<(String, String)>>,
        takes: Duration,
        is_slow: AtomicBool,
    }

    impl SlowStore {
        fn taking(takes: Duration) -> Arc<Self> {
            Arc::new(Self { rows: RwLock::default(), takes, is_slow: AtomicBool::new(true) })
        }
    }

    #[async_trait]
    impl PolicyStore for SlowStore {
        async fn policies(&self) -> Result<Vec<(String, String)>, DatabaseError> {
            let rows = self.rows.read().clone();
            if self.is_slow.swap(false, Ordering::Relaxed) {
                sleep(self.takes).await;
            }
            Ok(rows)
        }

        async fn put_policy(&self, name: &str, policy: &PolicyText, _at_unix_ms: i64) -> Result<(), DatabaseError> {
            let row = (name.to_owned(), serde_json::to_string(policy).expect("JSON"));
            self.rows.write().push(row);
            Ok(())
        }

        async fn remove_policy(&self, _name: &str) -> Result<bool, DatabaseError> {
            Ok(false)
        }
    }

    fn text() -> PolicyText {
        PolicyText { hosts: vec!["a.example".to_owned()], ..PolicyText::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_never_answered_is_given_up() {
        let store = SlowStore::taking(Duration::from_hours(24));
        store.put_policy("web", &text(), 1).await.expect("it is stored");
        let policies = Arc::new(Policies::new(Vec::new(), Some(store.clone()), Arc::new(ManualClock::at(1))));
        let (follower, stop) = (Arc::clone(&policies), CancellationToken::new());
        let stopped = stop.clone();
        let following = tokio::spawn(async move { follower.follow(stopped).await });
        sleep(ROUND_MAX + FOLLOW_EVERY * 2).await;
        assert!(policies.by_name("web").is_some(), "the next round reads");
        store.is_slow.store(true, Ordering::Relaxed);
        sleep(FOLLOW_EVERY * 2).await;
        assert!(!store.is_slow.load(Ordering::Relaxed), "a round waits");
        stop.cancel();
        timeout(Duration::from_secs(1), following).await.expect("the stop waits for no answer").expect("it ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_began_before_a_change_does_not_undo_it() {
        let store = SlowStore::taking(Duration::from_secs(1));
        let (policies, text) = (Policies::new(Vec::new(), Some(store), Arc::new(ManualClock::at(1))), text());
        let (read, made) = tokio::join!(policies.load(), policies.put("web", &text));
        read.expect("it is read");
        assert_eq!(made.expect("it is made"), "web");
        assert!(policies.by_name("web").is_some());
    }
}
