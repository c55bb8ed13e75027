//! What the kernel reports of a process in this sandbox, for a server that checks its isolation before it runs any
//! program. It is printed by this binary, started as a program is, so the check needs no interpreter. The server's
//! `services/isolation_check` reads the report.
//!
//! Any program may begin with the line that asks for it. Process 1 reads no more than that line; the report is made by
//! a child that has the user and the limits of a program, and contains nothing that a program could not find out.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    process::ExitCode,
    sync::RwLock,
    thread,
    time::Duration,
};

/// The first argument of this binary when it prints the report; what is to be tried follows.
pub const FLAG: &str = "--inspect";

/// How a program begins that asks for this report. Its first line goes on with what is to be tried: addresses, such as
/// `192.0.2.1/443`, and a number of processes, as `processes/128`.
const LINE: &str = "#!/sandbox-init --inspect";
const PROCESSES: &str = "processes";
/// The stack of a thread that waits.
const STACK_BYTES: usize = 16 << 10;

const CONNECT_MAX: Duration = Duration::from_secs(2);
const DNS_PORT: u16 = 53;
/// A question that a name server answers or refuses without asking another one: `version.bind`, TXT, of class CHAOS.
const QUESTION: &[u8] = b"sb\x01\0\0\x01\0\0\0\0\0\0\x07version\x04bind\0\0\x10\0\x03";

/// The files to print, as in the server's programs. A missing file is an empty part.
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

/// A file of this name can be made only where programs can write in `/data`.
const DATA_FILE: &str = "/data/self-test";
/// A control group of this name can be made only where their folder is open.
const GROUP: &str = "/sys/fs/cgroup/self-test";

/// What is to be tried, if a program asks for this report.
pub fn targets(program: &[u8]) -> Option<Vec<String>> {
    let line = program.strip_prefix(LINE.as_bytes())?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    (line.is_empty() || line.starts_with(' ')).then(|| line.split_whitespace().map(str::to_owned).collect())
}

/// What is started for the report in place of the interpreter.
pub fn command(targets: &[String]) -> io::Result<Vec<OsString>> {
    let mut command: Vec<OsString> = vec![env::current_exe()?.into(), FLAG.into()];
    command.extend(targets.iter().map(OsString::from));
    Ok(command)
}

/// Prints the report. It fails when what is to be tried cannot be parsed or nothing can be printed.
pub fn print(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Option<Vec<_>> = words.map(|word| Trial::parse(word.to_str()?)).collect();
    let printed = words.map(|words| report(&words, &mut io::stdout().lock()));
    if matches!(printed, Some(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is to be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    Connect(SocketAddr),
    /// To have so many processes.
    Processes(u32),
}

impl Trial {
    fn parse(word: &str) -> Option<Self> {
        let (what, number) = word.rsplit_once('/')?;
        if what == PROCESSES {
            return number.parse().ok().map(Self::Processes);
        }
        Some(Self::Connect(SocketAddr::new(what.parse::<IpAddr>().ok()?, number.parse().ok()?)))
    }
}

fn report(trials: &[Trial], out: &mut impl Write) -> io::Result<()> {
    let targets = trials.iter().filter_map(|trial| if let Trial::Connect(to) = trial { Some(*to) } else { None });
    let processes =
        trials.iter().find_map(|trial| if let Trial::Processes(count) = trial { Some(*count) } else { None });
    writeln!(out, "== variables")?;
    for (name, _) in env::vars_os() {
        writeln!(out, "{}", name.to_string_lossy())?;
    }
    writeln!(out, "== reached")?;
    for target in reached(&targets.collect::<Vec<_>>()) {
        writeln!(out, "{}/{}", target.ip(), target.port())?;
    }
    writeln!(out, "tried")?;
    for file in FILES {
        writeln!(out, "== {file}")?;
        out.write_all(&fs::read(file).unwrap_or_default())?;
        writeln!(out)?;
    }
    if let Some(count) = processes {
        writeln!(out, "== processes\n{}", if is_refused(count)? { "limited" } else { "open" })?;
    }
    writeln!(out, "== writable")?;
    // A file of this name that is there already is left as it is.
    if fs::File::create_new(DATA_FILE).is_ok() {
        fs::remove_file(DATA_FILE)?;
        writeln!(out, "yes")?;
    }
    writeln!(out, "== groups")?;
    if fs::create_dir(GROUP).is_ok() {
        fs::remove_dir(GROUP)?;
        writeln!(out, "open")?;
    }
    out.flush()
}

/// Whether the kernel refuses one of so many threads, each of which counts as a process.
fn is_refused(count: u32) -> io::Result<bool> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let _closed = gate.write();
        for _ in 0..count {
            let waits = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, || drop(gate.read()));
            match waits {
                Ok(_) => {}
                Err(refused) if refused.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    })
}

/// The addresses that were reached, all tried at once.
fn reached(targets: &[SocketAddr]) -> Vec<SocketAddr> {
    thread::scope(|scope| {
        let tries = targets.iter().map(|target| (*target, scope.spawn(move || reaches(target))));
        let tries: Vec<_> = tries.collect();
        // What is not known counts as reached.
        tries.into_iter().filter_map(|(target, tried)| tried.join().unwrap_or(true).then_some(target)).collect()
    })
}

/// Name servers are tried by UDP too: a policy that lets out nothing else would still carry data by names.
fn reaches(target: &SocketAddr) -> bool {
    TcpStream::connect_timeout(target, CONNECT_MAX).is_ok() || (target.port() == DNS_PORT && answers(target).is_ok())
}

/// Waits for a name server's answer over UDP.
fn answers(server: &SocketAddr) -> io::Result<usize> {
    let any = if server.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(CONNECT_MAX))?;
    socket.connect(server)?;
    socket.send(QUESTION)?;
    socket.recv(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_with_this_first_line_is_a_report() {
        let found = |program: &str| targets(program.as_bytes());
        assert_eq!(found("#!/sandbox-init --inspect"), Some(Vec::new()));
        let two = ["192.0.2.1/443", "2001:db8::1/53"].map(str::to_owned);
        assert_eq!(found("#!/sandbox-init --inspect 192.0.2.1/443 2001:db8::1/53\nmore"), Some(two.to_vec()));
        for other in ["", "#!/sandbox-init", "#!/sandbox-init --inspects\n", " #!/sandbox-init --inspect", "puts 1\n"] {
            assert_eq!(found(other), None, "{other}");
        }
        let address = "[2001:db8::1]:53".parse().expect("an address");
        assert_eq!(Trial::parse("2001:db8::1/53"), Some(Trial::Connect(address)));
        assert_eq!(Trial::parse("processes/128"), Some(Trial::Processes(128)));
        for other in ["", "192.0.2.1", "192.0.2.1/x", "localhost/53", "processes/", "processes/many"] {
            assert_eq!(Trial::parse(other), None, "{other}");
        }
    }

    #[test]
    fn name_server_that_answers_over_udp_is_reached() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = server.local_addr().expect("an address");
        let asked = thread::spawn(move || {
            let mut question = [0; 64];
            let (length, client) = server.recv_from(&mut question).expect("a question");
            server.send_to(&question[..length], client).expect("answered");
            question[..length].to_vec()
        });
        answers(&address).expect("an answer");
        assert_eq!(asked.join().expect("no panic"), QUESTION);
        // Its socket is closed.
        answers(&address).expect_err("no answer");
    }
}
