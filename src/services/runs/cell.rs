//! One run that is a cell of a session: it waits for its turn like every run; its program goes to the session's kernel,
//! and its displays become files of the conversation.

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};

use super::{CellSession, Report, RunTask, stdin};
use crate::{
    domain::{
        error::{Code, Failure},
        event::{EventKind, StreamKind},
        outcome::{Figures, Outcome},
        path::SafePath,
    },
    services::{
        files::Precondition,
        sessions::{Cell, CellEnd, DisplayFile},
    },
};

impl RunTask {
    /// Executes the cell, with the conversation's turn in hand.
    pub(super) async fn in_session(&mut self, session: CellSession) -> Result<Report, Failure> {
        let service = self.service.clone();
        let parts = &service.parts;
        let conversation = self.request.conversation.clone();
        if !matches!(session, CellSession::Open(_)) {
            // Before the conversation's folder is there: only then can it get a standby that is for no conversation.
            tokio::select! {
                biased;
                report = self.not_begun() => return Ok(report),
                opened = service.sessions.open_for_cell(&conversation, &self.runner) => opened?,
            }
        }
        let (_, mark) = service.prepare(&conversation).await?;
        for (path, bytes) in &self.request.files {
            parts.files.write(&conversation, path, bytes.clone()).await?;
        }
        self.stages.start = Some(self.stage_over());
        let run = self.run.clone();
        let mut sink = |event| match event {
            EventKind::Output(stream, bytes) => run.log.output(stream, &bytes),
            event => run.log.add(event),
        };
        let takes_input = self.request.stdin_open || !self.request.stdin.is_empty();
        let more = self.stdin.take();
        let code = String::from_utf8_lossy(&self.request.program);
        let cell = Cell {
            conversation: &conversation,
            runner: &self.runner,
            session: if let CellSession::Open(id) = session { Some(id) } else { None },
            code: &code,
            input: takes_input.then(|| stdin::pieces(self.request.stdin.clone(), more)),
            limits: &self.limits,
            waiting: &run.waiting,
            network: self.network_sink(),
        };
        let breach = parts.files.quota().clone().breach(conversation.clone());
        let executed = service.sessions.execute(cell, &mut sink, &self.run.cancel, breach).boxed().await;
        if session == CellSession::Once {
            service.sessions.close_all(&conversation);
        }
        let CellEnd { ended, oom_killed, figures, display_files, returned } = executed.inspect_err(|_| {
            // What the cell left is not listed, so it is measured before the next one.
            parts.files.quota().measured(&conversation, None);
        })?;
        self.stages.program = Some(self.stage_over());
        self.store(display_files).await;
        let [stdout_bytes, stderr_bytes] = self.run.log.printed();
        let figures = Figures { stdout_bytes, stderr_bytes, ..figures };
        let mut outcome = Outcome { ended, oom_killed, limits: self.limits, figures };
        let files = self.changed_files(mark, returned, &mut outcome).await?;
        self.stages.collect = Some(self.stage_over());
        Ok(self.report(outcome, files))
    }

    /// Stores what the cell showed, as new files. The names of two runs may begin alike, so numbers that are taken are
    /// left out.
    async fn store(&self, display_files: Vec<DisplayFile>) {
        let id = self.run.id.to_string();
        let unique = &id[id.len() - 6..];
        let (files, conversation) = (&self.service.parts.files, &self.request.conversation);
        let mut number = 0;
        for DisplayFile { extension, bytes } in display_files {
            let (name, stored) = loop {
                number += 1;
                let name = format!("figure-{unique}-{number}.{extension}");
                let Ok(path) = SafePath::from_text(&name) else { return };
                let is_new: Precondition = Box::new(|etag| etag.is_none());
                let (length, body) = (bytes.len() as u64, stream::iter([Ok(bytes.clone())]));
                match files.upload(conversation, &path, Some(is_new), Some(length), body).await {
                    Err(failure) if failure.code == Code::PreconditionFailed => {}
                    stored => break (name, stored),
                }
            };
            if let Err(failure) = stored {
                let note = Bytes::from(format!("[{name} was not stored: {}]\n", failure.message));
                return self.run.log.output(StreamKind::Stderr, &note);
            }
        }
    }
}
