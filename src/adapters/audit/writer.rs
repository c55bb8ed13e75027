//! The thread that appends, and the file it appends to.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc::Receiver},
    time::Duration,
};

use rustix::fs::OFlags;
use tracing::{error, info};

use super::Counts;

/// The pause before a failed write is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// A file that is only appended to, and whose name may be moved away.
pub(super) struct AppendFile {
    path: PathBuf,
    file: File,
    /// The last write stopped in the middle of a line.
    torn: bool,
}

impl AppendFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open(path)?, torn: false })
    }

    /// Appends a whole line or fails. A line feed ends what a failed attempt left.
    fn append(&mut self, line: &str) -> io::Result<()> {
        self.follow_the_name()?;
        let text = if self.torn { format!("\n{line}") } else { line.to_owned() };
        match self.file.write(text.as_bytes()) {
            Ok(written) if written == text.len() => {
                self.torn = false;
                Ok(())
            }
            Ok(written) => {
                self.torn |= written > 0;
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a new file when the current one was moved away.
    fn follow_the_name(&mut self) -> io::Result<()> {
        let own = self.file.metadata()?;
        let same = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
        if !same {
            self.file = open(&self.path)?;
            self.torn = false;
        }
        Ok(())
    }
}

/// Refuses a symbolic link, and a pipe, which would block.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

pub(super) struct Writer {
    pub(super) file: AppendFile,
    pub(super) lines: Receiver<String>,
    pub(super) counts: Arc<Counts>,
}

impl Writer {
    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let mut failing = false;
        while let Ok(line) = self.lines.recv() {
            failing = self.write(&line, failing);
        }
    }

    /// Tries until the line is written or the server stops. Returns whether it failed.
    fn write(&mut self, line: &str, mut failing: bool) -> bool {
        loop {
            match self.file.append(line) {
                Ok(()) => {
                    if failing {
                        info!("the audit log is written again");
                    }
                    self.counts.written.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
                Err(error) => {
                    self.counts.errors.fetch_add(1, Ordering::Relaxed);
                    if !failing {
                        error!(%error, "the audit log cannot be written; lines wait: free space, or repair its folder");
                    }
                    failing = true;
                }
            }
            if self.counts.closing.load(Ordering::SeqCst) {
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
                error!("a line of the audit log is lost: the server stops and cannot write it");
                return true;
            }
            std::thread::park_timeout(RETRY);
        }
    }
}
