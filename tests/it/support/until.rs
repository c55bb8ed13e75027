//! Waits for a state of something that cannot be subscribed to: a file of a browser, a process that starts.

use std::time::Duration;

use tokio::time::{interval, timeout};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Returns once `holds` does; fails the test after a minute.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let watch = async {
        let mut ticks = interval(LOOK_EVERY);
        loop {
            ticks.tick().await;
            if holds().await {
                return;
            }
        }
    };
    timeout(Duration::from_mins(1), watch).await.unwrap_or_else(|_| panic!("it never came to be: {what}"));
}
