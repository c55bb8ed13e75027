//! The memory of long answers of one piece, which is held until their clients have read them: bounded in all and for
//! each sender. An answer of several pieces is made while it is read.

use super::AnswerPermit;

/// Answers up to this length are bounded by the number of answers.
const SHORT_BYTES_MAX: u64 = 2 << 20;
/// For all. One sender has half of it.
pub(super) const LONG_BYTES_MAX: usize = 256 << 20;

impl AnswerPermit {
    /// Whether there is memory for an answer of this length until its client has read it.
    pub(in crate::app::listen) fn hold(&mut self, bytes: u64) -> bool {
        let Some(sender) = self.senders.first().filter(|_| bytes > SHORT_BYTES_MAX) else { return true };
        self.held = self.places.long_answers.take(sender, usize::try_from(bytes).unwrap_or(usize::MAX));
        self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::{
        api::http::auth::Class,
        app::{listen::places::Places, options},
        config::Config,
        domain::id::TokenId,
    };

    #[test]
    fn long_answers_of_one_sender_leave_memory_to_others() {
        let all = Places::new(options::listen(&Config::default()));
        let answer = |owner: &str, bytes| {
            let class = Class::Holder { owner: owner.parse().expect("an owner"), token: TokenId::new() };
            let mut permit = all.turn(&class, IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a turn");
            permit.hold(bytes).then_some(permit)
        };
        let long = |owner: &str| std::iter::from_fn(|| answer(owner, 16 << 20)).collect::<Vec<_>>();
        let ann = long("ann");
        assert_eq!(ann.len(), 8);
        assert!(answer("ann", SHORT_BYTES_MAX).is_some(), "a short one needs none");
        let bob = long("bob");
        assert_eq!((bob.len(), long("carol").len()), (8, 0));
        drop(ann);
        assert_eq!(long("carol").len(), 8, "they were read");
        drop(bob);
        assert!(answer("dave", u64::MAX).is_some(), "one fits, however long it is");
    }
}
