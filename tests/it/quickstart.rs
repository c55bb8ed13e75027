//! `quickstart.sh` in a copy of the repository: a first run, a second one, a taken port, and the end.
//!
//! The copy has the binary that build.sh made and no cargo in view, so that nothing is compiled a second time.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::support::free_port;

const PREPARE: &str =
    "this test needs an engine, Docker Compose and what build.sh makes: run ./test.sh, which has them";
const FILES: [&str; 12] = [
    "quickstart.sh",
    "build.sh",
    "scripts",
    "runners",
    "Dockerfile",
    ".dockerignore",
    "docker-compose.yml",
    ".env.example",
    "dist",
    "static",
    "Cargo.toml",
    "Cargo.lock",
];

struct Copy {
    folder: TempDir,
}

impl Copy {
    fn make() -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-quickstart-").tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let from = FILES.iter().map(|name| source.join(name));
        let copied = Command::new("cp").arg("-r").args(from).arg(folder.path()).status().expect("cp");
        assert!(copied.success(), "{PREPARE}");
        Self { folder }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let without_cargo = std::env::split_paths(&path).filter(|dir| !dir.join("cargo").exists());
        Command::new("bash")
            .arg("./quickstart.sh")
            .args(arguments)
            .current_dir(self.folder.path())
            .env("PATH", std::env::join_paths(without_cargo).expect("a path"))
            .env("SANDBOX_ROOT", self.folder.path().join("root"))
            .env_remove("PUBLIC_BASE_URL")
            .env_remove("MCP_PUBLISH")
            .env_remove("DOCKER_SOCKET")
            .stdin(Stdio::null())
            .output()
            .expect("bash")
    }

    /// What a run that must succeed prints.
    fn well(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}\n{err}\n{PREPARE}");
        out.into_owned()
    }

    fn env(&self) -> String {
        fs::read_to_string(self.folder.path().join(".env")).expect(".env")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        drop(self.run(&["--stop"]));
        let unmount = ". scripts/provision.sh && ! mountpoint -q root || as_root umount root";
        let mut command = Command::new("bash");
        command.args(["-c", unmount]).current_dir(self.folder.path()).env("PROGRAM", "test");
        drop(command.output());
        // The server is root in its container, and who runs the tests may not be.
        let mount = format!("{}:/folder", self.folder.path().display());
        let arguments = ["run", "--rm", "--user", "0", "--network", "none", "-v", &mount, "--entrypoint", "rm"];
        drop(Command::new("docker").args(arguments).args(["runner-bash", "-rf", "/folder/root"]).output());
    }
}

#[test]
fn quickstart_prints_its_usage() {
    let copy = Copy::make();
    assert!(copy.well(&["--help"]).contains("--port N"));
    for wrong in [&["--bogus"][..], &["--port"], &["--port", "0"], &["--port", "x"], &["--port=65536"], &["8080"]] {
        let output = copy.run(wrong);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{wrong:?}");
        assert!(!copy.folder.path().join(".env").exists(), "{wrong:?}");
    }
}

#[test]
fn quickstart_prints_a_programs_output_on_every_run() {
    let copy = Copy::make();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = (taken.local_addr().expect("its address").port().to_string(), taken);
    let output = copy.run(&["--port", &taken.0]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("is taken"), "{message}");

    let port = free_port().to_string();
    let first = copy.well(&["--port", &port]);
    let page = format!("http://localhost:{port}/");
    let paste = format!("claude mcp add --transport http sandbox {page}mcp --header");
    for part in ["Hello from Python", "5,25", &page, &paste, "MCP_API_TOKEN in "] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let settings = copy.env();
    let secrets: Vec<_> = ["MCP_API_TOKEN=", "FILE_SECRET="]
        .map(|name| settings.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default())
        .to_vec();
    assert!(secrets[0] != secrets[1] && secrets.iter().all(|secret| secret.len() == 64), "fresh secrets");
    assert!(!first.contains(secrets[0]) && !first.contains(secrets[1]), "a secret is printed");
    let mode = fs::metadata(copy.folder.path().join(".env")).expect(".env").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // Again, without a word of the port: the same server, the same settings.
    let second = copy.well(&[]);
    assert!(second.contains("Hello from Python") && second.contains(&page), "{second}");
    assert_eq!(copy.env(), settings);

    copy.well(&["--stop"]);
    assert!(TcpListener::bind(format!("127.0.0.1:{port}")).is_ok(), "the port is still taken");
}

