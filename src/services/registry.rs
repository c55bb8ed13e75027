//! What operators define: in the settings, and while the server runs, which the database keeps. A definition in the
//! settings counts before a stored one of its name, and cannot be changed while the server runs.
//!
//! All are in memory, so no run and no connection waits for the database. Knows neither policies nor tool servers.
//!
//! ```text
//! follow ── one task: what other servers changed
//! ```

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use parking_lot::RwLock;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    domain::{Clock, Code, Failure, clock::every},
    ports::database::{DatabaseError, DefinitionKind, DefinitionStore, ROUND_MAX, StoredDefinition, in_time, within},
};

/// How often changes of other servers are read.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);

/// What one kind of definition is read into.
pub trait Definition: Send + Sync + Sized + 'static {
    const KIND: DefinitionKind;
    /// What messages call one.
    const NOUN: &'static str;
    /// How many operators may make, and how long one may be as JSON.
    const MADE_MAX: usize;
    const DEFINITION_BYTES_MAX: usize;
    /// What each needs beside its text.
    type Parts: Send + Sync;

    fn name(&self) -> &str;

    /// Reads a stored one; `earlier` is the one of that name that holds now.
    ///
    /// # Errors
    /// What to correct, for the log.
    fn read(stored: &StoredDefinition, earlier: Option<&Arc<Self>>, parts: &Self::Parts) -> Result<Arc<Self>, String>;

    /// It does not hold any more: another one replaced it, or it was removed.
    fn ended(&self, _is_removed: bool) {}
}

/// The definitions of one kind that hold now.
pub struct Registry<T: Definition> {
    configured: Vec<Arc<T>>,
    made: RwLock<Vec<Arc<T>>>,
    /// Names and definitions of those that were stored and did not hold at the last read: each is logged once until it
    /// changes. Held while they are read: a read that began earlier would put older ones back.
    broken: Mutex<HashSet<(String, String)>>,
    store: Arc<dyn DefinitionStore>,
    clock: Arc<dyn Clock>,
    pub(super) parts: T::Parts,
}

impl<T: Definition> Registry<T> {
    pub(super) fn with(
        configured: impl IntoIterator<Item = T>,
        store: Arc<dyn DefinitionStore>,
        clock: Arc<dyn Clock>,
        parts: T::Parts,
    ) -> Self {
        let configured = configured.into_iter().map(Arc::new).collect();
        Self { configured, made: RwLock::default(), broken: Mutex::default(), store, clock, parts }
    }

    /// Those that hold now: first those of the settings, each group in the order of its names.
    pub fn all(&self) -> Vec<Arc<T>> {
        let made = self.made.read();
        self.configured.iter().chain(made.iter().filter(|one| !self.is_configured(one.name()))).cloned().collect()
    }

    /// The one of this name; makes no list.
    pub(super) fn by_name(&self, name: &str) -> Option<Arc<T>> {
        let configured = self.configured.iter().find(|one| one.name() == name).cloned();
        configured.or_else(|| self.made.read().iter().find(|one| one.name() == name).cloned())
    }

    /// Whether one is of the settings, and cannot be changed while the server runs.
    pub fn is_configured(&self, name: &str) -> bool {
        self.configured.iter().any(|one| one.name() == name)
    }

    /// Stores one, in place of the one of that name, which `secret` is given.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for one of the settings, one too many or too long; [`Code::DatabaseUnavailable`].
    pub(super) async fn store(
        &self,
        name: &str,
        text: &(impl Serialize + Sync),
        secret: impl FnOnce(Option<&T>) -> String + Send,
    ) -> Result<(), Failure> {
        let noun = T::NOUN;
        if self.is_configured(name) {
            return Err(Failure::argument("name", format!("`{name}` is in the server's settings: change it there")));
        }
        let definition = serde_json::to_string(text).map_err(|error| DatabaseError(error.to_string()))?;
        if definition.len() > T::DEFINITION_BYTES_MAX {
            let why = format!("A {noun} has at most {} bytes as JSON: make several of it.", T::DEFINITION_BYTES_MAX);
            return Err(Failure::new(Code::InvalidArgument, why));
        }
        // What another server has just stored is not known here yet: without its secret, that would be lost.
        in_time(self.load()).await?;
        let made = self.made.read().clone();
        let known = made.iter().find(|one| one.name() == name).map(Arc::as_ref);
        if known.is_none() && made.len() >= T::MADE_MAX {
            return Err(Failure::argument("name", format!("there are {} already: delete one", T::MADE_MAX)));
        }
        let stored = StoredDefinition { name: name.to_owned(), definition, secret: secret(known) };
        in_time(self.store.put_definition(T::KIND, &stored, self.clock.unix_ms())).await?;
        Ok(self.load().await?)
    }

