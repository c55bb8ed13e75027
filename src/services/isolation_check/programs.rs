//! Programs that print what the kernel reports about them, in the languages of the usual runners. Each prints the same:
//! a line `== name` before each file, `== writable` with `yes` when `/data` takes a file, and `== groups` with `open`
//! when a folder can be created below `/sys/fs/cgroup`. Before these: `== variables` with the names of the environment,
//! and `== reached` with each target that a connection was made to, and `tried` at the end. A name server is reached
//! also when it answers over UDP: to `version.bind`, which it answers or refuses without asking another one. Process 1
//! prints the same for a framed runner of another language, and for each framed runner where there are targets: it can
//! have many processes in little memory, so it tries their number too, and prints `== processes` with `limited` or
//! `open`. Pure.
//!
//! They are files of `programs/`, in which `FILES` and `TARGETS` stand for what is to be printed and reached.
//!
//! An image of the plain contract has no process 1 of ours. Where no other image is installed, these programs are the
//! only check, and without them such an image would not be served.

use std::net::SocketAddr;

use crate::{
    domain::{Language, Limits},
    ports::runner::Runner,
};

/// The program that process 1 executes itself (`runners/README.md`); what is to be tried follows.
const BY_PROCESS_1: &str = "#!/sandbox-init --inspect";
/// Memory that a thread of process 1 takes at most. The number of processes is tried where a sandbox has it for all.
const PROCESS_BYTES: u64 = 64 << 10;

/// The program that checks a runner.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckProgram {
    pub text: String,
    /// Process 1 executes it. An older one hands it to the interpreter.
    pub by_process_1: bool,
}

/// The files to print. A missing file is an empty part.
const FILES: [&str; 8] = [
    "/proc/self/status",
    "/proc/net/dev",
    "/proc/self/mountinfo",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/pids/pids.max",
    "/proc/sys/kernel/core_pattern",
];

const BASH: &str = include_str!("programs/report.bash");
const PYTHON: &str = include_str!("programs/report.py");
const NODE: &str = include_str!("programs/report.mjs");

/// The program for a runner: in its language, in one that it has as an alias, or for its process 1, which is preferred
/// where there are targets.
pub(super) fn of_runner(runner: &Runner, targets: &[SocketAddr], limits: &Limits) -> Option<CheckProgram> {
    let names = std::iter::once(&runner.language).chain(&runner.aliases).map(Language::as_str);
    // The image of the browser runs Python.
    let known = names.map(|name| if name == "browser" { "python" } else { name }).find_map(|name| of(name, targets));
    let interpreted = known.map(|text| CheckProgram { text, by_process_1: false });
    let inspection = || {
        let memory = runner.memory_bytes.map_or(limits.memory_bytes, |own| own.min(limits.memory_bytes));
        let count = limits.processes_max;
        let fits = !targets.is_empty() && u64::from(count) * PROCESS_BYTES <= memory;
        let processes = if fits { format!(" processes/{count}") } else { String::new() };
        CheckProgram { text: format!("{BY_PROCESS_1} {}{processes}\n", listed(targets)), by_process_1: true }
    };
    let inspected = runner.is_framed.then(inspection);
    if targets.is_empty() { interpreted.or(inspected) } else { inspected.or(interpreted) }
}

/// The program for a language, if there is one. It tries to connect to the targets.
fn of(language: &str, targets: &[SocketAddr]) -> Option<String> {
    let text = match language {
        "bash" | "sh" => BASH.to_owned(),
        "python" => PYTHON.to_owned(),
        "javascript" | "typescript" => NODE.to_owned(),
        _ => return None,
    };
    Some(text.replace("FILES", &FILES.join(" ")).replace("TARGETS", &listed(targets)))
}

fn listed(targets: &[SocketAddr]) -> String {
    let targets: Vec<_> = targets.iter().map(|target| format!("{}/{}", target.ip(), target.port())).collect();
    targets.join(" ")
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv4Addr, UdpSocket},
        process::Command,
        thread,
    };

    use super::*;
    use crate::ports::{
        engine::ImageId,
        runner::{LABEL_ALIASES, LABEL_LANGUAGE, LABEL_MEMORY, LABEL_PROTOCOL, LABEL_RUNNER, RunnerImage},
    };

    fn found(language: &str, more: &[(&str, &str)], targets: &[SocketAddr]) -> Option<CheckProgram> {
        let labels = [(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, language)];
        let labels = labels.iter().chain(more).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let image =
            RunnerImage { id: ImageId("x@1".to_owned()), reference: None, created_unix_s: 0, labels, flaw: None };
        let limits = Limits { memory_bytes: 256 << 20, processes_max: 128, ..Limits::default() };
        of_runner(&Runner::from_image(&image).expect("a runner"), targets, &limits)
    }

    const TARGET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 443);

    #[test]
    fn a_runner_has_the_program_of_its_language_or_of_an_alias_or_of_its_process_1() {
        let framed = (LABEL_PROTOCOL, "1");
        let same = [("python-gpu", vec![(LABEL_ALIASES, "py3,python")]), ("browser", vec![])];
        for targets in [&[][..], &[TARGET]] {
            let python = found("python", &[], targets).expect("a program");
            assert_eq!(python.text.contains("192.0.2.1/443"), !targets.is_empty(), "{python:?}");
            assert!(!python.by_process_1, "{python:?}");
            for (language, more) in &same {
                assert_eq!(found(language, more, targets).as_ref(), Some(&python), "{language}");
            }
            assert_eq!(
                found("ruby", &[(LABEL_ALIASES, "rb")], targets),
                None,
                "a plain runner has no process 1 of ours"
            );
        }
        assert_eq!(found("python", &[framed], &[]), found("python", &[], &[]));
        let of_process_1 = |text: &str| Some(CheckProgram { text: text.to_owned(), by_process_1: true });
        assert_eq!(found("ruby", &[framed], &[]), of_process_1("#!/sandbox-init --inspect \n"));
        let text = "#!/sandbox-init --inspect 192.0.2.1/443 processes/128\n";
        for language in ["ruby", "python"] {
            assert_eq!(found(language, &[framed], &[TARGET]), of_process_1(text), "{language}");
        }
        // All of them would not fit.
        let small = [framed, (LABEL_MEMORY, "8000000")];
        assert_eq!(found("ruby", &small, &[TARGET]), of_process_1("#!/sandbox-init --inspect 192.0.2.1/443\n"));
    }

    #[test]
    fn name_server_that_answers_over_udp_alone_is_reached() {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("an address").port();
        let text = of("bash", &[([127, 0, 0, 1], 53).into()]).expect("a program").replace("/53", &format!("/{port}"));
        // What follows makes files.
        let (text, _) = text.split_once("for f in ").expect("the files");
        let asked = thread::spawn(move || {
            let mut question = [0; 64];
            let (length, client) = server.recv_from(&mut question).expect("a question");
            server.send_to(&question[..length], client).expect("answered");
            question[..length].to_vec()
        });
        let output = Command::new("bash").args(["-c", text]).output().expect("bash");
        let reached = format!("== reached\n127.0.0.1/{port}\ntried\n");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.ends_with(&reached), "{printed} {}", String::from_utf8_lossy(&output.stderr));
        let question = asked.join().expect("no panic");
        assert_eq!(question, b"sb\x01\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03");
    }

    #[test]
    fn process_1_knows_the_line_and_prints_the_same_files() {
        let source = include_str!("../../../init/src/inspection.rs");
        for text in FILES.iter().chain([&BY_PROCESS_1]) {
            assert!(source.contains(&format!("\"{text}\"")), "{text}");
        }
    }
}
