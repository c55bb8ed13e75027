//! What takes long or happens in a `Drop` is done on one thread, a job after the other.
//!
//! ```text
//! Background::start ── one thread; ends when the last handle is dropped
//! ```
//!
//! Emptying a trash folder can take minutes, so it is done in slices: other jobs wait for one slice at most. What is
//! left when the process ends is deleted after the next start.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
};

use tracing::warn;

use super::delete::{self, Deleted, Effort};

enum Job {
    Once(Box<dyn FnOnce() + Send>),
    Empty(Arc<OwnedFd>),
    /// Answered when nothing is left to do.
    Drain(Sender<()>),
}

/// A handle on the thread. A clone is the same one.
#[derive(Clone)]
pub(super) struct Background {
    jobs: Sender<Job>,
    stop: Arc<AtomicBool>,
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

impl Background {
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, posted) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new().name("storage".to_owned()).spawn(move || work(&posted, &stopped))?;
        Ok(Self { jobs, stop })
    }

    /// Posts something short.
    pub(super) fn post(&self, job: impl FnOnce() + Send + 'static) {
        self.send(Job::Once(Box::new(job)));
    }

    /// Posts that what is in a folder of trash is deleted.
    pub(super) fn empty(&self, trash: &Arc<OwnedFd>) {
        self.send(Job::Empty(Arc::clone(trash)));
    }

    /// Waits until all that was posted is done. Not to be called on the thread itself.
    pub(super) fn drain(&self) {
        let (done, all) = channel();
        self.send(Job::Drain(done));
        // An error means that the thread has ended, and so has its work.
        let _ = all.recv();
    }

    /// From now on no slice of a trash folder is begun, and the current one ends at its next step.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn send(&self, job: Job) {
        // The thread lives as long as this sender does, unless a job panicked; the next start does its work then.
        let _ = self.jobs.send(job);
    }
}

fn work(posted: &Receiver<Job>, stop: &AtomicBool) {
    let mut unfinished = VecDeque::new();
    loop {
        let new = if unfinished.is_empty() { posted.recv().ok() } else { posted.try_recv().ok() };
        let Some(job) = new.or_else(|| unfinished.pop_front()) else { return };
        match job {
            Job::Once(job) => job(),
            Job::Empty(trash) => match delete::empty(&trash, &mut Effort::slice(stop)) {
                Ok(Deleted::Begun) if !stop.load(Ordering::SeqCst) => unfinished.push_back(Job::Empty(trash)),
                Ok(_) => {}
                Err(errno) => warn!(%errno, "something that was deleted still takes space"),
            },
            Job::Drain(done) if unfinished.is_empty() => drop(done.send(())),
            Job::Drain(done) => unfinished.push_back(Job::Drain(done)),
        }
    }
}
