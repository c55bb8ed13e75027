//! Interrupting a cell: what the kernel understands, then what wakes it, then its end.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    super::{Inner, SessionEnd, kernel::Kernel},
    Execution,
};
use crate::domain::event::{EventKind, StreamKind};

/// When an interrupt is followed by a message that wakes a kernel which awaits something, when it is repeated, and when
/// the kernel is ended.
pub(in super::super) const WAKE_AFTER: Duration = Duration::from_millis(300);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(2);

/// Interrupts what a kernel executes in the same steps. Ends when it should have reacted.
pub(in super::super) async fn urge(kernel: &Kernel) {
    let begun = Instant::now();
    let steps = async {
        kernel.interrupt().await;
        sleep_until(begun + WAKE_AFTER).await;
        kernel.wake().await;
        sleep_until(begun + AGAIN_AFTER).await;
        kernel.interrupt().await;
        pending::<()>().await;
    };
    drop(timeout(KILL_AFTER, steps).await);
}

impl Execution<'_> {
    /// Interrupts the cell; ends the session when it does not obey. Output from before still counts.
    pub(super) async fn interrupt(&mut self, inner: &Arc<Inner>) {
        let begun = Instant::now();
        self.session.kernel.interrupt().await;
        let (mut is_woken, mut is_repeated) = (false, false);
        while !(self.reply.is_some() && self.is_idle) {
            let next = match (is_woken, is_repeated) {
                (false, _) => WAKE_AFTER,
                (true, false) => AGAIN_AFTER,
                (true, true) => KILL_AFTER,
            };
            tokio::select! {
                biased;
                message = self.following.next() => match message {
                    Some(message) => self.record(&message),
                    None => return,
                },
                () = sleep_until(begun + next) => match (is_woken, is_repeated) {
                    (false, _) => {
                        is_woken = true;
                        self.session.kernel.wake().await;
                    }
                    (true, false) => {
                        is_repeated = true;
                        self.session.kernel.interrupt().await;
                    }
                    (true, true) => {
                        let end = SessionEnd::Killed;
                        inner.end(self.session, end);
                        let note = format!("[{}]\n", end.sentence());
                        return (self.sink)(EventKind::Output(StreamKind::Stderr, note.into()));
                    }
                },
            }
        }
    }
}
