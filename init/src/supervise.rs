//! The event loop of a sandbox, from READY to the last frame. It waits for all event sources at once: frames, a child's
//! messages and exit, room in a pipe, the deadline.
//!
//! It starts the child, which is or becomes the program, and ends everything the child left behind before it sends
//! EXIT.

use std::{
    error::Error,
    fs::File,
    io::{self, Write},
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, kill_process},
    stdio::{stdin, stdout},
};
use serde_json::json;

mod files;
mod standby;
mod state;
mod wait;

use state::{Exit, KILL_AGAIN, KILL_LIMIT, Phase, SEND_LIMIT, Source};
pub use state::{Options, Verdict};

use crate::{
    channels::Channels,
    child::{ATTACHED_VARIABLE, Child},
    figures::{Counters, Meter},
    files::{Collector, Files},
    flow::{self, Inbox, Outbox, Progress},
    frame::{Decoder, OutputFrame},
    process_tree::{self, CollectedChildren, ExitStatus},
    request::{Action, Request},
    signals::ChildEnds,
};

/// One sandbox.
#[derive(Debug)]
pub struct Sandbox {
    options: Options,
    meter: Meter,
    child_ends: ChildEnds,
    decoder: Decoder,
    request: Request,
    frames_open: bool,
    program: Option<File>,
    /// The program, or the warm child that will become it.
    child: Option<Child>,
    /// Takes the child's place when it is warm.
    successor: Option<Child>,
    /// Shares the program's memory, so that the program's exit is reported before the kernel has freed that memory.
    keeper: Option<Pid>,
    channels: Channels,
    /// The files of the conversation, where the server sends them.
    files: Option<Files>,
    /// Changes of the files that are being sent.
    collector: Option<Collector>,
    inbox: Inbox,
    outbox: Outbox,
    exit_status: Option<ExitStatus>,
    /// The counters at the program's end, where they were read before the keeper was killed.
    after: Option<Counters>,
    killed_by_deadline: bool,
    fault: Option<String>,
    /// When the server last took something, or the end of the program if that was later.
    sent_at: Instant,
    phase: Phase,
}

impl Sandbox {
    /// A sandbox whose children end by `child_ends`. Starts a warm child.
    pub fn new(options: Options, child_ends: ChildEnds) -> io::Result<Self> {
        process_tree::adopt_orphans();
        flow::set_nonblocking(stdin())?;
        flow::set_nonblocking(stdout())?;
        let mut sandbox = Self {
            child: None,
            successor: None,
            keeper: None,
            options,
            meter: Meter::open(),
            child_ends,
            decoder: Decoder::default(),
            request: Request::default(),
            frames_open: true,
            program: None,
            channels: Channels::default(),
            files: None,
            collector: None,
            inbox: Inbox::default(),
            outbox: Outbox::new(std::env::var_os(ATTACHED_VARIABLE).is_some()),
            exit_status: None,
            after: None,
            killed_by_deadline: false,
            fault: None,
            sent_at: Instant::now(),
            phase: Phase::Standby,
        };
        if sandbox.options.warm {
            sandbox.child = Some(Child::warm(&sandbox.options.command, sandbox.options.spare)?);
        } else {
            sandbox.report_ready_cold();
        }
        Ok(sandbox)
    }

