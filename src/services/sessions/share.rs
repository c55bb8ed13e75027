//! Whose sessions end when memory is short: max-min fairness between owners. Pure.

use std::{cmp::Reverse, collections::HashMap};

use tokio::time::Instant;

use crate::domain::{Principal, SessionId};

/// Memory that is in use, in bytes.
#[derive(Debug, Clone)]
pub(super) struct MemoryUse {
    /// `None` for a kernel that is started ahead.
    pub owner: Option<Principal>,
    pub bytes: u64,
    /// A session that may end, and when it was used last: it runs no cell.
    pub idle: Option<(SessionId, Instant)>,
}

/// What one more session may use, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// All sessions together.
    pub all: u64,
    /// One owner that has a session already.
    pub owner: u64,
}

/// Why there is no room for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoCapacity {
    /// No session may end for it.
    #[error(
        "The memory for sessions is in use, by sessions that run a cell or by owners that hold no more of it than you \
         would: close a session of your own, or try again later."
    )]
    Memory,
    /// The owner holds its share, and all its sessions are busy.
    #[error(
        "Your sessions use your share of the memory for sessions, and each runs a cell: close one, or wait until a \
         cell has ended."
    )]
    Share,
}

/// The sessions that end for one more of `bytes` of an owner; none where there is room. Where they would not suffice,
/// none ends.
///
/// One that ends is the least recently used of the owner who holds the most, among those who hold more than this owner
/// would hold then, or as much where this owner has none; where there is none, the least recently used one of this
/// owner.
pub(super) fn ends(
    mut held: Vec<MemoryUse>,
    who: &Principal,
    bytes: u64,
    limits: Limits,
) -> Result<Vec<SessionId>, NoCapacity> {
    let mut ended = Vec::new();
    loop {
        let mut sums: HashMap<&Principal, u64> = HashMap::new();
        for holding in &held {
            if let Some(owner) = &holding.owner {
                *sums.entry(owner).or_default() += holding.bytes;
            }
        }
        let own = sums.get(who).copied().unwrap_or_default();
        let then = own.saturating_add(bytes);
        let is_over_share = own > 0 && then > limits.owner;
        let all: u64 = held.iter().map(|holding| holding.bytes).sum();
        if !is_over_share && all.saturating_add(bytes) <= limits.all {
            return Ok(ended);
        }
        // Those of others by what their owner holds, then one's own.
        let rank = |owner: &Principal| {
            if owner == who {
                return Some(0);
            }
            // One who has no session gets one, as long as any is idle.
            let is_enough = |sum: &u64| *sum > then || (own == 0 && *sum == then);
            sums.get(owner).copied().filter(|sum| !is_over_share && is_enough(sum))
        };
        let next = held
            .iter()
            .enumerate()
            .filter_map(|(at, holding)| {
                let (session, used) = holding.idle?;
                let rank = rank(holding.owner.as_ref()?)?;
                Some((Reverse(rank), used, session, at))
            })
            .min();
        let Some((.., session, at)) = next else {
            return Err(if is_over_share { NoCapacity::Share } else { NoCapacity::Memory });
        };
        ended.push(session);
        held.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Model {
        held: Vec<MemoryUse>,
        begun: Instant,
    }

    impl Model {
        /// Sessions by owner, bytes and, for an idle one, when it was used last.
        fn of(sessions: &[(&str, u64, Option<u64>)]) -> Self {
            let begun = Instant::now();
            let held = sessions.iter().map(|&(owner, bytes, used)| MemoryUse {
                owner: Some(owner.parse().expect("an owner")),
                bytes,
                idle: used.map(|used| (SessionId::new(), begun + Duration::from_secs(used))),
            });
            Self { held: held.collect(), begun }
        }

        /// When those that end were used last.
        fn ends(&self, who: &str, bytes: u64, limits: Limits) -> Result<Vec<u64>, NoCapacity> {
            let ended = ends(self.held.clone(), &who.parse().expect("an owner"), bytes, limits)?;
            let idle = || self.held.iter().filter_map(|holding| holding.idle);
            let used = |id: SessionId| idle().find(|(session, _)| *session == id).map(|(_, used)| used - self.begun);
            Ok(ended.into_iter().filter_map(used).map(|used| used.as_secs()).collect())
        }
    }

    const FOUR: Limits = Limits { all: 4, owner: 3 };

    #[test]
    fn the_owner_who_holds_the_most_gives_up_its_least_recently_used() {
        let model = Model::of(&[("ann", 1, Some(3)), ("ann", 1, Some(2)), ("ann", 1, None), ("bob", 1, Some(1))]);
        assert_eq!(model.ends("eve", 1, FOUR), Ok(vec![2]), "not Bob's, which is older");
        assert_eq!(model.ends("bob", 1, FOUR), Ok(vec![2]));
        assert_eq!(model.ends("ann", 1, FOUR), Ok(vec![2]), "one's own");
    }

    #[test]
    fn an_owner_keeps_what_the_asking_one_would_hold_as_well() {
        let model = Model::of(&[("ann", 1, Some(1)), ("ann", 1, Some(2)), ("bob", 1, Some(3)), ("bob", 1, Some(4))]);
        assert_eq!(model.ends("ann", 1, FOUR), Ok(vec![1]), "one's own");
        assert_eq!(model.ends("bob", 1, FOUR), Ok(vec![3]), "one's own");
        assert_eq!(model.ends("eve", 1, FOUR), Ok(vec![1]));
        assert_eq!(model.ends("eve", 2, FOUR), Ok(vec![1, 3]), "as many as each has, since she has none");
        assert_eq!(model.ends("eve", 3, FOUR), Err(NoCapacity::Memory), "more than any has");
        let busy = Model::of(&[("ann", 2, None), ("bob", 2, Some(1))]);
        assert_eq!(busy.ends("ann", 1, Limits { all: 4, owner: 4 }), Err(NoCapacity::Memory));
    }

    #[test]
    fn no_session_ends_where_that_makes_no_room() {
        let model = Model::of(&[("ann", 1, Some(1)), ("ann", 3, None)]);
        assert_eq!(model.ends("bob", 2, FOUR), Err(NoCapacity::Memory));
        assert_eq!(model.ends("bob", 1, FOUR), Ok(vec![1]));
        assert_eq!(Model::of(&[]).ends("bob", 5, FOUR), Err(NoCapacity::Memory));
    }

    #[test]
    fn several_end_for_a_large_one() {
        let many: Vec<_> = (0..8).map(|n| ("ann", 1, Some(n))).collect();
        let limits = Limits { all: 8, owner: 6 };
        assert_eq!(Model::of(&many).ends("bob", 3, limits), Ok(vec![0, 1, 2]));
    }

    #[test]
    fn an_owner_exceeds_its_share_by_no_second_session() {
        let model = Model::of(&[("ann", 2, Some(1)), ("ann", 1, Some(2))]);
        assert_eq!(model.ends("ann", 1, FOUR), Ok(vec![1]), "though there is room");
        assert_eq!(model.ends("bob", 1, FOUR), Ok(vec![]));
        let busy = Model::of(&[("ann", 3, None)]);
        assert_eq!(busy.ends("ann", 1, FOUR), Err(NoCapacity::Share));
        assert_eq!(Model::of(&[]).ends("ann", 4, FOUR), Ok(vec![]), "one is always allowed");
    }

    #[test]
    fn memory_of_no_owner_is_in_use() {
        let mut model = Model::of(&[("ann", 2, Some(1))]);
        model.held.push(MemoryUse { owner: None, bytes: 2, idle: None });
        assert_eq!(model.ends("ann", 1, Limits { all: 4, owner: 4 }), Ok(vec![1]));
    }
}
