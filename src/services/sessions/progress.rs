//! How far one cell is, by what its kernel says: the same for a cell that is a run and for a notebook's.
//!
//! A cell has ended when its kernel has replied and says that it is idle; one whose kernel sends no idle status after
//! the reply ends a second later. Code of the cell can forge both, in its own sandbox. An idle status alone ends
//! nothing: what a cell keeps from others, it keeps while its code runs. A kernel that fails in the request itself
//! sends nothing else, so it is asked something a second later: where it answers that first, the cell has failed.

use std::{future::pending, mem, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    SessionEnd,
    kernel::own_message,
    message::{Channel, KernelMessage},
};
use crate::domain::{Ended, Failure};

/// How long after its reply a kernel may take to say that it is idle. Output in between still counts.
const IDLE_GRACE: Duration = Duration::from_secs(1);
/// How long a cell is idle without a reply before its kernel is asked whether it executes it.
const PROBE_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(in crate::services) struct Progress {
    /// How it ended by its first reply, and when that came.
    replied: Option<(Ended, Instant)>,
    /// Since when its kernel says that it is idle.
    idle: Option<Instant>,
    /// Why the server stopped it.
    stopped: Option<Ended>,
    /// The id of a request behind it. Kernels answer in order: its answer says that the cell is not executed any more.
    probe: Option<String>,
}

impl Progress {
    /// Takes the content of a reply.
    pub(in crate::services) fn reply(&mut self, content: &Value) {
        self.replied.get_or_insert_with(|| (verdict(content), Instant::now()));
    }

    /// Takes an idle status.
    pub(in crate::services) fn idle(&mut self) {
        self.idle.get_or_insert_with(Instant::now);
    }

    /// The server stops it for this reason; whether that counts. One that has replied has ended by itself, unless its
    /// output was cut.
    pub(in crate::services) fn stop(&mut self, ended: Ended) -> bool {
        let counts = !self.has_replied() || ended == Ended::OutputLimit;
        self.stopped = self.stopped.or(counts.then_some(ended));
        counts
    }

    pub(in crate::services) fn has_replied(&self) -> bool {
        self.replied.is_some()
    }

    /// It has replied and is idle.
    pub(in crate::services) fn is_complete(&self) -> bool {
        self.has_replied() && self.idle.is_some()
    }

    /// When it is over, as soon as that is known.
    pub(in crate::services) fn ended_at(&self) -> Option<Instant> {
        let (_, replied) = self.replied?;
        let latest = replied + IDLE_GRACE;
        Some(self.idle.map_or(latest, |idle| idle.clamp(replied, latest)))
    }

    /// When it is over or there is a [probe](Self::probe) for its kernel, as soon as that is known.
    pub(in crate::services) fn due(&self) -> Option<Instant> {
        let probe_at = || self.idle.filter(|_| self.probe.is_none()).map(|since| since + PROBE_AFTER);
        self.ended_at().or_else(probe_at)
    }

    /// A request for its kernel, where it is idle without a reply for too long.
    pub(in crate::services) fn probe(&mut self) -> Option<KernelMessage> {
        self.due().filter(|due| !self.has_replied() && *due <= Instant::now())?;
        let (id, request) = own_message("", Channel::Shell, "kernel_info_request", &json!({}));
        self.probe = Some(id);
        Some(request)
    }

    /// Waits for a probe; nothing when it is over.
    pub(super) async fn next_probe(&mut self) -> Option<KernelMessage> {
        match self.due() {
            Some(due) => sleep_until(due).await,
            None => pending().await,
        }
        self.probe()
    }

    /// Takes a message. Where the kernel answers the probe first, the cell gets no reply. An error is the bridge's
    /// answer, for a kernel that does not read: it executes the cell.
    pub(in crate::services) fn observe(&mut self, message: &KernelMessage) {
        let is_to_probe = |probe: &String| message.channel == Channel::Shell && message.read_parent().msg_id == *probe;
        if self.probe.as_ref().is_some_and(is_to_probe) && message.read_content()["status"] != "error" {
            self.reply(&Value::Null);
        }
    }

    /// How it ended: as it was stopped, as its kernel replied, or else with its session.
    ///
    /// # Errors
    /// Those of [`SessionEnd::of_cell`].
    pub(in crate::services) fn ended(&self, session: Option<SessionEnd>) -> Result<Ended, Failure> {
        let unknown = || session.unwrap_or(SessionEnd::Lost).of_cell();
        self.stopped.or(self.replied.map(|(ended, _)| ended)).map_or_else(unknown, Ok)
    }
}

/// How many processes were killed for memory, as the bridge said last.
#[derive(Default)]
pub(in crate::services) struct OomKills(Option<u64>);

impl OomKills {
    /// Takes what the bridge says; whether one was killed since it spoke before.
    pub(in crate::services) fn have_grown(&mut self, usage: &Value) -> bool {
        let before = mem::replace(&mut self.0, usage["oomKills"].as_u64());
        before.zip(self.0).is_some_and(|(before, now)| now > before)
    }
}