    /// Runs until the last frame is sent.
    pub fn run(mut self) -> io::Result<Verdict> {
        loop {
            if let Some(verdict) = self.verdict() {
                return Ok(verdict);
            }
            for source in self.wait()? {
                self.serve(source);
            }
            self.check_timers();
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        let is_abandoned = self.sent_at.elapsed() > SEND_LIMIT;
        match self.phase {
            Phase::Standby if !self.frames_open => Some(Verdict::Done),
            // The output before EXIT was not taken.
            Phase::Ending { .. } if is_abandoned => Some(Verdict::Failed),
            Phase::Sending { verdict } if is_abandoned || self.outbox.is_empty() && self.collector.is_none() => {
                Some(verdict)
            }
            _ => None,
        }
    }

    fn serve(&mut self, source: Source) {
        match source {
            Source::Frames => self.read_frames(),
            Source::Children => self.collect(),
            Source::Server => self.send(),
            Source::Stdin => self.write_stdin(),
            Source::Stdout => self.read_output(OutputFrame::Stdout),
            Source::Stderr => self.read_output(OutputFrame::Stderr),
            Source::Control => self.read_control(),
            Source::Successor => self.read_successor_control(),
            Source::Port => self.channels.start(),
            Source::FromChannels => self.read_channels(),
            Source::ToChannels => self.channels.write(),
        }
    }

    fn read_frames(&mut self) {
        match flow::read(stdin(), self.decoder.buffer()) {
            Progress::Moved(_) => self.outbox.release(),
            Progress::Later => return,
            Progress::Closed => {
                self.frames_open = false;
                self.inbox.end();
                self.write_stdin();
                return;
            }
        }
        // What the frames hold is borrowed from the decoder.
        let mut decoder = std::mem::take(&mut self.decoder);
        let taken = self.take_frames(&mut decoder);
        self.decoder = decoder;
        if let Err(error) = taken {
            self.refuse(error.to_string());
        }
    }

    fn take_frames(&mut self, decoder: &mut Decoder) -> Result<(), Box<dyn Error>> {
        while let Some((kind, payload)) = decoder.next()? {
            let action = self.request.take(kind, payload)?;
            self.execute(action)?;
        }
        Ok(())
    }

    fn execute(&mut self, action: Action<'_>) -> io::Result<()> {
        match action {
            Action::Append(bytes) => self.program_file()?.write_all(bytes)?,
            Action::Start(config) => self.start(&config)?,
            Action::Input(bytes) => {
                self.inbox.push(bytes);
                self.write_stdin();
            }
            Action::EndInput => {
                self.inbox.end();
                self.write_stdin();
            }
            Action::Signal(signal) => {
                if let (Some(child), None) = (&self.child, self.exit_status) {
                    // The process may have just exited; the signal then has no effect.
                    let _ = kill_process(child.pid, signal);
                }
            }
            Action::Channels(bytes) => self.channels.push(bytes),
            Action::Files(payload) => self.take_files(payload)?,
            Action::Nothing => {}
        }
        Ok(())
    }

    fn program_file(&mut self) -> io::Result<&mut File> {
        let path = &self.options.program;
        let explained = |error| io::Error::other(format!("{}: {error}", path.display()));
        Ok(match &mut self.program {
            Some(file) => file,
            none => none.insert(File::create(path).map_err(explained)?),
        })
    }

    /// Writes pending input to the program until its pipe is full, and closes the pipe after the last byte.
    fn write_stdin(&mut self) {
        if !self.request.started() {
            return;
        }
        let Some(child) = &mut self.child else { return };
        if let Some(stdin) = &child.stdin
            && !self.inbox.write(stdin)
        {
            child.stdin = None;
        }
        if child.stdin.is_none() {
            self.inbox.discard();
        } else if self.inbox.is_over() {
            child.stdin = None;
        }
    }

    /// Forwards one read of one stream. `false` when the stream is empty for now or closed.
    fn read_stream(&mut self, kind: OutputFrame) -> bool {
        let Some(child) = &mut self.child else { return false };
        let pipe = if kind == OutputFrame::Stdout { &mut child.stdout } else { &mut child.stderr };
        let Some(fd) = pipe else { return false };
        match self.outbox.push_read(kind, &[], &*fd) {
            Progress::Moved(_) => true,
            Progress::Later => false,
            Progress::Closed => {
                *pipe = None;
                false
            }
        }
    }

    fn read_output(&mut self, kind: OutputFrame) {
        self.read_stream(kind);
        self.send();
    }

    /// Relays one read of the channels, which is never interpreted, so that the program's own output has its turn in
    /// between.
    fn read_channels(&mut self) {
        let Some(fd) = self.channels.output() else { return };
        if self.outbox.push_read(OutputFrame::Channels, &[], fd) == Progress::Closed {
            self.channels.ended();
            self.outbox.push(OutputFrame::Channels, &[]);
        }
        self.send();
    }

    fn send(&mut self) {
        if !self.outbox.can_send() {
            return;
        }
        match self.outbox.send(stdout()) {
            Progress::Moved(_) => {
                self.sent_at = Instant::now();
                self.push_files();
                self.finish();
            }
            Progress::Later => {}
            Progress::Closed => {
                // The server is gone, so the outcome cannot be reported.
                process_tree::kill_all();
                self.outbox = Outbox::default();
                self.collector = None;
                self.phase = Phase::Sending { verdict: Verdict::Failed };
            }
        }
    }

    fn collect(&mut self) {
        self.child_ends.clear();
        let collected = self.collect_ended();
        match (collected.of(self.child.as_ref().map(|child| child.pid)), &self.phase) {
            (None, _) => {}
            // A warm child died while standing by: the program will be started cold.
            (Some(_), Phase::Standby) => {
                self.child = None;
                self.report_ready_cold();
            }
            (Some(exit_status), _) => {
                self.exit_status = Some(exit_status);
                if self.keeper.is_some_and(process_tree::is_only) {
                    // Giving the keeper's memory back competes with this process for the processor.
                    self.after = Some(self.meter.read());
                }
                self.end_all();
            }
        }
        self.note_ended(&collected);
    }

    /// Collects ended processes, and forgets a keeper or successor among them.
    fn collect_ended(&mut self) -> CollectedChildren {
        let collected = process_tree::collect();
        self.keeper = self.keeper.filter(|keeper| collected.of(Some(*keeper)).is_none());
        self.successor = self.successor.take().filter(|successor| collected.of(Some(successor.pid)).is_none());
        collected
    }

    /// Notes once no process of the program can run any more. A killed keeper cannot, either: it remains only while the
    /// kernel frees its memory, which takes longer than most programs.
    fn note_ended(&mut self, collected: &CollectedChildren) {
        if let Phase::Ending { gone, .. } = &mut self.phase
            && (collected.is_last || self.keeper.is_some_and(process_tree::is_only))
        {
            *gone = true;
            self.finish();
        }
    }

    fn end_all(&mut self) {
        process_tree::kill_all();
        if let Phase::Running { before, .. } = &mut self.phase {
            self.sent_at = Instant::now();
            self.phase = Phase::Ending { before: std::mem::take(before), since: self.sent_at, gone: false };
        }
        let collected = self.collect_ended();
        self.exit_status = self.exit_status.or(collected.of(self.child.as_ref().map(|child| child.pid)));
        self.note_ended(&collected);
    }

    /// Sends EXIT or ERROR once all processes have ended and the pipes are empty.
    fn finish(&mut self) {
        let Phase::Ending { since, gone, .. } = &self.phase else { return };
        if !gone && since.elapsed() < KILL_LIMIT {
            return;
        }
        for kind in [OutputFrame::Stdout, OutputFrame::Stderr] {
            while !self.outbox.is_full() && self.read_stream(kind) {}
        }
        if self.outbox.is_full() {
            return self.send();
        }
        let Phase::Ending { before, .. } = &self.phase else { return };
        let verdict = if let Some(message) = self.fault.take() {
            self.outbox.push(OutputFrame::Error, json!({ "message": message }).to_string().as_bytes());
            Verdict::Failed
        } else {
            let exit = Exit {
                status: self.exit_status.unwrap_or(ExitStatus::Signal(rustix::process::Signal::KILL.as_raw())),
                figures: self.after.take().unwrap_or_else(|| self.meter.read()).since(before),
                killed_by: self.killed_by_deadline.then_some("deadline"),
            };
            self.outbox.push(OutputFrame::Exit, serde_json::to_string(&exit).unwrap_or_default().as_bytes());
            Verdict::Done
        };
        self.phase = Phase::Sending { verdict };
        self.send();
        self.send_last_files();
    }

    /// Ends the program because the request is invalid; then sends the reason.
    fn refuse(&mut self, message: String) {
        self.frames_open = false;
        self.fault = Some(message);
        if matches!(self.phase, Phase::Standby) {
            self.phase = Phase::Running { before: Counters::default(), deadline: None };
        }
        self.end_all();
    }

    fn check_timers(&mut self) {
        match &self.phase {
            Phase::Running { deadline: Some(deadline), .. } if Instant::now() >= *deadline => {
                self.killed_by_deadline = true;
                self.end_all();
            }
            Phase::Ending { since, gone: false, .. } if since.elapsed() < KILL_LIMIT => self.end_all(),
            Phase::Ending { .. } => self.finish(),
            _ => {}
        }
    }

    /// Time until the next timer, if any.
    fn next_timer(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Running { deadline, .. } => {
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
            }
            Phase::Ending { since, gone: false, .. } if since.elapsed() < KILL_LIMIT => Some(KILL_AGAIN),
            Phase::Ending { .. } | Phase::Sending { .. } => Some(SEND_LIMIT),
            Phase::Standby => None,
        }
    }
}