    /// Deletes one that was made, by the name that is stored.
    ///
    /// # Errors
    /// [`Code::NotFound`] for one that was not made, [`Code::DatabaseUnavailable`].
    pub(super) async fn delete(&self, name: &str) -> Result<(), Failure> {
        if !in_time(self.store.remove_definition(T::KIND, name)).await? {
            let why = format!("There is no such {}, or it is in the server's settings.", T::NOUN);
            return Err(Failure::new(Code::NotFound, why));
        }
        Ok(self.load().await?)
    }

    /// Reads those of the database.
    ///
    /// # Errors
    /// When it does not answer; those that were read before go on.
    pub async fn load(&self) -> Result<(), DatabaseError> {
        let mut broken = self.broken.lock().await;
        let rows = within(ROUND_MAX, self.store.definitions(T::KIND)).await?;
        let logged = mem::take(&mut *broken);
        let earlier = self.made.read().clone();
        let mut read = Vec::new();
        for stored in rows {
            let known = earlier.iter().find(|one| one.name() == stored.name);
            match T::read(&stored, known, &self.parts) {
                Ok(one) => read.push(one),
                Err(error) => {
                    let row = (stored.name, stored.definition);
                    if !logged.contains(&row) {
                        warn!(name = row.0, error, "a stored {} does not hold", T::NOUN);
                    }
                    broken.insert(row);
                }
            }
        }
        self.made.write().clone_from(&read);
        for one in earlier.iter().filter(|one| !read.iter().any(|other| Arc::ptr_eq(one, other))) {
            one.ended(!read.iter().any(|other| other.name() == one.name()));
        }
        Ok(())
    }

