//! Standby: the children that are started before the program arrives, their messages, and the choice of the child that
//! becomes the program.

use std::{
    fs,
    io::{self, Write},
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Phase, Sandbox};
use crate::{
    channels::Channels,
    child::{Child, WarmMessage},
    frame::OutputFrame,
    inspection, process_tree,
    request::Config,
    trust,
};

/// What stands between the frames and the kernel of a session.
const BRIDGE: &str = "/sandbox-bridge";

impl Sandbox {
    pub(super) fn start(&mut self, config: &Config) -> io::Result<()> {
        let can_take = self.child.as_ref().is_some_and(|child| child.control().is_some());
        let kernel_program = self.options.kernel_program.as_ref().filter(|_| config.kernel.is_some() && can_take);
        // Otherwise the bridge or the report of an inspection is started, and no interpreter.
        let is_interpreted = config.inspection.is_none() && (config.kernel.is_none() || kernel_program.is_some());
        if let Some(file) = kernel_program {
            let code = fs::read(file).map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
            self.program_file()?.write_all(&code)?;
        }
        self.program_file()?;
        self.program = None;
        let before = self.meter.read();
        let has_input = !self.inbox.is_over();
        if let (Some(successor), Some(child)) = (self.successor.take(), &self.child) {
            // It is not warm, and a program does not wait for that. Once it is killed it makes no keeper any more, and
            // one that it has not announced would hold its memory while the program runs. The spare has no children.
            process_tree::kill(successor.pid);
            process_tree::kill_others(child.pid);
        }
        if let Some(authority) = &config.authority {
            trust::write(authority)?;
        }
        // Before the program runs, so that its first connection finds the port open.
        if config.channels {
            self.channels = Channels::open()?;
        }
        let handed_over = is_interpreted && self.child.as_mut().is_some_and(|child| child.hand_over(config, has_input));
        if !handed_over {
            // A warm child that cannot be reached, or cannot be the kernel, is killed before anything starts cold.
            process_tree::kill_all();
            let command = match (&config.kernel, &config.inspection) {
                (Some(kernel), _) => Some(vec![BRIDGE.into(), kernel.into()]),
                (None, Some(targets)) => Some(inspection::command(targets)?),
                (None, None) => None,
            };
            self.child = Some(Child::cold(command.as_ref().unwrap_or(&self.options.command), config, has_input)?);
        }
        let allowed = Duration::from_millis(config.wall_ms.saturating_add(config.grace_ms));
        let deadline = if config.wall_ms == 0 { None } else { Instant::now().checked_add(allowed) };
        self.phase = Phase::Running { before, deadline };
        self.write_stdin();
        Ok(())
    }

    /// Handles the messages of a warm child.
    pub(super) fn read_control(&mut self) {
        let Some(child) = &mut self.child else { return };
        let (messages, is_open) = child.messages();
        if !is_open || !child.pass_on() {
            child.control = None;
        }
        for message in messages {
            match message {
                WarmMessage::Up => self.is_up(),
                WarmMessage::Warm => self.is_warm(),
                WarmMessage::Keeper(pid) => self.keeper = self.keeper.or(Some(pid)),
            }
        }
        self.send();
    }

    pub(super) fn read_successor_control(&mut self) {
        let Some(successor) = &mut self.successor else { return };
        let (messages, is_open) = successor.messages();
        if !is_open {
            successor.control = None;
        }
        for message in messages {
            match message {
                WarmMessage::Up => {}
                WarmMessage::Keeper(pid) => self.keeper = Some(pid),
                WarmMessage::Warm => {
                    // It may report this again, as it loads more.
                    if let Some(successor) = self.successor.take()
                        && let Some(spare) = self.child.replace(successor)
                    {
                        process_tree::kill(spare.pid);
                    }
                    self.is_warm();
                }
            }
        }
        self.send();
    }

    fn is_up(&mut self) {
        if !matches!(self.phase, Phase::Standby) {
            return;
        }
        self.outbox.push(OutputFrame::Ready, br#"{"protocol":1}"#);
        if self.options.spare && self.successor.is_none() {
            // A failure to start it is harmless: the spare takes the program.
            self.successor = Child::warm(&self.options.command, false).ok();
        }
    }

    /// A cold start has nothing to load, so the sandbox is ready at once.
    pub(super) fn report_ready_cold(&mut self) {
        self.outbox.push(OutputFrame::Ready, br#"{"protocol":1}"#);
        self.is_warm();
    }

    fn is_warm(&mut self) {
        if matches!(self.phase, Phase::Standby) {
            let ready = json!({"protocol": 1, "warm": true, "memoryBytes": self.meter.memory_bytes()});
            self.outbox.push(OutputFrame::Ready, ready.to_string().as_bytes());
        }
    }
}
