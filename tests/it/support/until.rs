//! Waits for a state of something that cannot be subscribed to: a file of a browser, a process that starts.

use std::time::Duration;

use tokio::time::{error::Elapsed, interval, timeout};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a state may take to come to be, on a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Returns once `holds` does; fails the test when it takes too long.
pub async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    within(PATIENCE, holds).await.unwrap_or_else(|_| panic!("it never came to be: {what}"));
}

/// Looks again and again whether `holds`, for so long.
pub async fn within(patience: Duration, mut holds: impl AsyncFnMut() -> bool) -> Result<(), Elapsed> {
    let watch = async {
        let mut ticks = interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            if holds().await {
                return;
            }
        }
    };
    timeout(patience, watch).await
}