/// How a cell ended, by its kernel's reply alone: an error that was only shown, such as that of a script which `%run`
/// started, does not end its cell.
fn verdict(reply: &Value) -> Ended {
    // It was queued behind a cell that failed, and was not executed.
    if reply["status"] == "aborted" {
        return Ended::Cancelled;
    }
    let failed = reply["status"] != "ok";
    let text = |name: &str| reply[name].as_str().unwrap_or_default();
    // A shell's kernel gives the exit status as the value of an error without a name.
    let is_status = |code: &i32| failed && text("ename").is_empty() && (1..=255).contains(code);
    let status = text("evalue").parse::<i32>().ok().filter(is_status);
    Ended::Exited { code: status.unwrap_or(i32::from(failed)) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const OK: Ended = Ended::Exited { code: 0 };

    fn replied() -> Progress {
        let mut progress = Progress::default();
        progress.reply(&json!({"status": "ok"}));
        progress
    }

    #[tokio::test(start_paused = true)]
    async fn a_cell_is_over_at_its_reply_and_its_idle_status_in_any_order_or_a_second_after_its_reply() {
        let now = Instant::now();
        let mut progress = replied();
        assert_eq!((progress.ended_at(), progress.is_complete()), (Some(now + IDLE_GRACE), false));
        progress.idle();
        assert_eq!((progress.ended_at(), progress.is_complete()), (Some(now), true));
        let mut forged = Progress::default();
        forged.idle();
        assert_eq!((forged.ended_at(), forged.is_complete()), (None, false), "its code may run on");
        forged.reply(&json!({"status": "ok"}));
        assert_eq!((forged.ended_at(), forged.is_complete()), (Some(now), true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cell_that_is_idle_without_a_reply_is_probed_once_and_fails_at_the_answer() {
        let now = Instant::now();
        let mut silent = Progress::default();
        assert_eq!(silent.due(), None);
        silent.idle();
        assert_eq!((silent.due(), silent.probe()), (Some(now + PROBE_AFTER), None));
        let probe = silent.next_probe().await.expect("a probe");
        assert_eq!((silent.due(), silent.probe()), (None, None));
        let answer = |channel, parent: &Bytes, status: &str| KernelMessage {
            parent_header: parent.clone(),
            ..KernelMessage::new(channel, &json!({}), &json!({"status": status}))
        };
        silent.observe(&answer(Channel::Shell, &Bytes::from_static(b"{}"), "ok"));
        silent.observe(&answer(Channel::Iopub, &probe.header, "ok"));
        silent.observe(&answer(Channel::Shell, &probe.header, "error"));
        assert!(!silent.has_replied());
        silent.observe(&answer(Channel::Shell, &probe.header, "ok"));
        assert_eq!((silent.is_complete(), silent.ended(None)), (true, Ok(Ended::Exited { code: 1 })));
        let mut late = Progress::default();
        late.idle();
        let probe = late.next_probe().await.expect("a probe");
        late.reply(&json!({"status": "ok"}));
        late.observe(&answer(Channel::Shell, &probe.header, "ok"));
        assert_eq!((late.next_probe().await, late.ended(None)), (None, Ok(OK)), "its code ran on");
    }

    #[tokio::test]
    async fn a_cell_that_has_replied_is_not_stopped_and_one_that_was_stopped_keeps_its_reason() {
        let mut late = replied();
        for ended in [Ended::TimedOut, Ended::Cancelled] {
            assert!(!late.stop(ended));
        }
        late.reply(&json!({"status": "error"}));
        assert_eq!(late.ended(Some(SessionEnd::Killed)), Ok(OK));
        assert!(late.stop(Ended::OutputLimit), "its output was cut");
        assert_eq!(late.ended(None), Ok(Ended::OutputLimit));
        let mut stopped = Progress::default();
        assert!(stopped.stop(Ended::TimedOut) && stopped.stop(Ended::Cancelled));
        stopped.reply(&json!({"status": "error", "ename": "KeyboardInterrupt"}));
        assert_eq!(stopped.ended(None), Ok(Ended::TimedOut));
    }

    #[test]
    fn what_is_killed_for_memory_counts_from_one_answer_of_the_bridge_to_the_next() {
        let mut kills = OomKills::default();
        let said = [Some(1), Some(1), Some(2), None, Some(3), Some(3), Some(4)];
        let grown = said.map(|count: Option<u64>| kills.have_grown(&json!({"oomKills": count})));
        assert_eq!(grown, [false, false, true, false, false, false, true]);
    }

    #[test]
    fn a_reply_says_how_its_cell_ended() {
        let exited = |code| Ended::Exited { code };
        for (reply, ended) in [
            (json!({"status": "ok", "evalue": "3"}), OK),
            (json!({"status": "error", "ename": "KeyError", "evalue": "3"}), exited(1)),
            (json!({"status": "error", "ename": "", "evalue": "3"}), exited(3)),
            (json!({"status": "error", "evalue": "256"}), exited(1)),
            (json!({"status": "aborted"}), Ended::Cancelled),
            (json!({}), exited(1)),
        ] {
            assert_eq!(verdict(&reply), ended, "{reply}");
        }
    }

    #[test]
    fn a_cell_without_a_reply_ends_as_its_session() {
        let (cell, killed) = (Progress::default(), Ended::Signaled { signal: 9 });
        assert_eq!(cell.ended(Some(SessionEnd::Kernel(killed))), Ok(killed));
        assert!(cell.ended(Some(SessionEnd::Lost)).is_err() && cell.ended(None).is_err());
    }
}
