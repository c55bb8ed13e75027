//! Carries the files of one conversation between the server and one sandbox whose `/data` is its own. Knows how long
//! each side may take; what travels is decided by [`Files`], and who reads the sandbox is the caller's.

use std::{io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use super::{
    files::{Carried, Files, Returned},
    frames::FileMessage,
};
use crate::domain::{
    error::{Code, Failure},
    owner::ConversationKey,
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
    /// What the sandbox has.
    carried: Carried,
}

impl Carrier {
    /// For a sandbox that has nothing yet.
    pub(super) fn new(files: &Arc<Files>, conversation: &ConversationKey, room_bytes: u64) -> Self {
        let (files, conversation) = (Arc::clone(files), conversation.clone());
        Self { files, conversation, room_bytes, carried: Carried::default() }
    }

    /// Sends what the sandbox does not have to its standard input.
    ///
    /// # Errors
    /// Those of [`Files::carry_in`]; [`Code::EngineLost`] when the sandbox does not take it.
    pub(super) async fn write(&mut self, stdin: &mut Pin<Box<dyn AsyncWrite + Send>>) -> Result<(), Failure> {
        let (sender, mut frames) = mpsc::channel::<Bytes>(FRAMES_MAX);
        let writing = async {
            while let Some(frame) = frames.recv().await {
                timeout(FRAME_MAX, stdin.write_all(&frame)).await.map_err(io::Error::from)??;
            }
            timeout(FRAME_MAX, stdin.flush()).await.map_err(io::Error::from)?
        };
        let written = self.send(sender, writing).await?;
        written.map_err(|_| lost("did not take the conversation's files, so nothing was run"))
    }

    /// Sends what the sandbox does not have as frames, while `also` is done.
    ///
    /// # Errors
    /// Those of [`Files::carry_in`].
    pub(super) async fn send<T>(
        &mut self,
        frames: mpsc::Sender<Bytes>,
        also: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let carried = std::mem::take(&mut self.carried);
        let sending = self.files.carry_in(&self.conversation, carried, self.room_bytes, frames);
        // A sandbox that takes nothing ends `also`, whose receiver ends the sending.
        let (sent, done) = tokio::join!(sending, also);
        self.carried = sent?;
        Ok(done)
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
        let mut returning = self.files.carry_out(&self.conversation, carried).await;
        let until = Instant::now() + ALL_MAX;
        let mut is_whole = false;
        while let Ok(Ok(Some(message))) = timeout_at(until, timeout(FRAME_MAX, messages.next())).await {
            is_whole = matches!(message, FileMessage::End { .. });
            if !returning.take(message).await? || is_whole {
                break;
            }
        }
        let mut returned = returning.finish().await?;
        self.carried = std::mem::take(&mut returned.carried);
        if is_whole || returned.limit.is_some() {
            return Ok(returned);
        }
        Err(lost("ended before it had sent back all files of /data, so some changes are lost"))
    }

    /// Waits until the sandbox has written what was sent.
    ///
    /// # Errors
    /// [`Code::EngineLost`].
    pub(super) async fn taken(mut messages: impl Stream<Item = FileMessage> + Unpin) -> Result<u64, Failure> {
        while let Ok(Some(message)) = timeout(FRAME_MAX, messages.next()).await {
            if let FileMessage::Taken { failed } = message {
                return Ok(failed);
            }
        }
        Err(lost("did not take the conversation's files, so nothing was executed"))
    }
}

/// What a person is told of entries that did not come back; nothing where all did.
pub(super) fn left_out_note(returned: &Returned) -> Option<String> {
    let count = returned.left_out;
    (count > 0).then(|| {
        format!("[Left out of /data: {count} links, pipes, sockets or entries too deep. Files and folders are kept.]\n")
    })
}

fn lost(what: &str) -> Failure {
    Failure::new(Code::EngineLost, format!("The sandbox {what}."))
}
