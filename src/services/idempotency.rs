//! Idempotency keys: a repeated request returns the run that the first one began.
//!
//! A key is kept for a day and never dropped earlier, so a program is not run twice. Keys are therefore bounded by
//! shares: of a principal, and in it of a conversation. Knows no HTTP: a key is a text, a request is a digest.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::domain::{
    error::{Code, Failure},
    id::{ConversationId, RunId},
    owner::Principal,
};

/// Keys of one principal, and of one conversation.
const KEYS_MAX: usize = 16_384;
const CONVERSATION_KEYS_MAX: usize = 2048;
const AGE_MAX: Duration = Duration::from_hours(24);

/// A digest of a request's body.
pub type Digest = [u8; 32];

/// The keys of known runs of all principals, which are bounded by the number of tokens.
#[derive(Default)]
pub struct Idempotency(Mutex<HashMap<Principal, Keys>>);

#[derive(Default)]
struct Keys {
    known: HashMap<Arc<str>, (Digest, RunId)>,
    /// Oldest first.
    order: VecDeque<(Instant, Arc<str>, Option<ConversationId>)>,
    of_conversation: HashMap<ConversationId, usize>,
}

pub enum Once<T> {
    /// The run was begun by this request.
    New(T),
    /// The run was begun by an earlier, identical request.
    Again(RunId),
}

impl Idempotency {
    /// Whether a run is known for this key.
    pub fn knows(&self, who: &Principal, key: &str) -> bool {
        self.keys().get_mut(who).is_some_and(|keys| keys.fresh().known.contains_key(key))
    }

    /// Begins a run, unless the same request began one before. `conversation` is the one that the request names.
    ///
    /// # Errors
    /// [`Code::IdempotencyKeyReused`] when the key was used with another request, [`Code::RateLimited`] when the
    /// principal or the conversation has too many keys; otherwise those of `begin`, and then the key is not kept.
    pub fn once<T>(
        &self,
        who: &Principal,
        conversation: Option<&ConversationId>,
        (key, digest): (String, Digest),
        begin: impl FnOnce() -> Result<(RunId, T), Failure>,
    ) -> Result<Once<T>, Failure> {
        // The lock is held while the run begins, which never waits, so two concurrent requests begin one run.
        let mut all = self.keys();
        let keys = all.entry(who.clone()).or_default().fresh();
        match keys.known.get(key.as_str()) {
            Some((known, run)) if *known == digest => return Ok(Once::Again(*run)),
            Some(_) => {
                let why = "Idempotency-Key: it was used with another request: choose a new key for each request.";
                return Err(Failure::new(Code::IdempotencyKeyReused, why).about("Idempotency-Key"));
            }
            None => keys.check_room(conversation)?,
        }
        let (run, new) = begin()?;
        keys.add(key.into(), digest, run, conversation.cloned());
        Ok(Once::New(new))
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Principal, Keys>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    /// Without those that have expired.
    fn fresh(&mut self) -> &mut Self {
        while let Some((_, key, conversation)) = self.order.pop_front_if(|(at, ..)| at.elapsed() > AGE_MAX) {
            self.known.remove(&key);
            if let Some(id) = conversation
                && let Some(count) = self.of_conversation.get_mut(&id)
            {
                *count -= 1;
                if *count == 0 {
                    self.of_conversation.remove(&id);
                }
            }
        }
        self
    }

    fn check_room(&self, conversation: Option<&ConversationId>) -> Result<(), Failure> {
        let full = |whose, max| {
            let mut of_it = self.order.iter().filter(|(.., id)| whose == "token" || id.as_ref() == conversation);
            let wait = of_it.next().map_or(AGE_MAX, |(at, ..)| AGE_MAX.saturating_sub(at.elapsed()));
            let why = format!(
                "Idempotency-Key: this {whose} has begun {max} runs with a key within 24 hours, which is the most: \
                 send the request without a key, or later."
            );
            Err(Failure::new(Code::RateLimited, why).about("Idempotency-Key").retry_after(wait.as_secs() + 1))
        };
        let of_it = conversation.and_then(|id| self.of_conversation.get(id)).copied().unwrap_or_default();
        match (of_it, self.order.len()) {
            (CONVERSATION_KEYS_MAX.., _) => full("conversation", CONVERSATION_KEYS_MAX),
            (_, KEYS_MAX..) => full("token", KEYS_MAX),
            _ => Ok(()),
        }
    }

    fn add(&mut self, key: Arc<str>, digest: Digest, run: RunId, conversation: Option<ConversationId>) {
        if let Some(id) = &conversation {
            *self.of_conversation.entry(id.clone()).or_default() += 1;
        }
        self.known.insert(Arc::clone(&key), (digest, run));
        self.order.push_back((Instant::now(), key, conversation));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_of_others_never_drop_a_key_before_a_day() {
        let (keys, who) = (Idempotency::default(), Principal::default());
        let once = |who: &Principal, conversation: &str, key: String| {
            let conversation: ConversationId = conversation.parse().expect("an id");
            let begun = keys.once(who, Some(&conversation), (key, [0; 32]), || Ok((RunId::new(), ())));
            begun.map(|once| matches!(once, Once::New(()))).map_err(|failure| (failure.code, failure.retry_after_s))
        };
        assert_eq!(once(&who, "first", "mine".to_owned()), Ok(true));
        advance(Duration::from_hours(1)).await;
        for n in 0..CONVERSATION_KEYS_MAX {
            assert_eq!(once(&who, "greedy", format!("greedy-{n}")), Ok(true));
        }
        let refused = Err((Code::RateLimited, Some(24 * 3600 + 1)));
        assert_eq!(once(&who, "greedy", "one more".to_owned()), refused);
        assert_eq!(once(&who, "greedy", "greedy-0".to_owned()), Ok(false), "a known key is still answered");
        assert_eq!(once(&who, "other", "another".to_owned()), Ok(true));
        for n in 0.. {
            if once(&who, &format!("c{}", n / 1000), format!("many-{n}")).is_err() {
                break;
            }
            assert!(n < KEYS_MAX, "a principal has a share");
        }
        assert_eq!(once(&who, "first", "mine".to_owned()), Ok(false), "the first key is kept");
        assert_eq!(once(&"second".parse().expect("a name"), "first", "mine".to_owned()), Ok(true));
        advance(AGE_MAX.saturating_sub(Duration::from_secs(3599))).await;
        assert!(!keys.knows(&who, "mine") && keys.knows(&who, "greedy-0"));
        advance(Duration::from_hours(1)).await;
        assert!(!keys.knows(&who, "greedy-0"));
        let left = &keys.keys()[&who];
        assert!(left.of_conversation.is_empty() && left.known.is_empty() && left.order.is_empty());
    }
}
