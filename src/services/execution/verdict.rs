//! Decides how a run ended, from facts only: who stopped it, the kernel's counters, the exit status.

use super::drive::Driven;
use crate::nouns::{
    limits::Limits,
    outcome::{Ended, Figures, Outcome},
};

/// The verdict of a driven program.
pub(super) fn outcome(driven: &Driven, limits: Limits) -> Outcome {
    Outcome {
        ended: ended(driven),
        oom_killed: driven.exit.is_some_and(|exit| exit.oom_killed),
        limits,
        figures: Figures {
            wall: driven.wall,
            cpu: None,
            memory_peak_bytes: None,
            stdout_bytes: driven.stdout_bytes,
            stderr_bytes: driven.stderr_bytes,
        },
    }
}

fn ended(driven: &Driven) -> Ended {
    match (driven.stopped, driven.exit) {
        // It was refused processes and then hung: the refusal is why it never ended.
        (Some(Ended::TimedOut), Some(exit)) if exit.process_limit_hit => Ended::ProcessLimit,
        (Some(stopped), _) => stopped,
        (None, Some(exit)) if exit.status != 0 && exit.oom_killed => Ended::OutOfMemory,
        (None, Some(exit)) if exit.status != 0 && exit.process_limit_hit => Ended::ProcessLimit,
        // A plain runner tells a signal as shells do (POSIX 2.8.2): 128 and its number.
        (None, Some(exit)) if (129..=159).contains(&exit.status) => Ended::Signaled { signal: exit.status - 128 },
        (None, Some(exit)) => Ended::Exited { code: exit.status },
        // `drive` answers an error instead; kept total so that no verdict is ever invented.
        (None, None) => Ended::Cancelled,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ports::engine::Exit;

    #[test]
    fn verdicts_follow_the_facts() {
        let exit = |status, oom_killed, process_limit_hit| Some(Exit { status, oom_killed, process_limit_hit });
        let rows = [
            (None, exit(0, false, false), Ended::Exited { code: 0 }),
            (None, exit(7, false, false), Ended::Exited { code: 7 }),
            (None, exit(128, false, false), Ended::Exited { code: 128 }),
            (None, exit(137, false, false), Ended::Signaled { signal: 9 }),
            (None, exit(139, false, false), Ended::Signaled { signal: 11 }),
            (None, exit(255, false, false), Ended::Exited { code: 255 }),
            (None, exit(137, true, false), Ended::OutOfMemory),
            (None, exit(1, true, true), Ended::OutOfMemory),
            (None, exit(0, true, true), Ended::Exited { code: 0 }),
            (None, exit(1, false, true), Ended::ProcessLimit),
            (Some(Ended::TimedOut), exit(137, false, false), Ended::TimedOut),
            (Some(Ended::TimedOut), exit(137, false, true), Ended::ProcessLimit),
            (Some(Ended::TimedOut), None, Ended::TimedOut),
            (Some(Ended::OutputLimit), exit(137, false, false), Ended::OutputLimit),
            (Some(Ended::Cancelled), exit(137, true, true), Ended::Cancelled),
        ];
        for (stopped, exit, expected) in rows {
            let driven = Driven { stopped, exit, wall: Duration::ZERO, stdout_bytes: 0, stderr_bytes: 0 };
            assert_eq!(outcome(&driven, Limits::default()).ended, expected, "{driven:?}");
        }
    }
}
