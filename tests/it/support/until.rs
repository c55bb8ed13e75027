//! Waits for a state of something that cannot be subscribed to: a file of a browser, a process that starts.

use std::time::Duration;

use tokio::time::{error::Elapsed, sleep, timeout};

/// The pause after the first look, and the longest: each is a quarter longer than the one before. A look asks a browser
/// or an engine, whose work would slow down what the test waits for.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(60);

/// How long a state may take to come to be, on a machine that is busy with something else.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Returns once `holds` does; fails the test when it takes too long.
pub async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    within(PATIENCE, holds).await.unwrap_or_else(|_| panic!("it never came to be: {what}"));
}

/// Looks again and again whether `holds`, for so long.
pub async fn within(patience: Duration, mut holds: impl AsyncFnMut() -> bool) -> Result<(), Elapsed> {
    let watch = async {
        let mut pause = PAUSE;
        while !holds().await {
            sleep(pause).await;
            pause = (pause * 5 / 4).min(PAUSE_MAX);
        }
    };
    timeout(patience, watch).await
}
