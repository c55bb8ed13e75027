//! Signal handling of this process. A signal that a program sends to process 1 reaches it only where process 1 has a
//! handler for it: the kernel drops every signal from inside whose disposition is the default, SIGKILL and SIGSTOP
//! included (`pid_namespaces(7)`). So no handler is left installed, and the ends of children come through a descriptor.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::{
    signal::{SigHandler, SigSet, Signal, raise, signal},
    signalfd::{SfdFlags, SignalFd},
};

/// Becomes readable when a child has ended.
#[derive(Debug)]
pub struct ChildEnds(SignalFd);

impl ChildEnds {
    /// Gives every signal its default disposition and has SIGCHLD delivered through the descriptor alone.
    ///
    /// The standard library installs handlers for SIGSEGV and SIGBUS before `main`. They run on one alternate stack
    /// that on some processors has no room for two frames: when a program sends both signals at once, the second frame
    /// overflows it and the kernel ends process 1 with SIGSEGV. SIGPIPE is ignored, so that a closed pipe is an error
    /// of the write outside a container, too. Signals 32 to 64 have no handler in a process without threads.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn watch() -> io::Result<Self> {
        for number in Signal::iterator().filter(|number| !matches!(number, Signal::SIGKILL | Signal::SIGSTOP)) {
            let disposition = if number == Signal::SIGPIPE { SigHandler::SigIgn } else { SigHandler::SigDfl };
            #[expect(unsafe_code, reason = "no handler is installed, so no code runs in a signal's context")]
            unsafe { signal(number, disposition) }?;
        }
        // While it is blocked it stays pending once, however often it is sent.
        let ends = child_ends();
        ends.thread_block()?;
        Ok(Self(SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Makes the descriptor wait for the next end. Takes one pending signal, so that a flood of them cannot keep the
    /// caller here.
    pub fn clear(&self) {
        let _ = self.0.read_signal();
    }
}

/// Starts a child without the signal mask of this process, which it would inherit.
///
/// # Errors
/// What keeps the child from starting.
pub fn with_empty_mask<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let ends = child_ends();
    ends.thread_unblock()?;
    let started = start();
    ends.thread_block()?;
    // A child that ended meanwhile left no signal: this one has the caller look.
    raise(Signal::SIGCHLD)?;
    started
}

fn child_ends() -> SigSet {
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGCHLD);
    ends
}

impl AsFd for ChildEnds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
