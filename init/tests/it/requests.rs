//! Requests that are whole, cut in pieces, broken or given up.

use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Command,
};

use serde_json::json;

use crate::client::{Init, Reply, frame, request};

#[test]
fn request_is_accepted_when_split_anywhere() {
    let bytes = request(r#"{"args":["a b"],"env":{"K":"v"}}"#, "echo \"$1 $K $#\"");
    for cut in 0..bytes.len() {
        let mut init = Init::bash();
        init.send(&bytes[..cut]);
        init.send(&bytes[cut..]);
        assert_eq!(init.reply().stdout, b"a b v 1\n", "cut at {cut}");
    }
}

#[test]
fn request_is_accepted_byte_by_byte() {
    let mut init = Init::bash();
    for byte in request("{}", "echo one") {
        init.send(&[byte]);
    }
    assert_eq!(init.reply().stdout, b"one\n");
}

#[test]
fn program_may_arrive_in_pieces_or_be_empty() {
    let mut init = Init::bash();
    init.send(
        &[frame(1, b"{}"), frame(2, b"echo a"), frame(2, b""), frame(2, b"b\n"), frame(5, b""), frame(3, b"")].concat(),
    );
    assert_eq!(init.reply().stdout, b"ab\n");
    let mut init = Init::bash();
    init.send(&[frame(1, b"{}"), frame(5, b""), frame(3, b"")].concat());
    assert_eq!(init.reply().exit.expect("an EXIT")["status"], json!(0));
}

#[test]
fn unused_standby_exits_without_output() {
    for bytes in [Vec::new(), frame(1, b"{}"), [frame(1, b"{}"), frame(2, b"echo no")].concat(), vec![1, 0]] {
        let mut init = Init::bash();
        init.send(&bytes);
        drop(init.input.take());
        let reply = init.reply();
        // There is nothing to load, so it is ready and warm at once.
        assert_eq!((reply.ready.len(), reply.exit, reply.error, init.status()), (2, None, None, 0));
    }
}

#[test]
fn end_of_frames_after_the_start_only_ends_the_input() {
    let mut init = Init::bash();
    init.send(&[frame(1, b"{}"), frame(2, b"cat; sleep 0.2; echo end"), frame(3, b""), frame(4, b"in ")].concat());
    drop(init.input.take());
    assert_eq!(init.reply().stdout, b"in end\n");
}

#[test]
fn malformed_request_is_refused_with_a_reason() {
    let config = frame(1, b"{}");
    let broken: [(&[u8], &str); 9] = [
        (b"GET / HTTP/1.1\r\n", "no frame has the type 0x47"),
        (&[4, 0xff, 0xff, 0xff, 0xff], "longer"),
        (&frame(3, b""), "Go"),
        (&frame(1, b"{\"wallMs\":\"x\"}"), "configuration"),
        (&[config.clone(), config.clone()].concat(), "Config"),
        (&[config.clone(), frame(6, &[9])].concat(), "Signal"),
        (&[config.clone(), frame(3, b"x")].concat(), "Go"),
        (&[config.clone(), frame(5, b""), frame(4, b"x")].concat(), "Stdin"),
        (&[config.clone(), frame(4, &vec![0; 1 << 20]), frame(4, b"x")].concat(), "before the start"),
    ];
    for (bytes, reason) in broken {
        let mut init = Init::bash();
        init.send(bytes);
        let reply = init.reply();
        let message = reply.error.expect("an ERROR")["message"].to_string();
        assert!(message.contains(reason), "{message}");
        assert_eq!((reply.exit, init.status()), (None, 125));
    }
}

#[test]
fn malformed_frame_after_the_start_ends_the_program() {
    let mut init = Init::bash();
    init.send(&request("{}", "echo began; sleep 1000"));
    init.until("began");
    init.send(b"\xffmore");
    let reply = init.reply();
    assert!(reply.error.is_some() && reply.exit.is_none());
    assert_eq!(init.status(), 125);
}

#[test]
fn missing_interpreter_is_an_error() {
    let mut init = Init::cold("/nowhere/interpreter");
    init.send(&request("{}", ""));
    assert!(init.reply().error.is_some());
    assert_eq!(init.status(), 125);
}

#[test]
fn exit_reports_the_figures_that_are_known() {
    let exit = Init::run("true").exit.expect("an EXIT");
    for (name, value) in exit.as_object().expect("an object") {
        assert!(["status", "cpuMs", "memoryPeakBytes", "oomKills", "forksRefused"].contains(&name.as_str()), "{name}");
        assert!(value.is_u64(), "{name}");
    }
}

#[test]
fn inspection_is_printed_by_the_init_whatever_the_interpreter_is() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // Nothing listens at port 1.
    let program = format!("#!/sandbox-init --inspect 127.0.0.1/{port} 127.0.0.1/1\nexit 3\n");
    for flags in [&[][..], &["--warm"]] {
        let mut init = Init::start(flags, &["cat"]);
        init.send(&request("{}", &program));
        let Reply { stdout, exit, .. } = init.reply();
        let text = String::from_utf8_lossy(&stdout);
        assert_eq!(exit.expect("an EXIT")["status"], json!(0), "{text}");
        assert!(text.starts_with("== variables\n"), "{text}");
        assert!(text.contains(&format!("== reached\n127.0.0.1/{port}\ntried\n== /proc/self/status\nName:")), "{text}");
        assert!(text.contains("\n== writable\n") && text.contains("\n== groups\n"), "{text}");
    }
    let mut init = Init::cold("cat");
    init.send(&request("{}", "#!/sandbox-init --inspect localhost/1\n"));
    assert_eq!(init.reply().exit.expect("an EXIT")["status"], json!(1), "what cannot be tried is no pass");
}

#[test]
fn inspection_says_whether_so_many_processes_are_refused() {
    let mut init = Init::cold("cat");
    init.send(&request("{}", "#!/sandbox-init --inspect processes/64\n"));
    let stdout = init.reply().stdout;
    let text = String::from_utf8_lossy(&stdout);
    assert!(text.contains("\n== processes\nopen\n== writable\n"), "{text}");

    // The limit of a user holds for any but root.
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("open");
    let binary = folder.path().join("init");
    fs::copy(env!("CARGO_BIN_EXE_sandbox-init"), &binary).expect("copied");
    let mut command = Command::new("prlimit");
    command.arg("--nproc=1").arg(&binary).args(["--inspect", "processes/64"]);
    if rustix::process::getuid().is_root() {
        command.uid(54_321);
    }
    let output = command.output().expect("prlimit");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\n== processes\nlimited\n== writable\n"), "{text}");
}
