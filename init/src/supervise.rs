//! The life of a sandbox, from READY to the last frame: one loop that waits for whatever comes first (a frame, a
//! child's word or end, room in a pipe, the deadline) and never for one thing alone.
//!
//! It starts the child, which is or becomes the program, and ends everything the child left behind before it says EXIT.

use std::{
    fs::File,
    io::{self, Write},
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, kill_process},
    stdio::{stdin, stdout},
};
use serde_json::json;

mod standby;
mod state;
mod wait;

use state::{Exit, KILL_AGAIN, KILL_LIMIT, Phase, SEND_LIMIT, Source};
pub use state::{Setting, Verdict};

use crate::{
    child::Child,
    figures::{Counters, Meter},
    flow::{self, Inbox, Outbox, Progress, READ_BYTES},
    frame::{Decoder, Tell},
    process_tree::{self, Ending, Harvest},
    request::{Order, Request},
    signals::ChildEnds,
};

/// One sandbox.
#[derive(Debug)]
pub struct Sandbox {
    setting: Setting,
    meter: Meter,
    child_ends: ChildEnds,
    decoder: Decoder,
    request: Request,
    frames_open: bool,
    program: Option<File>,
    /// The program, or what shall become it.
    child: Option<Child>,
    /// Takes the child's place when it has loaded everything.
    successor: Option<Child>,
    /// Holds the program's memory too, so that the program's end need not wait for it to be given back.
    keeper: Option<Pid>,
    inbox: Inbox,
    outbox: Outbox,
    ending: Option<Ending>,
    /// The counters at the program's end, where they were read before the keeper was killed.
    after: Option<Counters>,
    killed_by_deadline: bool,
    fault: Option<String>,
    phase: Phase,
}

impl Sandbox {
    /// A sandbox whose children end by `child_ends`. Starts a warm child.
    pub fn new(setting: Setting, child_ends: ChildEnds) -> io::Result<Self> {
        process_tree::adopt_orphans();
        flow::never_block(stdin())?;
        flow::never_block(stdout())?;
        let mut sandbox = Self {
            child: None,
            successor: None,
            keeper: None,
            setting,
            meter: Meter::open(),
            child_ends,
            decoder: Decoder::default(),
            request: Request::default(),
            frames_open: true,
            program: None,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            ending: None,
            after: None,
            killed_by_deadline: false,
            fault: None,
            phase: Phase::Standby,
        };
        if sandbox.setting.warm {
            sandbox.child = Some(Child::warm(&sandbox.setting.command, sandbox.setting.spare)?);
        } else {
            sandbox.is_ready_cold();
        }
        Ok(sandbox)
    }

    /// Lives until the last frame is sent.
    pub fn run(mut self) -> io::Result<Verdict> {
        loop {
            if let Some(verdict) = self.verdict() {
                return Ok(verdict);
            }
            for source in self.wait()? {
                self.serve(source);
            }
            self.look_at_the_clock();
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Standby if !self.frames_open => Some(Verdict::Done),
            Phase::Sending { verdict, since } if self.outbox.is_empty() || since.elapsed() > SEND_LIMIT => {
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
            Source::Stdin => self.feed(),
            Source::Stdout => self.read_output(Tell::Stdout),
            Source::Stderr => self.read_output(Tell::Stderr),
            Source::Control => self.hear(),
            Source::Successor => self.hear_the_successor(),
        }
    }

    fn read_frames(&mut self) {
        let mut buffer = vec![0; READ_BYTES];
        match flow::read(stdin(), &mut buffer) {
            Progress::Moved(count) => self.decoder.feed(&buffer[..count]),
            Progress::Later => return,
            Progress::Closed => {
                self.frames_open = false;
                self.inbox.end();
                self.feed();
                return;
            }
        }
        loop {
            let next = match self.decoder.next() {
                Ok(None) => return,
                Ok(Some((ask, payload))) => self.request.take(ask, payload).map_err(|fault| fault.to_string()),
                Err(broken) => Err(broken.to_string()),
            };
            if let Err(message) = next.and_then(|order| self.obey(order).map_err(|error| error.to_string())) {
                return self.refuse(message);
            }
        }
    }

    fn obey(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Append(bytes) => self.program_file()?.write_all(&bytes)?,
            Order::Start(config) => self.start(&config)?,
            Order::Input(bytes) => {
                self.inbox.push(&bytes);
                self.feed();
            }
            Order::EndInput => {
                self.inbox.end();
                self.feed();
            }
            Order::Signal(signal) => {
                if let (Some(child), None) = (&self.child, self.ending) {
                    // It may have ended a moment ago: then the signal comes too late, as signals may.
                    let _ = kill_process(child.pid, signal);
                }
            }
            Order::Nothing => {}
        }
        Ok(())
    }

