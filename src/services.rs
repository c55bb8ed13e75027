//! The rules: which runs may start and when, how a program is run, who cleans up, what clients may do with files.
//!
//! No service names HTTP, a vendor's crate, a setting or an environment variable.

pub mod admin;
pub mod admission;
pub mod backup;
pub mod browser;
mod carrier;
pub mod check;
pub mod containers;
pub mod conversations;
pub mod discovery;
pub mod files;
pub(crate) mod frames;
pub mod history;
pub mod idempotency;
pub mod isolation_check;
pub mod issuer;
pub mod janitor;
pub mod kernels;
pub mod links;
pub mod network;
pub mod packages;
pub mod peers;
pub mod quota;
pub mod registry;
pub mod retention;
pub mod runs;
pub mod sandbox;
pub mod sessions;
pub mod shared_parts;
pub mod shares;
pub mod sign_in;
pub mod skills;
pub mod standby;
pub mod stats;
mod tasks;
pub mod tokens;
pub mod tools;
mod waits;

use tracing::warn;

use crate::{
    domain::{Code, Failure},
    ports::database::DatabaseError,
};

/// Cuts a page to its length: what the next one begins after, where more items than `limit` were found.
fn cut<T, A>(items: &mut Vec<T>, limit: usize, cursor: impl FnOnce(&T) -> A) -> Option<A> {
    let more = items.len() > limit;
    items.truncate(limit);
    items.last().filter(|_| more).map(cursor)
}

/// How many of the items, from the first one on, fit into so many bytes together: at least one.
fn fitting(bytes: impl Iterator<Item = u64>, bytes_max: u64) -> usize {
    let mut sum = 0_u64;
    let fits = |bytes: &u64| {
        sum = sum.saturating_add(*bytes);
        sum <= bytes_max
    };
    bytes.take_while(fits).count().max(1)
}

/// Logs the cause, which clients must not see.
impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        warn!(%error, "the database did not answer");
        Failure::new(Code::DatabaseUnavailable, "The server's database does not answer: try again in a moment.")
    }
}
