//! The tasks of a service, and their end.

use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::domain::Failure;

#[derive(Default)]
pub(super) struct Tasks {
    /// Cancelled when the service ends.
    pub(super) stop: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    pub(super) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn(task)
    }

    /// # Errors
    /// [`Code::ShuttingDown`](crate::domain::Code::ShuttingDown) once the service ends.
    pub(super) fn check_running(&self) -> Result<(), Failure> {
        if self.stop.is_cancelled() { Err(Failure::stopping()) } else { Ok(()) }
    }

    /// Stops the tasks, and waits for them.
    pub(super) async fn end(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
