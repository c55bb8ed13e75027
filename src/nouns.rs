//! The words of the trade as types: identifiers, limits, outcomes, events, time, places in traces and the list of machine codes.
//!
//! Nouns know nothing of engines, HTTP, files or settings; every other room may use them.

pub mod clock;
pub mod error;
pub mod event;
pub mod id;
pub mod limits;
#[cfg(test)]
pub(crate) mod long;
#[cfg(test)]
pub(crate) mod made_up;
pub mod outcome;
pub mod trace;
