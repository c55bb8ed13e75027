//! The files of a session whose sandbox has its own `/data`: they travel to it before each cell, and back after it.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tracing::warn;

use super::{
    Inner, SessionEnd, Sessions,
    registry::{Busy, Session},
};
use crate::{
    domain::{Code, DiskLimit, Failure, Principal, SessionId},
    services::{
        carrier::{Carrier, left_out_note},
        files::Returned,
        frames::FileMessage,
    },
};

/// Messages of a sandbox that wait to be stored.
const MESSAGES_MAX: usize = 16;
/// Frames for a sandbox that wait to be written.
const FRAMES_MAX: usize = 4;

/// Between the task that reads and writes a kernel's sandbox and those who carry its files.
#[derive(Clone)]
pub(super) struct FileLink {
    frames: mpsc::Sender<Bytes>,
    /// Receives the sandbox's messages about its files; `None` while no caller asked for them.
    taker: Arc<Mutex<Option<mpsc::Sender<FileMessage>>>>,
    /// What the sandbox has, once it was sent anything.
    carrier: Arc<AsyncMutex<Option<Carrier>>>,
}

impl FileLink {
    /// The link, and the frames to write.
    pub(super) fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (frames, receiver) = mpsc::channel(FRAMES_MAX);
        (Self { frames, taker: Arc::default(), carrier: Arc::default() }, receiver)
    }

    /// Passes on a message of the sandbox; waits while the receiver is full.
    pub(super) async fn pass_on(&self, message: FileMessage) {
        let taker = self.taker.lock().clone();
        if let Some(taker) = taker {
            // One that has gone away takes nothing more.
            let _ = taker.send(message).await;
        }
    }

    /// The sandbox has ended.
    pub(super) fn end(&self) {
        drop(self.taker.lock().take());
    }

    fn take(&self) -> ReceiverStream<FileMessage> {
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        *self.taker.lock() = Some(sender);
        ReceiverStream::new(receiver)
    }
}

impl Sessions {
    /// Before code of a client is passed on to a session's kernel. The session is not ended as unused from here on.
    ///
    /// # Errors
    /// Those of [`Sessions::get`] and of a cell.
    pub(in crate::services) async fn carry_in(&self, session: &Arc<Session>) -> Result<Busy, Failure> {
        let busy = session.occupy();
        // It may have ended before it was occupied.
        self.0.find(&session.conversation.owner, session.id)?;
        self.0.carry_in(session).await?;
        Ok(busy)
    }

    /// A line for the code whose kernel has ended: where the files travel, what it changed is lost with the sandbox.
    pub(in crate::services) fn lost_files(&self) -> Option<&'static str> {
        let streamed = self.0.parts.sandboxes.volumes.streamed_bytes();
        streamed.map(|_| "[The sandbox takes nothing more, so what the cell changed in /data is not stored.]\n")
    }

    /// After such code: stores the files, and then waits for `over`, which says what limit they exceed. Where they do,
    /// or not all of them were stored, `tell` gets a note of it, with what is beside its sender.
    pub(in crate::services) fn carry_out_until(
        &self,
        who: &Principal,
        id: SessionId,
        over: impl Future<Output = Option<DiskLimit>> + Send + 'static,
        tell: (Bytes, mpsc::UnboundedSender<(Bytes, String)>),
    ) {
        let (inner, session) = (Arc::clone(&self.0), self.0.find(who, id).ok());
        self.0.tasks.spawn(async move {
            let mut unstored = None;
            if let Some(session) = session {
                let returned = inner.carry_out(&session).await;
                if let Some(Err(failure)) = &returned {
                    warn!(conversation = %session.conversation, %failure, "the files of a session were not stored");
                }
                unstored = returned.as_ref().and_then(note);
            }
            let exceeded = over.await;
            if let Some(note) = unstored.or_else(|| exceeded.map(of_limit)) {
                // A caller that has disconnected gets no note.
                drop(tell.1.send((tell.0, note)));
            }
        });
    }
}

/// Why not all files were stored; nothing where all were.
fn note(returned: &Result<Returned, Failure>) -> Option<String> {
    match returned {
        Ok(Returned { limit: Some(limit), .. }) => Some(of_limit(*limit)),
        _ => left_out_note(returned),
    }
}

fn of_limit(limit: DiskLimit) -> String {
    format!("[{}]\n", limit.sentence())
}

impl Inner {
    /// Sends a session what it does not have of its conversation's files, where they travel. One whose sandbox does not
    /// take them ends: its node may be cut off, and the next cell would wait as long.
    ///
    /// # Errors
    /// Those of [`Carrier::send`].
    pub(super) async fn carry_in(&self, session: &Arc<Session>) -> Result<(), Failure> {
        let Some(room_bytes) = self.parts.sandboxes.volumes.streamed_bytes() else { return Ok(()) };
        let link = &session.kernel.files;
        let mut held = link.carrier.lock().await;
        let file_bytes_max = self.parts.sandboxes.limits.file_bytes_max;
        let new = || Carrier::new(&self.parts.files, &session.conversation, room_bytes, file_bytes_max);
        let carrier = held.get_or_insert_with(new);
        let sent = carrier.send(&link.frames, link.take()).await;
        link.end();
        let is_lost = sent.as_ref().is_err_and(|failure| failure.code == Code::EngineLost);
        if is_lost && !session.kernel.is_ended() {
            self.end(session, SessionEnd::Unresponsive);
        }
        sent
    }

    /// Stores what a session changed, where its files travel.
    ///
    /// # Errors
    /// Those of [`Carrier::collect`].
    pub(super) async fn carry_out(&self, session: &Session) -> Option<Result<Returned, Failure>> {
        let link = &session.kernel.files;
        let mut held = link.carrier.lock().await;
        let carrier = held.as_mut()?;
        let returned = carrier.collect(&link.frames, link.take()).await;
        link.end();
        Some(returned)
    }
}
