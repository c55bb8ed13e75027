//! A tool server's description of itself, read at the first need and cached while it is valid. Callers that arrive
//! during a read wait for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

use crate::ports::tools::UpstreamError;

/// How long it counts where the server does not say that it has changed.
const FRESH: Duration = Duration::from_mins(5);
/// How long a read that failed is not repeated, so that callers that waited for it do not wait for as many reads.
const FAILED: Duration = Duration::from_secs(2);

/// What a read gave, and when.
type Read<T> = (Instant, Result<Arc<T>, UpstreamError>);

pub(super) struct Known<T> {
    last: Mutex<Option<Read<T>>>,
    /// The server says that it is another now.
    is_stale: Arc<AtomicBool>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { last: Mutex::new(None), is_stale: Arc::default() }
    }
}

impl<T> Known<T> {
    /// Says that what is known does not count any more.
    pub(super) fn forgetter(&self) -> Arc<dyn Fn() + Send + Sync> {
        let is_stale = Arc::clone(&self.is_stale);
        Arc::new(move || is_stale.store(true, Ordering::Release))
    }

    /// As it is now, as far as the server said so; `read` asks it.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) async fn get(
        &self,
        read: impl Future<Output = Result<T, UpstreamError>>,
    ) -> Result<Arc<T>, UpstreamError> {
        let mut last = self.last.lock().await;
        // Before it is read again: the read may fail, or be dropped with its caller.
        if self.is_stale.swap(false, Ordering::AcqRel) {
            *last = None;
        }
        if let Some((at, known)) = &*last
            && at.elapsed() < if known.is_ok() { FRESH } else { FAILED }
        {
            return known.clone();
        }
        let known = read.await.map(Arc::new);
        *last = Some((Instant::now(), known.clone()));
        known
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{advance, sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_stale_stays_stale_until_it_was_read() {
        let known = Known::default();
        assert_eq!(known.get(ready(Ok(1))).await.as_deref(), Ok(&1));
        assert_eq!(known.get(ready(Ok(2))).await.as_deref(), Ok(&1));
        known.forgetter()();
        // A caller that gives up.
        assert!(timeout(Duration::from_secs(1), known.get(pending())).await.is_err());
        assert_eq!(known.get(ready(Ok(2))).await.as_deref(), Ok(&2));
        advance(FRESH).await;
        assert_eq!(known.get(ready(Ok(3))).await.as_deref(), Ok(&3));
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_waited_fail_together() {
        let (known, late) = (Known::<i32>::default(), UpstreamError::Late(Duration::from_secs(30)));
        let begun = Instant::now();
        let read = async || {
            sleep(Duration::from_secs(30)).await;
            Err(UpstreamError::Late(Duration::from_secs(30)))
        };
        let answers = futures_util::future::join_all((0..10).map(|_| known.get(read()))).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        assert!(answers.iter().all(|answer| answer.as_ref() == Err(&late)));
        advance(FAILED).await;
        assert_eq!(known.get(ready(Ok(1))).await.as_deref(), Ok(&1));
    }
}
