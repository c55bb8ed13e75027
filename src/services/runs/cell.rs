//! Cells of sessions: those that are runs, and the code that a Jupyter client sends to a session's kernel, which is
//! none.
//!
//! A run that is a cell waits for its turn like every run; its program goes to the session's kernel, and its displays
//! become files of the conversation. Code that is not a run has a turn: a run's admission, position in the queue and
//! slot, its conversation's disk limit, and its line in the audit log. A turn is of one token: that of the client whose
//! code it is for.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use tracing::info;

use super::{CellSession, Inner, Report, Run, RunTask, Runs, auxiliary::token_ended, stdin};
use crate::{
    domain::{
        Code, ConversationKey, DiskLimit, Ended, EventKind, Failure, Figures, Language, Outcome, Principal, RunId,
        SafePath, StreamKind, TraceContext, text,
    },
    ports::{
        observer::{BeginFacts, ProgramFacts, RunFacts, Stages},
        runner::Runner,
        storage::Usage,
    },
    services::{
        admission::Permit,
        files::Precondition,
        sessions::{Cell, CellEnd, DisplayFile},
        tokens::Started,
    },
};

impl Run {
    /// Waits until any client has answered a cell's request for input, by the number of its event; for ever where none
    /// does.
    pub async fn answered(&self, request: u64) {
        self.log.answered(request).await;
    }
}

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
                opened = service.sessions.open_for_cell(&conversation, &self.runner) => drop(opened?),
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
        let CellEnd { mut outcome, display_files, returned } = executed.inspect_err(|_| {
            // What the cell left is not listed, so it is measured before the next one.
            parts.files.quota().measured(&conversation, None);
        })?;
        self.stages.program = Some(self.stage_over());
        self.store(display_files).await;
        let [stdout_bytes, stderr_bytes] = self.run.log.printed();
        outcome.figures = Figures { stdout_bytes, stderr_bytes, ..outcome.figures };
        self.figures = Some(outcome.figures);
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

/// While it lives, no run and no other cell of the conversation starts.
pub(in crate::services) struct ConversationTurn {
    service: Arc<Inner>,
    conversation: ConversationKey,
    /// `None` where its language has none any more: its cells are not reported.
    runner: Option<Runner>,
    _permit: Permit,
    by: Option<Started>,
    /// Whether a cell has begun: the first one was counted with the turn.
    has_begun: bool,
    is_measured: bool,
}

impl Runs {
    /// Waits for a turn of the conversation, for the token of its key.
    ///
    /// # Errors
    /// Those of [`Runs::begin`]; [`Code::QueueTimeout`], and a conversation or disk without room.
    pub(in crate::services) async fn turn(
        &self,
        conversation: &ConversationKey,
        language: &Language,
    ) -> Result<ConversationTurn, Failure> {
        let service = Arc::clone(&self.0);
        let parts = &service.parts;
        let entered = service.tasks.check_running().and_then(|()| parts.peers.check(conversation));
        let count = || parts.tokens.begin(&conversation.owner, language);
        let entered = entered.and_then(|()| service.admission.enter(conversation, 0, count));
        let (ticket, by) = entered.inspect_err(|failure| parts.observer.refused(failure.code))?;
        let permit = ticket.turn().await?;
        parts.files.check_capacity(conversation, Usage::default()).await?;
        service.prepare(conversation).await?;
        Ok(ConversationTurn {
            service: Arc::clone(&service),
            conversation: conversation.clone(),
            runner: parts.catalog.find(language),
            _permit: permit,
            by,
            has_begun: false,
            is_measured: false,
        })
    }
}

impl ConversationTurn {
    /// Whether it is of the token that a caller came by.
    pub(in crate::services) fn is_of(&self, who: &Principal) -> bool {
        self.conversation.owner.token() == who.token()
    }

    /// Counts a cell of the turn's token that is about to be handed over.
    ///
    /// # Errors
    /// The token was revoked since, or one of its limits is reached.
    pub(in crate::services) fn begin_cell(&mut self, language: &Language) -> Result<(), Failure> {
        let (parts, who) = (&self.service.parts, &self.conversation.owner);
        let begun = if self.has_begun {
            parts.tokens.begin_within(who, language).map(drop)
        } else {
            parts.tokens.check(who, language)
        };
        self.has_begun |= begun.is_ok();
        begun.inspect_err(|failure| parts.observer.refused(failure.code))
    }

