//! Slow work, and the work of `Drop`, runs on one thread, one job at a time.
//!
//! ```text
//! Background::start ── one thread; ends when the last handle is dropped
//! ```
//!
//! Emptying a trash folder can take minutes, so it is done in short steps: other jobs wait for at most one step. When
//! the process ends first, the rest is deleted after the next start.

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use rustix::io::Errno;
use tracing::warn;

use super::delete::TrashRemoval;

enum Job {
    Once(Box<dyn FnOnce() + Send>),
    Empty(Arc<OwnedFd>),
    /// Answered when the queue is empty.
    Drain(Sender<()>),
}

/// A handle on the thread. A clone is the same one.
#[derive(Debug, Clone)]
pub(super) struct Background {
    jobs: Sender<Job>,
    stop: Arc<AtomicBool>,
}

impl Background {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, posted) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new().name("storage".to_owned()).spawn(move || work(&posted, &stopped))?;
        Ok(Self { jobs, stop })
    }

    /// Posts a short job.
    pub(super) fn post(&self, job: impl FnOnce() + Send + 'static) {
        self.send(Job::Once(Box::new(job)));
    }

    /// Posts the deletion of the content of a trash folder.
    pub(super) fn empty(&self, trash: &Arc<OwnedFd>) {
        self.send(Job::Empty(Arc::clone(trash)));
    }

    /// Waits until all posted work is done. Must not be called on the thread itself.
    pub(super) fn drain(&self) {
        let (done, all) = channel();
        self.send(Job::Drain(done));
        // An error means that the thread has ended, and so has its work.
        let _ = all.recv();
    }

    /// Begins no further turn of a trash folder and ends the current one at its next step.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn send(&self, job: Job) {
        // The thread lives as long as this sender, unless a job panicked; then the next start does the work.
        let _ = self.jobs.send(job);
    }
}

fn work(posted: &Receiver<Job>, stop: &AtomicBool) {
    let (mut emptying, mut waiting) = (VecDeque::<TrashRemoval>::new(), Vec::<Sender<()>>::new());
    loop {
        match if emptying.is_empty() { posted.recv().ok() } else { posted.try_recv().ok() } {
            Some(Job::Once(job)) => job(),
            Some(Job::Empty(trash)) => match emptying.iter_mut().find(|known| Arc::ptr_eq(&known.trash, &trash)) {
                Some(known) => known.again = true,
                None => emptying.extend(TrashRemoval::of(trash).inspect_err(|errno| left(*errno))),
            },
            Some(Job::Drain(done)) => waiting.push(done),
            None => {
                let Some(mut first) = emptying.pop_front() else { return };
                if first.turn(stop).inspect_err(|errno| left(*errno)).unwrap_or(false) {
                    emptying.push_back(first);
                }
            }
        }
        if emptying.is_empty() {
            for done in waiting.drain(..) {
                // One that stopped waiting gets no result.
                let _ = done.send(());
            }
        }
    }
}

fn left(errno: Errno) {
    warn!(%errno, "something that was deleted still takes space");
}
