//! Before the program: children that are started ahead of it, what they say of themselves, and which of them becomes it.

use std::{
    io,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Phase, Sandbox};
use crate::{
    child::{Child, Word},
    frame::Tell,
    process_tree,
    request::Config,
};

impl Sandbox {
    pub(super) fn start(&mut self, config: &Config) -> io::Result<()> {
        self.program_file()?;
        self.program = None;
        let before = self.meter.read();
        let has_input = !self.inbox.is_over();
        if let Some(successor) = self.successor.take() {
            // It has not loaded everything, and a program does not wait for that.
            process_tree::kill(successor.pid);
        }
        let told = self.child.as_mut().is_some_and(|child| child.hand_over(config, has_input));
        if !told {
            // Whatever is left of a warm child must not stand in the program's way.
            process_tree::kill_all();
            self.child = Some(Child::cold(&self.setting.command, config, has_input)?);
        }
        let allowed = Duration::from_millis(config.wall_ms.saturating_add(config.grace_ms));
        let deadline = if config.wall_ms == 0 { None } else { Instant::now().checked_add(allowed) };
        self.phase = Phase::Running { before, deadline };
        self.feed();
        Ok(())
    }

    /// What a warm child says before it is the program.
    pub(super) fn hear(&mut self) {
        let Some(child) = &mut self.child else { return };
        let (words, listens) = child.words();
        if !listens || !child.pass_on() {
            child.control = None;
        }
        for word in words {
            match word {
                Word::Up => self.is_up(),
                Word::Warm => self.is_warm(),
                Word::Keeper(pid) => self.keeper = self.keeper.or(Some(pid)),
            }
        }
        self.send();
    }

    pub(super) fn hear_the_successor(&mut self) {
        let Some(successor) = &mut self.successor else { return };
        let (words, listens) = successor.words();
        if !listens {
            successor.control = None;
        }
        for word in words {
            match word {
                Word::Up => {}
                Word::Keeper(pid) => self.keeper = Some(pid),
                Word::Warm => {
                    if let Some(spare) = std::mem::replace(&mut self.child, self.successor.take()) {
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
        self.outbox.push(Tell::Ready, br#"{"protocol":1}"#);
        if self.setting.spare && self.successor.is_none() {
            // One that cannot be started is missed by nobody: the spare one takes the program.
            self.successor = Child::warm(&self.setting.command, false).ok();
        }
    }

    /// Where nothing is loaded ahead, nothing is left to load.
    pub(super) fn is_ready_cold(&mut self) {
        self.outbox.push(Tell::Ready, br#"{"protocol":1}"#);
        self.is_warm();
    }

    fn is_warm(&mut self) {
        if matches!(self.phase, Phase::Standby) {
            let ready = json!({"protocol": 1, "warm": true, "memoryBytes": self.meter.memory_bytes()});
            self.outbox.push(Tell::Ready, ready.to_string().as_bytes());
        }
    }
}