    fn program_file(&mut self) -> io::Result<&mut File> {
        if self.program.is_none() {
            let path = &self.setting.program;
            let file = File::create(path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            self.program = Some(file);
        }
        self.program.as_mut().ok_or_else(|| io::Error::other("the program has no file"))
    }

    /// Gives the program what it takes of its input, and then its end.
    fn feed(&mut self) {
        if !self.request.started() {
            return;
        }
        let Some(child) = &mut self.child else { return };
        while let (Some(stdin), true) = (&child.stdin, self.inbox.waits()) {
            match self.inbox.write(stdin) {
                Progress::Moved(_) => {}
                Progress::Later => return,
                Progress::Closed => child.stdin = None,
            }
        }
        if child.stdin.is_none() {
            self.inbox.discard();
        } else if self.inbox.is_over() {
            child.stdin = None;
        }
    }

    /// Passes on one read of one stream. `false` when there is nothing to read at the moment, or never again.
    fn read_stream(&mut self, tell: Tell) -> bool {
        let Some(child) = &mut self.child else { return false };
        let pipe = if tell == Tell::Stdout { &mut child.stdout } else { &mut child.stderr };
        let Some(fd) = pipe else { return false };
        let mut buffer = vec![0; READ_BYTES];
        match flow::read(&*fd, &mut buffer) {
            Progress::Moved(count) => {
                self.outbox.push(tell, &buffer[..count]);
                true
            }
            Progress::Later => false,
            Progress::Closed => {
                *pipe = None;
                false
            }
        }
    }

    fn read_output(&mut self, tell: Tell) {
        self.read_stream(tell);
        self.send();
    }

    fn send(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        match self.outbox.send(stdout()) {
            Progress::Moved(_) => {
                if let Phase::Sending { since, .. } = &mut self.phase {
                    *since = Instant::now();
                }
                self.finish();
            }
            Progress::Later => {}
            Progress::Closed => {
                // Nobody will ever learn how it ends.
                process_tree::kill_all();
                self.outbox = Outbox::default();
                self.phase = Phase::Sending { verdict: Verdict::Failed, since: Instant::now() };
            }
        }
    }

    fn collect(&mut self) {
        self.child_ends.clear();
        let harvest = self.harvest();
        match (harvest.of(self.child.as_ref().map(|child| child.pid)), &self.phase) {
            (None, _) => {}
            // A warm child that died before it was needed: the program will be started cold.
            (Some(_), Phase::Standby) => {
                self.child = None;
                self.is_ready_cold();
            }
            (Some(ending), _) => {
                self.ending = Some(ending);
                if self.keeper.is_some_and(process_tree::is_only) {
                    // Giving the keeper's memory back competes with this process for the processor.
                    self.after = Some(self.meter.read());
                }
                self.end_all();
            }
        }
        if self.are_all_gone(&harvest) {
            self.all_are_gone();
        }
    }

    /// Collects what has ended, and forgets those of them that stood by.
    fn harvest(&mut self) -> Harvest {
        let harvest = process_tree::collect();
        self.keeper = self.keeper.filter(|keeper| harvest.of(Some(*keeper)).is_none());
        self.successor = self.successor.take().filter(|successor| harvest.of(Some(successor.pid)).is_none());
        harvest
    }

    /// Whether nothing of the program can act any more. A keeper that was killed acts no more, either; it is still busy
    /// with giving the memory back, which takes longer than most programs.
    fn are_all_gone(&self, harvest: &Harvest) -> bool {
        matches!(self.phase, Phase::Ending { .. })
            && (harvest.is_last || self.keeper.is_some_and(process_tree::is_only))
    }

    fn end_all(&mut self) {
        process_tree::kill_all();
        if let Phase::Running { before, .. } = &mut self.phase {
            self.phase = Phase::Ending { before: std::mem::take(before), since: Instant::now(), gone: false };
        }
        let harvest = self.harvest();
        self.ending = self.ending.or(harvest.of(self.child.as_ref().map(|child| child.pid)));
        if self.are_all_gone(&harvest) {
            self.all_are_gone();
        }
    }

    fn all_are_gone(&mut self) {
        if let Phase::Ending { gone, .. } = &mut self.phase {
            *gone = true;
            self.finish();
        }
    }

    /// Says how it ended, once everything is gone and the pipes are empty.
    fn finish(&mut self) {
        let Phase::Ending { since, gone, .. } = &self.phase else { return };
        if !gone && since.elapsed() < KILL_LIMIT {
            return;
        }
        for tell in [Tell::Stdout, Tell::Stderr] {
            while !self.outbox.is_full() && self.read_stream(tell) {}
        }
        if self.outbox.is_full() {
            return self.send();
        }
        let Phase::Ending { before, .. } = &self.phase else { return };
        let verdict = if let Some(message) = self.fault.take() {
            self.outbox.push(Tell::Error, json!({ "message": message }).to_string().as_bytes());
            Verdict::Failed
        } else {
            let exit = Exit {
                ending: self.ending.unwrap_or(Ending::Signal(rustix::process::Signal::KILL.as_raw())),
                figures: self.after.take().unwrap_or_else(|| self.meter.read()).since(before),
                killed_by: self.killed_by_deadline.then_some("deadline"),
            };
            self.outbox.push(Tell::Exit, serde_json::to_string(&exit).unwrap_or_default().as_bytes());
            Verdict::Done
        };
        self.phase = Phase::Sending { verdict, since: Instant::now() };
        self.send();
    }

    /// The request is broken: the program goes, and then the reason is told.
    fn refuse(&mut self, message: String) {
        self.frames_open = false;
        self.fault = Some(message);
        if matches!(self.phase, Phase::Standby) {
            self.phase = Phase::Running { before: Counters::default(), deadline: None };
        }
        self.end_all();
    }

    fn look_at_the_clock(&mut self) {
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

    /// When the clock is to be looked at again, if nothing else happens.
    fn next_look(&self) -> Option<Duration> {
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
