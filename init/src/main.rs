//! `sandbox-init`: process 1 of a sandbox. Takes one program in frames by standard input, runs it, sends its output
//! and its end in frames by standard output, and leaves no process behind. Owns the program's deadline, so that it
//! holds when the server and the engine are gone. `runners/README.md` describes the protocol.
//!
//! The program runs as the same user and must neither read nor stop it: it handles no signal (see `signals`), and it is
//! not dumpable, so its files under /proc belong to root.

mod child;
mod figures;
mod flow;
mod frame;
#[cfg(test)]
mod fuzz;
mod process_tree;
mod request;
mod signals;
mod supervise;

use std::{ffi::OsString, process::ExitCode, time::Duration};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signals::ChildEnds;
use supervise::{Sandbox, Setting, Verdict};

const USAGE: &str = "usage: sandbox-init --program FILE [--warm [--spare]] -- COMMAND [ARGUMENT...]";

/// The status for a request that was refused, and for what keeps this process from doing its work.
const REFUSED: u8 = 125;

/// How long what is left may take to be gone. In a container the kernel sees to it in any case.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match setting(std::env::args_os().skip(1)).ok_or_else(|| USAGE.to_owned()).and_then(live) {
        Ok(Verdict::Done) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(REFUSED),
        Err(message) => {
            eprintln!("sandbox-init: {message}");
            ExitCode::from(REFUSED)
        }
    }
}

fn live(setting: Setting) -> Result<Verdict, String> {
    let run = || {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        Sandbox::new(setting, ChildEnds::watch()?)?.run()
    };
    let verdict = run();
    // A warm child that nobody needed goes with this process, in a container and out of it.
    process_tree::end(LEAVE_LIMIT);
    verdict.map_err(|error: std::io::Error| error.to_string())
}

fn setting(mut words: impl Iterator<Item = OsString>) -> Option<Setting> {
    let (mut program, mut warm, mut spare) = (None, false, false);
    loop {
        let word = words.next()?;
        match word.to_str()? {
            "--program" => program = Some(words.next()?.into()),
            "--warm" => warm = true,
            "--spare" => spare = true,
            "--" => break,
            _ => return None,
        }
    }
    let command: Vec<_> = words.collect();
    let is_whole = !command.is_empty() && (warm || !spare);
    program.filter(|_| is_whole).map(|program| Setting { program, warm, spare, command })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Setting> {
        setting(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_command_line_is_read_strictly() {
        let full = parse("--program /tmp/main.py --warm --spare -- python3 -P /tmp/main.py").expect("full");
        assert!(full.warm && full.spare && full.command.len() == 3 && full.program.ends_with("main.py"));
        for wrong in [
            "",
            "--program",
            "--program x",
            "--program x --",
            "-- sh",
            "--program x --cold -- sh",
            "--program x --spare -- sh",
        ] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
