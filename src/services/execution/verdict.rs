//! Decides how a run ended, from facts only: who stopped it, the kernel's counters, the exit status.

use super::drive::{Driven, End, How};
use crate::domain::{
    limits::Limits,
    outcome::{Ended, Figures, Outcome},
};

/// The verdict of a driven program.
pub(super) fn outcome(driven: &Driven, limits: Limits) -> Outcome {
    Outcome {
        ended: ended(driven),
        oom_killed: driven.end.is_some_and(|end| end.oom_killed),
        limits,
        figures: Figures {
            wall: driven.wall,
            cpu: driven.end.and_then(|end| end.cpu),
            memory_peak_bytes: driven.end.and_then(|end| end.memory_peak_bytes),
            stdout_bytes: driven.stdout_bytes,
            stderr_bytes: driven.stderr_bytes,
            files: 0,
        },
    }
}

fn ended(driven: &Driven) -> Ended {
    match (driven.stopped, driven.end) {
        // It was refused processes and then hung: the refusal is why it never ended.
        (Some(Ended::TimedOut), Some(end)) if end.process_limit_hit => Ended::ProcessLimit,
        (Some(stopped), _) => stopped,
        (None, Some(End { overdue: true, .. })) => Ended::TimedOut,
        (None, Some(end)) if end.oom_killed && end.was_killed() => Ended::OutOfMemory,
        (None, Some(end)) if end.how != How::Status(0) && end.process_limit_hit => Ended::ProcessLimit,
        (None, Some(End { how: How::Signal(signal), .. })) => Ended::Signaled { signal },
        (None, Some(End { how: How::Status(code), .. })) => Ended::Exited { code },
        // `drive` answers an error instead; kept total so that no verdict is ever invented.
        (None, None) => Ended::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ports::engine::Exit, services::frames::Ending};

    fn verdict(stopped: Option<Ended>, end: Option<End>) -> Ended {
        let driven = Driven { stopped, end, wall: Duration::ZERO, stdout_bytes: 0, stderr_bytes: 0 };
        outcome(&driven, Limits::default()).ended
    }

    #[test]
    fn verdicts_of_plain_runners_follow_the_facts() {
        let exit = |status, oom_killed, process_limit_hit| {
            Some(Exit { status, oom_killed, process_limit_hit, broke_off: false }.into())
        };
        let rows = [
            (None, exit(0, false, false), Ended::Exited { code: 0 }),
            (None, exit(7, false, false), Ended::Exited { code: 7 }),
            (None, exit(128, false, false), Ended::Exited { code: 128 }),
            (None, exit(137, false, false), Ended::Signaled { signal: 9 }),
            (None, exit(139, false, false), Ended::Signaled { signal: 11 }),
            (None, exit(255, false, false), Ended::Exited { code: 255 }),
            (None, exit(137, true, false), Ended::OutOfMemory),
            (None, exit(1, true, false), Ended::Exited { code: 1 }),
            (None, exit(1, true, true), Ended::ProcessLimit),
            (None, exit(0, true, true), Ended::Exited { code: 0 }),
            (None, exit(1, false, true), Ended::ProcessLimit),
            (Some(Ended::TimedOut), exit(137, false, false), Ended::TimedOut),
            (Some(Ended::TimedOut), exit(137, false, true), Ended::ProcessLimit),
            (Some(Ended::TimedOut), None, Ended::TimedOut),
            (Some(Ended::OutputLimit), exit(137, false, false), Ended::OutputLimit),
            (Some(Ended::Cancelled), exit(137, true, true), Ended::Cancelled),
        ];
        for (stopped, end, expected) in rows {
            assert_eq!(verdict(stopped, end), expected, "{stopped:?} {end:?}");
        }
    }

    #[test]
    fn verdicts_of_framed_runners_follow_the_facts() {
        let ending = |text: &str| Some(serde_json::from_str::<Ending>(text).expect("an ending").into());
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
            assert_eq!(verdict(None, ending(text)), expected, "{text}");
        }
    }
}
