//! Which tokens are accepted, what counts as a use of one, how wrong ones are delayed, and which ends a reader gets
//! that is overtaken.

use std::{collections::HashSet, sync::atomic::Ordering};

use super::*;
use crate::{
    adapters::database::Database,
    domain::{
        Code,
        clock::{ManualClock, SystemClock},
    },
};

/// A database of which every call fails.
pub(crate) fn no_database() -> Database {
    Database::unprepared().expect("no database")
}

impl Tokens {
    /// Those of a test that stores none.
    pub(crate) fn unstored(clock: Arc<dyn Clock>) -> Self {
        Self::new(&"0123456789abcdef".to_owned().into(), Arc::new(no_database()), clock)
    }
}

#[test]
fn authorize_accepts_the_token_only() {
    let tokens = Tokens::unstored(Arc::new(SystemClock));
    for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef", "BEARER   0123456789abcdef "] {
        let caller = tokens.authorize(good.as_bytes()).expect(good);
        assert_eq!(caller.owner, Principal::default(), "{good}");
    }
    let bad: [&[u8]; 12] = [
        b"",
        b"Bearer",
        b"Bearer ",
        b"0123456789abcdef",
        b"Basic 0123456789abcdef",
        b"Bearer 0123456789abcde",
        b"Bearer 0123456789abcdef0",
        b"Bearer 0123456789abcdeF",
        b"Bearer 0123456789abcdef\0",
        b"Bearer\t0123456789abcdef",
        b"Bearer 0123456789abcdef, Bearer 0123456789abcdef",
        b"Bearer \xff\xfe",
    ];
    for header in bad {
        assert!(tokens.authorize(header).is_none(), "{header:?}");
    }
    assert_eq!(format!("{tokens:?}"), "Tokens(…)");
}

#[test]
fn a_program_or_cell_is_a_use_of_its_token_while_that_is_valid() {
    let clock = Arc::new(ManualClock::at(1_800_000_000));
    let tokens = Tokens::unstored(clock.clone());
    let owner: Principal = "ann".parse().expect("an owner");
    let record = TokenRecord { owner, prefix: "mcps_".to_owned(), digest: [1; 32], ..blank_record() };
    tokens.learn(vec![record.clone()]);
    let (id, who) = (record.id, record.owner.by(record.id));
    let language: Language = "python".parse().expect("a language");
    let used = || tokens.known.read().by_id(id).map(|token| token.used.load(Ordering::Relaxed));
    drop(tokens.begin(&who, &language).expect("a permit"));
    assert_eq!(used(), Some(1_800_000_000_000));
    clock.set(1_800_000_060);
    drop(tokens.begin_within(&who, &language).expect("a permit"));
    assert_eq!(used(), Some(1_800_000_060_000));
    tokens.learn(vec![TokenRecord { revoked_unix_ms: Some(1), ..record }]);
    clock.set(1_800_000_120);
    let begun = [tokens.begin(&who, &language).map(drop), tokens.check(&who, &language)];
    assert!(begun.iter().all(|begun| begun.as_ref().is_err_and(|why| why.code == Code::Unauthorized)), "{begun:?}");
    assert_eq!(used(), Some(1_800_000_060_000));
}

#[test]
fn wrong_tokens_are_delayed_by_address_and_in_all_in_bounded_memory() {
    let tokens = Tokens::unstored(Arc::new(SystemClock));
    let address = |n: u32| IpAddr::from(n.to_be_bytes());
    let delays: Vec<_> = (0..40).map(|_| tokens.refused(address(1))).collect();
    assert!(delays[..10].iter().all(Duration::is_zero), "{delays:?}");
    assert!(delays[12..].iter().all(|delay| (Duration::from_secs(1)..=DELAY_MAX).contains(delay)), "{delays:?}");
    assert!(tokens.refused(address(2)).is_zero(), "another address");
    let began = std::time::Instant::now();
    let many: Vec<_> = (0..20_000).map(|n| tokens.refused(address(n))).collect();
    // Five a second are answered at once again.
    let at_once = many[200..].iter().filter(|delay| delay.is_zero()).count() as u64;
    assert!(at_once <= 5 * (began.elapsed().as_secs() + 1), "each address is new, but together they are many");
    assert!(tokens.wrong_of.len() <= ADDRESSES_MAX + 1, "{}", tokens.wrong_of.len());
}

#[tokio::test]
async fn a_reader_that_is_overtaken_gets_every_token_that_has_ended() {
    let tokens = Arc::new(Tokens::unstored(Arc::new(SystemClock)));
    let record = |n: usize| TokenRecord { digest: digest(&n.to_be_bytes()), ..blank_record() };
    // One more than is kept, beside the one that is read in time.
    let records: Vec<_> = (0..ENDS_MAX + 2).map(record).collect();
    tokens.learn(records.clone());
    let mut ends = tokens.ends();
    let revoked = |record: TokenRecord| TokenRecord { revoked_unix_ms: Some(1), ..record };
    tokens.learn(vec![revoked(records[1].clone())]);
    assert_eq!(ends.next().await, Some(vec![records[1].id]));
    tokens.learn(records.iter().cloned().map(revoked).collect());
    let ended: HashSet<_> = ends.next().await.expect("ends").into_iter().collect();
    assert!(records.iter().all(|record| ended.contains(&record.id)), "the first was overtaken");
}
