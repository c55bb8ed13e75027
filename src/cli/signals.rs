//! SIGTERM and SIGINT: the first stops the server in order, or breaks off its start, the second ends the process at
//! once. They are handled from the start on: process 1 of a container has no default action for them.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The number of the next signal.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}

/// A token that is cancelled at the first signal. Sandboxes that are left after the second, or of a start that was
/// broken off, are found by their labels at the next start.
///
/// Spawns one task, which lives as long as the process.
pub(super) fn stop_on_signal() -> io::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    tokio::spawn(follow(Signals::listen()?, shutdown.clone(), |status| std::process::exit(status)));
    Ok(shutdown)
}

async fn follow(mut signals: Signals, shutdown: CancellationToken, exit: impl FnOnce(i32)) {
    signals.next().await;
    shutdown.cancel();
    let number = signals.next().await;
    tracing::warn!("a second signal: ending at once; the next start destroys the sandboxes that are left");
    // As shells report a process that a signal ended.
    exit(128 + number);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Signal as Number, getpid, kill_process};
    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_first_signal_stops_and_the_second_exits() {
        let shutdown = CancellationToken::new();
        let (exit, mut exited) = oneshot::channel();
        let signals = Signals::listen().expect("handlers");
        tokio::spawn(follow(signals, shutdown.clone(), |status| exit.send(status).expect("a test that waits")));
        kill_process(getpid(), Number::TERM).expect("a signal");
        timeout(PATIENCE, shutdown.cancelled()).await.expect("the first signal stops");
        assert!(exited.try_recv().is_err());
        kill_process(getpid(), Number::INT).expect("a signal");
        assert_eq!(timeout(PATIENCE, exited).await.expect("the second signal exits"), Ok(130));
    }
}
