//! A `PostgreSQL` cluster of a test's own, from Debian's package: in a temporary folder, on a Unix socket, as a user
//! without privileges. It ends when the value is dropped. One over TLS takes connections over TCP too, and none there
//! in the clear.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::{free_port, until};

const INSTALL: &str = "these tests need PostgreSQL: run ./test.sh, which installs it, or `apt-get install postgresql`";
/// `PostgreSQL` refuses to run as root. Debian's package makes this user.
const USER: &str = "postgres";

pub struct Postgres {
    folder: TempDir,
    child: Option<Child>,
    /// Of its Unix socket, and of TCP where it speaks TLS.
    port: u16,
    tls: bool,
}

impl Postgres {
    pub async fn start() -> Self {
        Self::make(false).await
    }

    /// One that has a certificate for `localhost`.
    pub async fn over_tls() -> Self {
        Self::make(true).await
    }

    async fn make(tls: bool) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-pg-").tempdir().expect("a folder");
        if geteuid().is_root() {
            let id = |kind| {
                let answer = Command::new("id").args([kind, USER]).output().expect("id");
                String::from_utf8_lossy(&answer.stdout).trim().parse().unwrap_or_else(|_| panic!("{INSTALL}"))
            };
            chown(folder.path(), Some(id("-u")), Some(id("-g"))).expect("the folder's owner");
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).expect("the folder's mode");
        let arguments = ["--username=sandbox", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"];
        let made = program("initdb").args(arguments).arg(folder.path().join("data")).output().expect("initdb");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut cluster = Self { folder, child: None, port: 5432, tls };
        if tls {
            cluster.port = free_port();
            cluster.make_certificate();
        }
        cluster.resume().await;
        cluster
    }

    /// Where it is, for `DATABASE_URL`.
    pub fn url(&self) -> String {
        format!("postgres://sandbox@localhost/postgres?host={}", self.folder.path().display())
    }

    /// The same over TCP, with these parameters.
    pub fn tls_url(&self, parameters: &str) -> String {
        format!("postgres://sandbox@localhost:{}/postgres?{parameters}", self.port)
    }

    /// The certificate that is to be trusted.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("data/certificate.pem")
    }

    fn make_certificate(&self) {
        let data = self.folder.path().join("data");
        let made = as_user("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args([
                "-addext",
                "subjectAltName=DNS:localhost",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
                "-keyout",
            ])
            .arg(data.join("key.pem"))
            .arg("-out")
            .arg(self.certificate())
            .output()
            .expect("openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::write(data.join("pg_hba.conf"), "local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
            .expect("written");
    }

    /// Starts it again, and waits until it answers.
    pub async fn resume(&mut self) {
        let log = fs::File::create(self.folder.path().join("log")).expect("a log");
        let mut command = program("postgres");
        command.arg("-D").arg(self.folder.path().join("data")).arg("-k").arg(self.folder.path());
        command.args(["-c", "fsync=off", "-p", &self.port.to_string()]);
        if self.tls {
            command.args(["-c", "listen_addresses=127.0.0.1", "-c", "ssl=on"]);
            command.args(["-c", "ssl_cert_file=certificate.pem", "-c", "ssl_key_file=key.pem"]);
        } else {
            command.args(["-c", "listen_addresses="]);
        }
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().expect("postgres"));
        until("PostgreSQL answers", async || self.sql("SELECT 1")).await;
    }

    /// Ends it. What is connected is cut off.
    pub fn pause(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A fast shutdown.
        let _ = kill_process(Pid::from_child(&child), Signal::INT);
        drop(child.wait());
    }

    /// What it has told since it was started last.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("a log")
    }

    /// Executes a statement; whether that worked.
    pub fn sql(&self, statement: &str) -> bool {
        let mut psql = program("psql");
        psql.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string()]);
        psql.args(["-U", "sandbox", "-d", "postgres", "-q", "-c", statement]);
        psql.output().is_ok_and(|answer| answer.status.success())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.pause();
        if std::thread::panicking() {
            eprintln!("PostgreSQL's log:\n{}", fs::read_to_string(self.folder.path().join("log")).unwrap_or_default());
        }
    }
}

/// A program of the newest installed version, as a user without privileges.
fn program(name: &str) -> Command {
    let versions = fs::read_dir("/usr/lib/postgresql").unwrap_or_else(|_| panic!("{INSTALL}"));
    let versions = versions.flatten().map(|entry| entry.path().join("bin").join(name)).filter(|path| path.exists());
    let version =
        |path: &PathBuf| path.components().nth(4).and_then(|part| part.as_os_str().to_str()?.parse::<u32>().ok());
    let path = versions.max_by_key(version).unwrap_or_else(|| panic!("{INSTALL}"));
    as_user(path)
}

/// A program as a user without privileges.
fn as_user(path: impl AsRef<OsStr>) -> Command {
    let mut command = if geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]).arg(path);
        command
    } else {
        Command::new(path)
    };
    command.current_dir(Path::new("/")).env("LC_ALL", "C");
    command
}
