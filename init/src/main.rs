//! `sandbox-init`: process 1 of a sandbox. Takes one program in frames by standard input, runs it, sends its output
//! and its end in frames by standard output, and leaves no process behind. Owns the program's deadline, so that it
//! holds when the server and the engine are gone. `runners/README.md` describes the protocol.
//!
//! The program runs as the same user and must neither read nor stop it: it handles no signal (see `signals`), and it is
//! not dumpable, so its files under /proc belong to root.

mod channels;
mod child;
mod figures;
mod files;
mod flow;
mod frame;
#[cfg(test)]
mod fuzz;
mod inspection;
mod process_tree;
mod request;
mod signals;
mod supervise;
mod trust;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use child::ATTACHED_VARIABLE;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signals::ChildEnds;
use supervise::{Options, Sandbox, Verdict};

const USAGE: &str = "usage: sandbox-init --program FILE [--data DIR] [--kernel-program FILE] [--warm [--spare]] \
                     -- COMMAND [ARGUMENT...]";

/// The exit status for a refused request and for an internal error.
const REFUSED: u8 = 125;

/// How long remaining processes may take to end. In a container the kernel ends them in any case.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// How long the server may take to read the rest where it attaches to a running container.
const READ_LIMIT: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    if words.next_if(|word| word == inspection::FLAG).is_some() {
        return inspection::print(words);
    }
    match options(words).ok_or_else(|| USAGE.to_owned()).and_then(live) {
        Ok(Verdict::Done) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(REFUSED),
        Err(message) => {
            eprintln!("sandbox-init: {message}");
            ExitCode::from(REFUSED)
        }
    }
}

fn live(options: Options) -> Result<Verdict, String> {
    let run = || {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        Sandbox::new(options, ChildEnds::watch()?)?.run()
    };
    let verdict = run();
    // An unused warm child ends with this process, in a container and outside one.
    process_tree::end(LEAVE_LIMIT);
    if std::env::var_os(ATTACHED_VARIABLE).is_some() {
        // What is still on its way when the container ends is lost.
        flow::until_closed(rustix::stdio::stdin(), READ_LIMIT);
    }
    verdict.map_err(|error: std::io::Error| error.to_string())
}

fn options(mut words: impl Iterator<Item = OsString>) -> Option<Options> {
    let (mut program, mut kernel_program, mut warm, mut spare) = (None, None, false, false);
    let mut data = PathBuf::from(files::ROOT);
    loop {
        let word = words.next()?;
        match word.to_str()? {
            "--program" => program = Some(words.next()?.into()),
            "--data" => data = words.next()?.into(),
            "--kernel-program" => kernel_program = Some(words.next()?.into()),
            "--warm" => warm = true,
            "--spare" => spare = true,
            "--" => break,
            _ => return None,
        }
    }
    let command: Vec<_> = words.collect();
    let is_whole = !command.is_empty() && (warm || !spare && kernel_program.is_none());
    program.filter(|_| is_whole).map(|program| Options { program, data, warm, spare, kernel_program, command })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Options> {
        options(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn command_line_is_parsed_strictly() {
        let full = parse("--program /tmp/main.py --warm --spare -- python3 -P /tmp/main.py").expect("full");
        assert!(full.warm && full.spare && full.command.len() == 3 && full.program.ends_with("main.py"));
        assert_eq!(full.data, PathBuf::from("/data"));
        let kernel = parse("--program x --data /d --kernel-program /k.py --warm -- python3").expect("with a kernel");
        assert_eq!((full.kernel_program, kernel.kernel_program), (None, Some("/k.py".into())));
        assert_eq!(kernel.data, PathBuf::from("/d"));
        for wrong in [
            "",
            "--program",
            "--program x",
            "--program x --",
            "-- sh",
            "--program x --cold -- sh",
            "--program x --spare -- sh",
            "--program x --kernel-program y -- sh",
            "--program x --warm --kernel-program",
        ] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
