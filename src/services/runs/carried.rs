//! The files of one run: their folder; if they are streamed, sending them to the sandbox before the program and back
//! after it; and which of them it changed.

use std::sync::Arc;

use tracing::error;

use super::{Inner, internal, task::RunTask};
use crate::{
    domain::{
        error::{Code, Failure},
        event::StreamKind,
        outcome::{Ended, Outcome},
        owner::ConversationKey,
        text::chain,
    },
    ports::storage::{DataFolder, Mark, StorageError},
    services::{
        carrier::{Carrier, left_out_note},
        files::{FileList, Returned},
        sandbox::Started,
    },
};

impl Inner {
    /// The conversation's folder, and the moment before its program in the file system's time. Counts as a use.
    pub(super) async fn prepare(&self, conversation: &ConversationKey) -> Result<(DataFolder, Mark), Failure> {
        let (store, id) = (Arc::clone(&self.parts.store), conversation.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let conversation = store.create(&id)?;
            Ok::<_, StorageError>((conversation.data(), conversation.mark()?))
        });
        prepared.await.map_err(|_| internal())?.map_err(|error| {
            error!(error = %chain(&error), "the conversation's folder was not prepared");
            error.failure()
        })
    }
}

impl RunTask {
    /// Sends the sandbox its files where they travel, and returns what takes them back. The outer `None` stands for a
    /// run that was cancelled meanwhile.
    pub(super) async fn carry_in(&self, started: &mut Started) -> Result<Option<Option<Carrier>>, Failure> {
        let parts = &self.service.parts;
        let Some(room_bytes) = parts.sandboxes.volumes.streamed_bytes() else { return Ok(Some(None)) };
        if started.decoder.is_none() {
            let why =
                "The runner image takes no files: it needs protocol 1 or 2 where SANDBOX_ENGINE__FILES is streamed.";
            return Err(Failure::new(Code::RunnerFailed, why));
        }
        let carrier = Carrier::new(&parts.files, &self.run.conversation, room_bytes);
        let mut carrier = carrier.with_file_bytes_max(self.limits.file_bytes_max);
        tokio::select! {
            biased;
            () = self.run.cancel.cancelled() => Ok(None),
            written = carrier.write(&mut started.sandbox.stdin) => written.map(|()| Some(Some(carrier))),
        }
    }

    /// Lists the files that the program changed, and checks the space that they take.
    pub(super) async fn changed_files(
        &self,
        mark: Mark,
        returned: Option<Result<Returned, Failure>>,
        outcome: &mut Outcome,
    ) -> Result<FileList, Failure> {
        let (files, conversation) = (&self.service.parts.files, &self.run.conversation);
        let mut list = files.changed_since(conversation, mark).await?;
        let mut limit = None;
        let note = match returned {
            Some(Ok(returned)) => {
                returned.correct(&mut list);
                limit = returned.limit;
                left_out_note(&returned)
            }
            Some(Err(failure)) => Some(format!("[{}]\n", failure.message)),
            None => None,
        };
        if let Some(note) = note {
            self.run.log.output(StreamKind::Stderr, &note.into());
        }
        let limit = match limit {
            None => files.quota().exceeded(conversation).await,
            limit => limit,
        };
        if outcome.ended != Ended::Cancelled
            && let Some(limit) = limit
        {
            outcome.ended = Ended::DiskLimit(limit);
        }
        Ok(list)
    }
}