    /// Reads what other servers changed, until the server stops.
    pub async fn follow(&self, stop: CancellationToken) {
        let mut ticks = every(FOLLOW_EVERY);
        let mut was_away = false;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let Some(read) = stop.run_until_cancelled(self.load()).await else { return };
            if let (Err(error), false) = (&read, was_away) {
                let noun = T::NOUN;
                warn!(%error, noun, "definitions are not read from the database; those that are known go on");
            }
            was_away = read.is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::domain::clock::ManualClock;

    /// A definition without parts: its text holds unless it is `broken`.
    struct Note {
        name: String,
        text: String,
    }

    impl Definition for Note {
        const KIND: DefinitionKind = DefinitionKind::NetworkPolicy;
        const NOUN: &'static str = "note";
        const MADE_MAX: usize = 2;
        const DEFINITION_BYTES_MAX: usize = 16;
        type Parts = ();

        fn name(&self) -> &str {
            &self.name
        }

        fn read(stored: &StoredDefinition, earlier: Option<&Arc<Self>>, (): &()) -> Result<Arc<Self>, String> {
            let text = stored.definition.clone();
            match earlier.filter(|earlier| earlier.text == text) {
                Some(earlier) => Ok(Arc::clone(earlier)),
                None if text == "\"broken\"" => Err("it is broken".to_owned()),
                None => Ok(Arc::new(Self { name: stored.name.clone(), text })),
            }
        }
    }

    /// Its next read takes long.
    struct SlowStore {
        rows: RwLock<Vec<StoredDefinition>>,
        takes: Duration,
        is_slow: AtomicBool,
    }

    impl SlowStore {
        fn taking(takes: Duration) -> Arc<Self> {
            Arc::new(Self { rows: RwLock::default(), takes, is_slow: AtomicBool::new(true) })
        }
    }

    #[async_trait]
    impl DefinitionStore for SlowStore {
        async fn definitions(&self, _: DefinitionKind) -> Result<Vec<StoredDefinition>, DatabaseError> {
            let rows = self.rows.read().clone();
            if self.is_slow.swap(false, Ordering::Relaxed) {
                sleep(self.takes).await;
            }
            Ok(rows)
        }

        async fn put_definition(
            &self,
            _: DefinitionKind,
            stored: &StoredDefinition,
            _at_unix_ms: i64,
        ) -> Result<(), DatabaseError> {
            let mut rows = self.rows.write();
            rows.retain(|row| row.name != stored.name);
            rows.push(stored.clone());
            Ok(())
        }

        async fn remove_definition(&self, _: DefinitionKind, name: &str) -> Result<bool, DatabaseError> {
            let mut rows = self.rows.write();
            let before = rows.len();
            rows.retain(|row| row.name != name);
            Ok(rows.len() < before)
        }
    }

    fn stored(name: &str, definition: &str) -> StoredDefinition {
        StoredDefinition { name: name.to_owned(), definition: definition.to_owned(), secret: String::new() }
    }

    fn registry(store: &Arc<SlowStore>) -> Registry<Note> {
        let configured = [Note { name: "set".to_owned(), text: "\"a\"".to_owned() }];
        Registry::with(configured, Arc::clone(store) as _, Arc::new(ManualClock::at(1)), ())
    }

    async fn put(notes: &Registry<Note>, name: &str, text: &str) -> Result<(), Failure> {
        notes.store(name, &text, |_| String::new()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_never_answered_is_given_up() {
        let store = SlowStore::taking(Duration::from_hours(24));
        store.put_definition(Note::KIND, &stored("a", "\"a\""), 1).await.expect("it is stored");
        let notes = Arc::new(registry(&store));
        let (follower, stop) = (Arc::clone(&notes), CancellationToken::new());
        let stopped = stop.clone();
        let following = tokio::spawn(async move { follower.follow(stopped).await });
        sleep(ROUND_MAX + FOLLOW_EVERY * 2).await;
        assert!(notes.by_name("a").is_some(), "the next round reads");
        store.is_slow.store(true, Ordering::Relaxed);
        sleep(FOLLOW_EVERY * 2).await;
        assert!(!store.is_slow.load(Ordering::Relaxed), "a round waits");
        stop.cancel();
        timeout(Duration::from_secs(1), following).await.expect("the stop waits for no answer").expect("it ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_began_before_a_change_does_not_undo_it() {
        let store = SlowStore::taking(Duration::from_secs(1));
        let notes = registry(&store);
        let (read, made) = tokio::join!(notes.load(), put(&notes, "a", "a"));
        read.expect("it is read");
        made.expect("it is made");
        assert!(notes.by_name("a").is_some());
    }

    #[tokio::test]
    async fn names_of_the_settings_too_many_and_too_long_ones_are_refused() {
        let store = SlowStore::taking(Duration::ZERO);
        let notes = registry(&store);
        let refused = async |name, text| put(&notes, name, text).await.expect_err("refused").code;
        assert_eq!(refused("set", "b").await, Code::InvalidArgument);
        assert_eq!(refused("a", "longer than sixteen").await, Code::InvalidArgument);
        for name in ["a", "b"] {
            put(&notes, name, "a").await.expect("it is made");
        }
        assert_eq!(refused("c", "a").await, Code::InvalidArgument);
        put(&notes, "a", "b").await.expect("a change adds none");
        notes.delete("b").await.expect("it is deleted");
        assert_eq!(notes.delete("b").await.expect_err("refused").code, Code::NotFound);
        // Another version may have stored one of this name.
        store.put_definition(Note::KIND, &stored("set", "\"b\""), 1).await.expect("it is stored");
        notes.load().await.expect("it is read");
        let all: Vec<_> = notes.all().iter().map(|note| (note.name.clone(), note.text.clone())).collect();
        assert_eq!(all, [("set", "\"a\""), ("a", "\"b\"")].map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[tokio::test]
    async fn one_that_did_not_change_is_the_same_and_a_broken_one_does_not_count() {
        let store = SlowStore::taking(Duration::ZERO);
        let notes = registry(&store);
        put(&notes, "a", "a").await.expect("it is made");
        put(&notes, "b", "b").await.expect("it is made");
        let (a, b) = (notes.by_name("a").expect("one"), notes.by_name("b").expect("one"));
        put(&notes, "b", "c").await.expect("it is changed");
        assert!(Arc::ptr_eq(&a, &notes.by_name("a").expect("one")));
        assert!(!Arc::ptr_eq(&b, &notes.by_name("b").expect("one")));
        put(&notes, "b", "broken").await.expect("it is stored");
        assert!(notes.by_name("b").is_none());
    }
}
