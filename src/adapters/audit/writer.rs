//! The thread that appends.

use std::{
    sync::{Arc, atomic::Ordering, mpsc::Receiver},
    time::Duration,
};

use tracing::{error, info};

use super::{Counts, file::LogFile};

/// The pause before a failed write is tried again.
const RETRY: Duration = Duration::from_millis(500);

pub(super) struct Writer {
    pub(super) file: LogFile,
    pub(super) lines: Receiver<String>,
    pub(super) counts: Arc<Counts>,
}

impl Writer {
    /// Writes until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let mut failing = false;
        while let Ok(line) = self.lines.recv() {
            failing = self.write(&line, failing);
            self.counts.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
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
                    self.counts.counted.lock().written += 1;
                    return false;
                }
                Err(error) => {
                    self.counts.counted.lock().errors += 1;
                    if !failing {
                        error!(%error, "the audit log cannot be written; lines wait: free space, or repair its folder");
                    }
                    failing = true;
                }
            }
            if self.counts.closing.load(Ordering::SeqCst) {
                self.counts.counted.lock().lost += 1;
                error!("a line of the audit log is lost: the server stops and cannot write it");
                return true;
            }
            std::thread::park_timeout(RETRY);
        }
    }
}
