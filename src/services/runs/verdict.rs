//! Decides how a run ended, from facts only: who stopped it, the kernel's counters, the exit status.

use crate::{domain::outcome::Ended, ports::engine::Exit, services::frames::ExitReport};

/// The verdict: `stopped` says why we ended the program, `exit` how it exited, where that is known.
pub(super) fn ended(stopped: Option<Ended>, exit: Option<ExitReport>) -> Ended {
    let Some(exit) = exit else {
        // A program that we did not stop has an exit or an error.
        return stopped.unwrap_or(Ended::Cancelled);
    };
    // A shell that ran the program passes its signal on as 128 and its number.
    let was_killed = exit.signal == Some(9) || exit.status == Some(137);
    let refused_processes = exit.forks_refused > 0;
    match stopped {
        // It was refused processes and then hung: the refusal is why it never ended.
        Some(Ended::TimedOut) if refused_processes => Ended::ProcessLimit,
        Some(stopped) => stopped,
        None if exit.killed_by.is_some() => Ended::TimedOut,
        None if exit.oom_kills > 0 && was_killed => Ended::OutOfMemory,
        None if exit.status != Some(0) && refused_processes => Ended::ProcessLimit,
        None => match exit.signal {
            Some(signal) => Ended::Signaled { signal },
            None => Ended::Exited { code: exit.status.unwrap_or_default() },
        },
    }
}

impl From<Exit> for ExitReport {
    /// The exit of a plain runner, which reports a signal as shells do (POSIX 2.8.2): 128 and its number.
    fn from(exit: Exit) -> Self {
        let signal = (129..=159).contains(&exit.status).then(|| exit.status - 128);
        Self {
            status: signal.is_none().then_some(exit.status),
            signal,
            cpu_ms: None,
            memory_peak_bytes: None,
            oom_kills: exit.oom_killed.into(),
            forks_refused: exit.process_limit_hit.into(),
            killed_by: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_plain_runners_follow_the_facts() {
        let exits = |status, oom_killed, process_limit_hit| {
            Some(Exit { status, oom_killed, process_limit_hit, broke_off: false }.into())
        };
        let rows = [
            (None, exits(0, false, false), Ended::Exited { code: 0 }),
            (None, exits(7, false, false), Ended::Exited { code: 7 }),
            (None, exits(128, false, false), Ended::Exited { code: 128 }),
            (None, exits(137, false, false), Ended::Signaled { signal: 9 }),
            (None, exits(139, false, false), Ended::Signaled { signal: 11 }),
            (None, exits(255, false, false), Ended::Exited { code: 255 }),
            (None, exits(137, true, false), Ended::OutOfMemory),
            (None, exits(1, true, false), Ended::Exited { code: 1 }),
            (None, exits(1, true, true), Ended::ProcessLimit),
            (None, exits(0, true, true), Ended::Exited { code: 0 }),
            (None, exits(1, false, true), Ended::ProcessLimit),
            (Some(Ended::TimedOut), exits(137, false, false), Ended::TimedOut),
            (Some(Ended::TimedOut), exits(137, false, true), Ended::ProcessLimit),
            (Some(Ended::TimedOut), None, Ended::TimedOut),
            (Some(Ended::OutputLimit), exits(137, false, false), Ended::OutputLimit),
            (Some(Ended::Cancelled), exits(137, true, true), Ended::Cancelled),
        ];
        for (stopped, exit, expected) in rows {
            assert_eq!(ended(stopped, exit), expected, "{stopped:?} {exit:?}");
        }
    }

    #[test]
    fn verdicts_of_framed_runners_follow_the_facts() {
        let report = |text: &str| Some(serde_json::from_str(text).expect("an exit report"));
        for (text, expected) in [
            (r#"{"status":0}"#, Ended::Exited { code: 0 }),
            (r#"{"status":137}"#, Ended::Exited { code: 137 }),
            (r#"{"signal":9}"#, Ended::Signaled { signal: 9 }),
            (r#"{"signal":9,"oomKills":1}"#, Ended::OutOfMemory),
            (r#"{"status":137,"oomKills":1}"#, Ended::OutOfMemory),
            (r#"{"status":0,"oomKills":1}"#, Ended::Exited { code: 0 }),
            (r#"{"status":1,"oomKills":1}"#, Ended::Exited { code: 1 }),
            (r#"{"status":1,"forksRefused":3}"#, Ended::ProcessLimit),
            (r#"{"signal":9,"killedBy":"deadline"}"#, Ended::TimedOut),
        ] {
            assert_eq!(ended(None, report(text)), expected, "{text}");
        }
    }
}
