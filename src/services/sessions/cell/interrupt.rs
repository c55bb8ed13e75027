//! Interrupts a cell: first by the kernel's own interrupt, then by a signal that wakes it, then by ending the session;
//! and how a cell ends whose kernel is gone.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    super::{Inner, SessionEnd, kernel::Kernel},
    Execution,
};
use crate::domain::{Ended, EventKind, Failure, StreamKind};

/// When an interrupt is followed by a message that wakes a kernel which awaits something, when it is repeated, and when
/// the kernel is ended.
pub(in super::super) const WAKE_AFTER: Duration = Duration::from_millis(300);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const KILL_AFTER: Duration = Duration::from_secs(2);

/// Interrupts what a kernel executes in these steps. Ends when it should have reacted.
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
    /// Interrupts the cell; ends the session when it does not obey. One that has replied has obeyed: its idle status
    /// can be lost when much is printed. Output from before still counts.
    pub(super) async fn interrupt(&mut self, inner: &Arc<Inner>) {
        let session = self.session;
        // First in the selection: a cell that prints without a pause does not hold it up.
        let mut urging = pin!(urge(&session.kernel));
        while !(self.reply.is_some() && self.is_idle) {
            tokio::select! {
                biased;
                () = &mut urging => {
                    if self.reply.is_none() {
                        self.end_session(inner, session.kernel.end_of_silence());
                    }
                    return;
                }
                message = self.following.next() => {
                    let Some(message) = message else {
                        let end = self.session.kernel.ended().await;
                        return self.end_session(inner, end);
                    };
                    self.record(&message);
                }
            }
        }
    }

    /// How a cell ended whose kernel is gone.
    ///
    /// # Errors
    /// Those of [`SessionEnd::of_cell`].
    pub(super) async fn kernel_gone(&mut self, inner: &Arc<Inner>) -> Result<Ended, Failure> {
        let end = inner.ended(self.session).await;
        if !matches!(end, SessionEnd::Kernel(_) | SessionEnd::Lost) {
            self.say_end(end);
        }
        end.of_cell()
    }

    /// Ends the session, so that the next caller does not find it, and says why where the verdict does not.
    fn end_session(&mut self, inner: &Arc<Inner>, end: SessionEnd) {
        inner.end(self.session, end);
        if matches!(end, SessionEnd::Killed | SessionEnd::Unresponsive) {
            self.say_end(end);
        }
    }

    /// Says after the cell's output why its session ended.
    fn say_end(&mut self, end: SessionEnd) {
        (self.sink)(EventKind::Output(StreamKind::Stderr, format!("[{}]\n", end.sentence()).into()));
    }
}
