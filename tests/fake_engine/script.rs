//! What a program for the fake engine can do, one thing a line:
//!
//! | line | what happens |
//! | --- | --- |
//! | `print some text` | the text and a line end on standard output |
//! | `stderr some text` | the same on standard error |
//! | `bytes ff 0a` | these bytes on standard output, as one piece |
//! | `flood 1000000` | that many bytes on standard output |
//! | `write name some text` | a file with that text in the data folder, and the folders in its name |
//! | `append name some text` | the text at the end of a file in the data folder, and the folders in its name |
//! | `sleep 50ms` | time passes: `ms` or `s` |
//! | `wait-file name` | nothing, until there is a file with that name in the data folder; it is removed |
//! | `cpu` | the CPU that it may use, in thousandths of a core, on standard output |
//! | `hang` | nothing, for ever |
//! | `fork-limit` | a process was refused; the program goes on |
//! | `oom-child` | a child was killed for memory; the program goes on |
//! | `oom` | the program is killed for memory |
//! | `signal 11` | a signal ends the program |
//! | `exit 3` | it ends with that status |
//!
//! Empty lines and lines that begin with `#` do nothing; after the last line the program ends with status 0. Anything
//! else is a program that is wrong: it says so on standard error and ends with status 127. Pure.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Flood(usize),
    Write {
        name: String,
        text: String,
        append: bool,
    },
    Sleep(Duration),
    WaitFile(String),
    Cpu,
    Hang,
    ForkLimit,
    OomChild,
    Invalid(String),
    /// Ends with this status, by the memory limit or not.
    End {
        status: i32,
        oom: bool,
    },
}

/// What a line does; `None` when it does nothing.
pub(super) fn step(line: &str) -> Option<Step> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    Some(parse(word, rest).unwrap_or_else(|| Step::Invalid(format!("not a step: {line}\n"))))
}

fn parse(word: &str, rest: &str) -> Option<Step> {
    Some(match word {
        "print" => Step::Stdout(format!("{rest}\n").into_bytes()),
        "stderr" => Step::Stderr(format!("{rest}\n").into_bytes()),
        "bytes" => Step::Stdout(rest.split(' ').map(|hex| u8::from_str_radix(hex, 16).ok()).collect::<Option<_>>()?),
        "flood" => Step::Flood(rest.parse().ok()?),
        "write" | "append" => {
            let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
            Step::Write { name: name.to_owned(), text: text.to_owned(), append: word == "append" }
        }
        "sleep" => Step::Sleep(duration(rest)?),
        "wait-file" => Step::WaitFile(rest.to_owned()),
        "cpu" => Step::Cpu,
        "hang" => Step::Hang,
        "fork-limit" => Step::ForkLimit,
        "oom-child" => Step::OomChild,
        "oom" => Step::End { status: 137, oom: true },
        "signal" => Step::End { status: 128 + rest.parse::<i32>().ok()?, oom: false },
        "exit" => Step::End { status: rest.parse().ok()?, oom: false },
        _ => return None,
    })
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    if let Some(ms) = text.strip_suffix("ms") {
        return ms.parse().ok().map(Duration::from_millis);
    }
    text.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}