/// The functions of the script, in a mount namespace that ends with the command.
const HARDEN: &str = r#"
. ./functions.sh
export SANDBOX_ROOT="$PWD/my root"
options() { awk '$5 ~ /my\\040root$/ { print $6 }' /proc/self/mountinfo; }
mkdir "my root" && echo kept > "my root/file"
harden_root && harden_root
options && cat "my root/file"
umount "my root"
mount -t tmpfs -o noexec none "my root"
harden_root && harden_root
options
"#;

/// A folder with the functions of the script, as `functions.sh`, and what they need.
fn functions() -> TempDir {
    functions_of("quickstart.sh")
}

/// The functions of a script that ends with the call of its `main`.
pub fn functions_of(script: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = fs::read_to_string(source.join(script)).expect("the script");
    let functions = script.trim_end().strip_suffix("main \"$@\"").expect("it ends with its call");
    fs::write(folder.path().join("functions.sh"), functions).expect("written");
    let copied = Command::new("cp").arg("-r").arg(source.join("scripts")).arg(folder.path()).status().expect("cp");
    assert!(copied.success());
    folder
}

#[test]
fn root_is_mounted_with_nosuid_and_nodev_once() {
    let folder = functions();
    // Who is not root is so in a user namespace.
    let namespace = if rustix::process::getuid().is_root() { "-m" } else { "-rm" };
    let mut command = Command::new("unshare");
    command.args([namespace, "bash", "-c", HARDEN]).current_dir(folder.path());
    let output = command.output().expect("unshare");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = out.lines().collect();
    let [first, "kept", second] = lines[..] else { panic!("{out}\n{err}") };
    let has = |options: &str, wanted: &[&str]| wanted.iter().all(|one| options.split(',').any(|option| option == *one));
    assert!(has(first, &["nosuid", "nodev"]) && has(second, &["nosuid", "nodev", "noexec"]), "{out}\n{err}");
}

/// Prints what Compose is handed over for the engines that the docker command can be told of.
const SOCKETS: &str = r"
. ./functions.sh
unset DOCKER_SOCKET
DOCKER_HOST=unix:///run/user/7/docker.sock engine_socket
DOCKER_HOST=tcp://engine.example.org:2376 engine_socket
DOCKER_SOCKET=/srv/engine.sock DOCKER_HOST=unix:///run/user/7/docker.sock engine_socket
docker() { echo unix:///run/user/8/docker.sock; }
DOCKER_HOST= engine_socket
docker() { return 1; }
DOCKER_HOST= engine_socket
";

#[test]
fn compose_mounts_the_socket_of_the_engine_that_docker_uses() {
    let folder = functions();
    let output = Command::new("bash").args(["-c", SOCKETS]).current_dir(folder.path()).output().expect("bash");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let wanted = "/run/user/7/docker.sock\n/var/run/docker.sock\n/srv/engine.sock\n/run/user/8/docker.sock\n\
                  /var/run/docker.sock\n";
    assert!(output.status.success() && out == wanted, "{out}\n{err}");
}

/// Makes .env, and notes the arguments of every program that is started for it.
const SECRETS: &str = r#"
. ./functions.sh
unset DOCKER_HOST DOCKER_SOCKET SANDBOX_ROOT
docker() { return 1; }
mkdir bin
for name in sed od tr ln rm mktemp; do
  printf '#!/bin/sh\necho "$@" >>"%s/arguments"\nexec %s "$@"\n' "$PWD" "$(command -v "$name")" >"bin/$name"
done
chmod +x bin/*
PATH=$PWD/bin:$PATH
write_env 8080
"#;

#[test]
fn secrets_are_in_no_list_of_processes() {
    let folder = functions();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(".env.example");
    fs::copy(example, folder.path().join(".env.example")).expect("copied");
    let output = Command::new("bash").args(["-c", SECRETS]).current_dir(folder.path()).output().expect("bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a file");
    let (settings, arguments) = (read(".env"), read("arguments"));
    for name in ["MCP_API_TOKEN=", "FILE_SECRET="] {
        let secret = settings.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        assert!(secret.len() == 64 && !arguments.contains(secret), "{name}{secret}: {arguments}");
    }
}
