//! How large conversations are. A measurement walks a folder, so each call measures for a bounded time, and what was
//! measured is kept; the next call goes on.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    domain::{ConversationKey, Failure, Principal},
    ports::storage::{LastUse, Storage, Usage},
    services::cut,
};

/// How long one call measures.
const WORK_MAX: Duration = Duration::from_secs(1);
/// How long a measurement of a conversation that is in use holds.
const FRESH: Duration = Duration::from_secs(30);
/// A conversation that was not used for so long is not measured again, in seconds.
const QUIET_S: i64 = 3600;

/// Measured conversations; those that are gone are forgotten at the next call.
#[derive(Default)]
pub(super) struct Sizes(Mutex<HashMap<ConversationKey, Size>>);

#[derive(Clone, Copy)]
struct Size {
    /// `None` where the folder cannot be read.
    bytes: Option<u64>,
    used_unix_s: i64,
    measured_unix_s: i64,
    measured: Instant,
}

/// Every conversation, with its size as far as that is known.
pub struct Sized(Vec<(LastUse, Option<u64>)>);

/// Several conversations together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    pub conversations: usize,
    /// Bytes of those that were measured.
    pub bytes: u64,
    pub unmeasured: usize,
}

/// A page of conversations.
#[derive(Debug, Clone)]
pub struct SizePage {
    /// The largest first, then by owner and id; those that were not measured last.
    pub conversations: Vec<(LastUse, Option<u64>)>,
    /// Where the next page begins, when there is more.
    pub after: Option<SizeCursor>,
    /// The sum over all pages.
    pub all: Measured,
}

/// A position in the order of sizes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeCursor(Reverse<Option<u64>>, ConversationKey);

impl fmt::Display for SizeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Reverse(bytes), key) = self;
        write!(f, "{}.{}/{}", bytes.map_or(String::new(), |bytes| bytes.to_string()), key.owner.name(), key.id)
    }
}

impl FromStr for SizeCursor {
    type Err = &'static str;

    /// The bytes end at the first dot, and no name has a slash.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "it must be the `cursor` of the page before";
        let (bytes, key) = text.split_once('.').ok_or(WRONG)?;
        let bytes = if bytes.is_empty() { None } else { Some(bytes.parse().map_err(|_| WRONG)?) };
        let (owner, id) = key.split_once('/').ok_or(WRONG)?;
        let key = ConversationKey::new(owner.parse().map_err(|_| WRONG)?, id.parse().map_err(|_| WRONG)?);
        Ok(Self(Reverse(bytes), key))
    }
}

impl Sizes {
    /// Blocks on a disk.
    pub(super) fn measure(&self, store: &dyn Storage, now_unix_s: i64) -> Result<Sized, Failure> {
        let uses = store.last_uses()?;
        let end = Instant::now() + WORK_MAX;
        let mut known = self.0.lock();
        let mut kept = HashMap::with_capacity(uses.len());
        for LastUse { unix_s, key } in &uses {
            let before = known.remove(key);
            let holds = |size: &Size| {
                let is_quiet = size.used_unix_s == *unix_s && size.measured_unix_s >= unix_s.saturating_add(QUIET_S);
                is_quiet || size.measured.elapsed() < FRESH
            };
            let now = Instant::now();
            let size = before.filter(|size| holds(size) || now >= end).or_else(|| {
                let bytes = (now < end).then(|| bytes(store, key))?;
                Some(Size { bytes, used_unix_s: *unix_s, measured_unix_s: now_unix_s, measured: now })
            });
            kept.extend(size.map(|size| (key.clone(), size)));
        }
        *known = kept;
        let of = |key: &ConversationKey| known.get(key).and_then(|size| size.bytes);
        Ok(Sized(uses.into_iter().map(|last| (of(&last.key), last)).map(|(bytes, last)| (last, bytes)).collect()))
    }
}

/// What a conversation takes on disk. A disk of its own is not mounted for this.
fn bytes(store: &dyn Storage, key: &ConversationKey) -> Option<u64> {
    let everything = Usage { bytes: u64::MAX, entries: u64::MAX };
    store.resting_bytes(key).or_else(|| store.open(key).ok()??.usage(&everything).ok().map(|usage| usage.bytes))
}

impl Measured {
    fn add(&mut self, bytes: Option<u64>) {
        self.conversations += 1;
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or_default());
        self.unmeasured += usize::from(bytes.is_none());
    }
}

impl Sized {
    pub(super) fn by_owner(&self) -> BTreeMap<Principal, Measured> {
        let mut owners = BTreeMap::<_, Measured>::new();
        for (last, bytes) in &self.0 {
            owners.entry(last.key.owner.clone()).or_default().add(*bytes);
        }
        owners
    }

    pub(super) fn page(self, owner: Option<&Principal>, after: Option<&SizeCursor>, limit: usize) -> SizePage {
        let mut wanted = self.0;
        wanted.retain(|(last, _)| owner.is_none_or(|owner| last.key.owner == *owner));
        let mut all = Measured::default();
        for (_, bytes) in &wanted {
            all.add(*bytes);
        }
        let position = |(last, bytes): &(LastUse, Option<u64>)| SizeCursor(Reverse(*bytes), last.key.clone());
        wanted.retain(|one| after.is_none_or(|after| position(one) > *after));
        wanted.sort_by_cached_key(position);
        let after = cut(&mut wanted, limit, position);
        SizePage { conversations: wanted, after, all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_from_the_largest_to_those_that_were_not_measured() {
        let one = |key: &str, bytes| (LastUse { unix_s: 0, key: key.parse().expect("a key") }, bytes);
        let all = || Sized(vec![one("a", None), one("@ann/b", Some(5)), one("@b.c/a", Some(7)), one("b", Some(5))]);
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = all().page(None, after.as_ref(), 1);
            assert_eq!(page.all, Measured { conversations: 4, bytes: 17, unmeasured: 1 });
            seen.extend(page.conversations.iter().map(|(last, _)| last.key.to_string()));
            // A cursor is a text on its way.
            let Some(next) = page.after.map(|cursor| cursor.to_string().parse().expect("a cursor")) else { break };
            after = Some(next);
        }
        assert_eq!(seen, ["@b.c/a", "@ann/b", "b", "a"]);
        for bad in ["", "5", "5.ann", "x.ann/b", "5.@ann/b", "5.ann/b/c", "5.self-test/b"] {
            assert!(bad.parse::<SizeCursor>().is_err(), "{bad}");
        }
    }
}
