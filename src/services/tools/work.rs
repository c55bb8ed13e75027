//! Work of up to a second that a program or a client can cause: checks by untrusted schemas, and searches.

use tokio::task::spawn_blocking;

use crate::{
    domain::{Code, Failure, Principal},
    services::shares::Shares,
};

/// Blocking threads that one owner has for it: all kinds of work of the server share these threads.
const OWNER_AT_ONCE_MAX: usize = 2;

pub(super) struct Work(Shares<Principal>);

impl Default for Work {
    fn default() -> Self {
        Self(Shares::new(OWNER_AT_ONCE_MAX))
    }
}

impl Work {
    /// Does work on a blocking thread. It counts for its owner until it has ended, also when its caller went away.
    ///
    /// # Errors
    /// [`Code::Internal`] when it panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        owner: &Principal,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let turn = self.0.of(owner).acquire_owned().await;
        let done = spawn_blocking(move || (work(), turn)).await;
        let internal = |_| Failure::new(Code::Internal, "The server could not look at its tools: its log says why.");
        done.map(|(done, _)| done).map_err(internal)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn work_counts_for_its_owner_until_it_ends_also_without_its_caller() {
        let (work, who) = (Work::default(), Principal::default());
        let mut ends = Vec::new();
        for _ in 0..OWNER_AT_ONCE_MAX {
            let (end, wait) = mpsc::channel::<()>();
            ends.push(end);
            assert_eq!(work.run(&who, move || wait.recv().is_ok()).now_or_never(), None, "it has begun");
        }
        assert_eq!(work.run(&who, || 1).now_or_never(), None);
        assert_eq!(work.0.of(&who).available_permits(), 0, "although the callers are gone");
        let other: Principal = "ann".parse().expect("an owner");
        assert_eq!(work.run(&other, || 1).await, Ok(1));
        drop(ends);
        assert_eq!(work.run(&who, || 1).await, Ok(1));
    }
}
