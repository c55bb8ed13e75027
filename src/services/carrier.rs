//! Carries the files of one conversation between the server and one sandbox whose `/data` is its own. Knows how long
//! each side may take; [`Files`] decides what travels, and the caller reads the sandbox.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::{
    io::AsyncWriteExt as _,
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use super::{
    files::{Carried, Files, Returned},
    frames::{self, FileMessage},
};
use crate::{
    domain::{Code, ConversationKey, Failure},
    ports::engine::Stdin,
};

/// How long a sandbox may take for the next frame of files, either way, and for all that it sends back.
const FRAME_MAX: Duration = Duration::from_secs(20);
const ALL_MAX: Duration = Duration::from_mins(5);
/// Frames that were read from the disk and not written yet.
const FRAMES_MAX: usize = 4;

/// The files of one conversation in one sandbox.
pub(super) struct Carrier {
    files: Arc<Files>,
    conversation: ConversationKey,
    room_bytes: u64,
    file_bytes_max: u64,
    /// What the sandbox has.
    carried: Carried,
    /// Not all changes of the last report were stored, so the sandbox has to report them again.
    again: bool,
}

impl Carrier {
    /// For a sandbox that has nothing yet. Sends no file that is longer than the sandbox lets one be.
    pub(super) fn new(
        files: &Arc<Files>,
        conversation: &ConversationKey,
        room_bytes: u64,
        file_bytes_max: u64,
    ) -> Self {
        let (files, conversation, carried) = (Arc::clone(files), conversation.clone(), Carried::default());
        Self { files, conversation, room_bytes, file_bytes_max, carried, again: false }
    }

    /// Sends what the sandbox does not have to its standard input.
    ///
    /// # Errors
    /// Those of [`Files::carry_in`]; [`Code::EngineLost`] when the sandbox does not take it.
    pub(super) async fn write(&mut self, stdin: &mut Stdin) -> Result<(), Failure> {
        let (sender, mut frames) = mpsc::channel::<Bytes>(FRAMES_MAX);
        let writing = async move {
            while let Some(frame) = frames.recv().await {
                timeout(FRAME_MAX, stdin.write_all(&frame)).await.map_err(io::Error::from)??;
            }
            timeout(FRAME_MAX, stdin.flush()).await.map_err(io::Error::from)?
        };
        let written: io::Result<()> = self.carry(sender, writing).await?;
        written.map_err(|_| lost("did not take the conversation's files, so nothing was run"))
    }

    /// Sends what a session's sandbox does not have as frames, and waits until it has written them.
    ///
    /// # Errors
    /// Those of [`Files::carry_in`]; [`Code::EngineLost`] when the sandbox does not take them;
    /// [`Code::QuotaExceeded`] when it could not write all of them. All of them are sent again then.
    pub(super) async fn send(
        &mut self,
        sandbox: &mpsc::Sender<Bytes>,
        messages: impl Stream<Item = FileMessage> + Unpin,
    ) -> Result<(), Failure> {
        let (sender, mut frames) = mpsc::channel::<Bytes>(FRAMES_MAX);
        let passing = async move {
            while let Some(frame) = frames.recv().await {
                if !pass(sandbox, frame).await {
                    return false;
                }
            }
            true
        };
        let is_passed = self.carry(sender, passing).await?;
        let failed = if is_passed { taken(messages).await } else { None };
        if failed == Some(0) {
            return Ok(());
        }
        self.carried.mark_unconfirmed();
        Err(failed.map_or_else(|| lost("did not take the conversation's files, so nothing was executed"), not_written))
    }

    /// Sends what the sandbox does not have as frames, while `taking` receives them. It owns their receiver: where it
    /// ends early, the sending does.
    async fn carry<T>(&mut self, frames: mpsc::Sender<Bytes>, taking: impl Future<Output = T>) -> Result<T, Failure> {
        let Self { files, conversation, room_bytes, file_bytes_max, carried, .. } = self;
        let sending = files.carry_in(conversation, carried, *room_bytes, *file_bytes_max, frames);
        let (sent, taken) = tokio::join!(sending, taking);
        sent?;
        Ok(taken)
    }

    /// Asks a session's sandbox for what was changed, and stores it.
    ///
    /// # Errors
    /// Those of [`Carrier::receive`]; [`Code::EngineLost`] when the sandbox cannot be asked.
    pub(super) async fn collect(
        &mut self,
        sandbox: &mpsc::Sender<Bytes>,
        messages: impl Stream<Item = FileMessage> + Unpin + Send,
    ) -> Result<Returned, Failure> {
        if !pass(sandbox, frames::files::collect(self.again)).await {
            return Err(lost("takes nothing more, so what the cell changed in /data is not stored"));
        }
        self.receive(messages).await
    }

    /// Stores what the sandbox sends back. Its messages end when there will be no more.
    ///
    /// # Errors
    /// [`Code::EngineLost`] when not all of it came; when the disk fails. What came is stored.
    pub(super) async fn receive(
        &mut self,
        mut messages: impl Stream<Item = FileMessage> + Unpin + Send,
    ) -> Result<Returned, Failure> {
        let carried = std::mem::take(&mut self.carried);
        self.again = true;
        let mut returning = self.files.carry_out(&self.conversation, carried).await;
        let until = Instant::now() + ALL_MAX;
        let mut is_whole = false;
        // `timeout_at` alone ends no messages that never have to be waited for. After a limit the rest is read as well,
        // or the next round of a session would begin with it.
        while !is_whole
            && Instant::now() < until
            && let Ok(Ok(Some(message))) = timeout_at(until, timeout(FRAME_MAX, messages.next())).await
        {
            is_whole = matches!(message, FileMessage::End { .. });
            returning.take(message).await?;
        }
        let mut returned = returning.finish().await?;
        self.carried = std::mem::take(&mut returned.carried);
        self.again = !is_whole || returned.limit.is_some();
        if is_whole || returned.limit.is_some() {
            return Ok(returned);
        }
        Err(lost("ended before it had sent back all files of /data, so some changes are lost"))
    }
}

/// Passes one frame on, unless the sandbox takes nothing for too long.
async fn pass(sandbox: &mpsc::Sender<Bytes>, frame: Bytes) -> bool {
    matches!(timeout(FRAME_MAX, sandbox.send(frame)).await, Ok(Ok(())))
}

/// Waits until the sandbox has written what was sent; how many entries it could not write.
async fn taken(mut messages: impl Stream<Item = FileMessage> + Unpin) -> Option<u64> {
    let written = async {
        loop {
            if let FileMessage::Taken { failed } = messages.next().await? {
                return Some(failed);
            }
        }
    };
    timeout(FRAME_MAX, written).await.ok().flatten()
}

/// A sentence on what did not come back; nothing where all did.
pub(super) fn left_out_note(returned: &Result<Returned, Failure>) -> Option<String> {
    match returned {
        Ok(Returned { left_out: 0, .. }) => None,
        Ok(Returned { left_out: count, .. }) => Some(format!(
            "[Left out of /data: {count} links, pipes, sockets or entries too deep. Files and folders are kept.]\n"
        )),
        Err(failure) => Some(format!("[{}]\n", failure.message)),
    }
}

fn lost(what: &str) -> Failure {
    Failure::new(Code::EngineLost, format!("The sandbox {what}."))
}

fn not_written(count: u64) -> Failure {
    let why = format!(
        "The session could not write {count} of the conversation's files and folders, so nothing was executed: its \
         /data is full, or something that it made is in their way. Delete what was added to the conversation, or close \
         the session and open a new one."
    );
    Failure::new(Code::QuotaExceeded, why)
}

#[cfg(test)]
mod tests;