    /// Waits until the token that the turn is of is revoked or has expired.
    pub(in crate::services) fn token_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        token_ended(self.by.as_ref())
    }

    /// Waits until the conversation's files exceed a limit.
    pub(in crate::services) fn breach(&self) -> impl Future<Output = DiskLimit> + Send + use<> {
        Arc::clone(self.service.parts.files.quota()).breach(self.conversation.clone())
    }

    /// Its code has ended: it is none of those any more that its token has at once.
    pub(in crate::services) fn end_code(&mut self) {
        self.by = None;
    }

    /// The limit that the conversation's files exceed now that its code has ended.
    pub(in crate::services) async fn exceeded(&mut self) -> Option<DiskLimit> {
        self.is_measured = true;
        self.service.parts.files.quota().exceeds_now(&self.conversation).await
    }

    /// Reports to the observers that a cell begins; its id.
    pub(in crate::services) fn run_begun(&self, code: &str) -> RunId {
        let run = RunId::new();
        if let Some(runner) = &self.runner {
            let sha256 = text::sha256(code.as_bytes());
            self.service.parts.observer.run_begun(&self.begin_facts(runner, run, code, &sha256));
        }
        run
    }

    /// By which limit of CPU its cells count whose use is not known.
    pub(in crate::services) fn cpu_millis(&self) -> u32 {
        self.service.parts.sandboxes.limits.cpu_millis
    }

    /// Reports to the observers that a cell is over, and counts what it used for the token that it came by.
    pub(in crate::services) fn run_over(
        &self,
        run: RunId,
        code: &str,
        figures: Figures,
        ended: Result<Ended, Failure>,
        oom_killed: bool,
    ) {
        let parts = &self.service.parts;
        let limits = self.runner.as_ref().map_or(parts.sandboxes.limits, |runner| parts.sandboxes.limits_of(runner));
        if let Some(by) = &self.by {
            by.count(&figures, self.cpu_millis());
        }
        let took = figures.wall;
        let Some(runner) = &self.runner else { return };
        let outcome = ended.map(|ended| {
            let oom_killed = oom_killed || ended == Ended::OutOfMemory;
            Outcome { ended, oom_killed, limits, figures }
        });
        let ended_unix_s = parts.sandboxes.clock.unix_s();
        let (conversation, language) = (&self.conversation, &runner.language);
        let how = outcome.as_ref().map(|outcome| outcome.ended);
        info!(%run, %conversation, %language, ?how, wall_ms = text::ms(took), "a notebook's cell ended");
        let sha256 = text::sha256(code.as_bytes());
        parts.observer.run_over(&RunFacts {
            begin: self.begin_facts(runner, run, code, &sha256),
            trace: TraceContext::of_run(run, None),
            args: 0,
            stdin_bytes: 0,
            limits: &limits,
            begun_unix_s: ended_unix_s.saturating_sub(i64::try_from(took.as_secs()).unwrap_or(i64::MAX)),
            ended_unix_s,
            stages: Stages { program: Some(took), total: took, ..Stages::default() },
            end: outcome.as_ref(),
            lost: outcome.is_err().then_some(figures),
            files: Vec::new(),
            files_truncated: false,
        });
    }

    fn begin_facts<'a>(&'a self, runner: &'a Runner, run: RunId, code: &'a str, sha256: &'a str) -> BeginFacts<'a> {
        BeginFacts {
            run,
            conversation: &self.conversation,
            is_cell: true,
            language: &runner.language,
            image: &runner.image.0,
            program: ProgramFacts { bytes: code.as_bytes(), sha256 },
        }
    }
}

impl Drop for ConversationTurn {
    fn drop(&mut self) {
        // What the code left is not listed, so it is measured before the next one if it was not yet.
        if !self.is_measured {
            self.service.parts.files.quota().measured(&self.conversation, None);
        }
    }
}
