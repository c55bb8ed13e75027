//! A server as a process of its own: the built binary on real Docker, to be killed, restarted and weighed.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{
    fake_server::OWN_ADDRESS,
    free_port,
    server::{FILE_SECRET, TOKEN},
    until,
};

pub struct Process {
    pub address: SocketAddr,
    pub http: reqwest::Client,
    child: Child,
    wrapper: Vec<String>,
    settings: Vec<(String, String)>,
    folder: TempDir,
}

impl Process {
    /// A server that is ready, with some settings of its own. With the name `--config` it is a file.
    pub async fn start(more: &[(&str, &str)]) -> Self {
        Self::within(&[], more).await
    }

    /// As [`Self::start`], by a command that executes the one that follows it.
    pub async fn within(wrapper: &[&str], more: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-process-").tempdir().expect("a folder");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut settings = vec![
            ("MCP_API_TOKEN", TOKEN.to_owned()),
            ("FILE_SECRET", FILE_SECRET.to_owned()),
            ("SANDBOX_ROOT", folder.path().join("root").display().to_string()),
            ("MCP_HTTP_ADDR", address.to_string()),
            ("PUBLIC_BASE_URL", format!("http://{address}")),
            ("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", "0".to_owned()),
        ];
        settings.extend(std::env::var("DOCKER_HOST").ok().map(|host| ("DOCKER_HOST", host)));
        let own = format!("http://{address}");
        let value = |value: &str| if value == OWN_ADDRESS { own.clone() } else { value.to_owned() };
        settings.extend(more.iter().map(|(name, text)| (*name, value(text))));
        let settings: Vec<_> = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let wrapper: Vec<_> = wrapper.iter().map(|word| (*word).to_owned()).collect();
        let child = spawn(folder.path(), &wrapper, &settings);
        let http = super::http::builder().timeout(Duration::from_mins(3)).build().expect("a client");
        let server = Self { address, http, child, wrapper, settings, folder };
        server.ready().await;
        server
    }

    /// Waits until a run can start.
    pub async fn ready(&self) {
        let url = self.url("/readyz");
        until("the server is ready", async || {
            self.http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success())
        })
        .await;
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// The label of its sandboxes.
    pub fn instance(&self) -> String {
        let text = std::fs::read_to_string(self.root().join(".instance")).expect("the server's name");
        text.trim().to_owned()
    }

    /// Its folder in `/proc`.
    pub fn proc_folder(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.child.id()))
    }

    /// Reads `/proc/<pid>/status`; the result gives the number of a line by its name.
    pub fn proc_status(&self) -> impl Fn(&str) -> u64 {
        let status = std::fs::read_to_string(self.proc_folder().join("status")).expect("a process");
        move |name| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.expect("the line").trim().trim_end_matches(" kB").parse().expect("a number")
        }
    }

    /// The most memory that it has used, in bytes.
    pub fn memory_peak_bytes(&self) -> u64 {
        self.proc_status()("VmHWM") * 1024
    }

    /// Ends it as a crash does.
    pub fn crash(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Has it stand still: nothing closes, and nothing of it goes on.
    pub async fn freeze(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("it runs");
        until("the server stands still", async || self.is_frozen()).await;
    }

    pub fn is_frozen(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("a process");
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it is there");
    }

    /// Starts it again after a crash; whether it is ready is for the caller to ask.
    pub fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), &self.wrapper, &self.settings);
    }

    /// Stops it in order.
    pub async fn stop(self) {
        self.stop_and(async || ()).await;
    }

    /// Stops it in order, and looks at what it left before its folder is gone.
    pub async fn stop_and(mut self, look: impl AsyncFnOnce()) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("it runs");
        until("the server has stopped", async || self.child.try_wait().expect("a status").is_some()).await;
        let status = self.child.wait().expect("a status");
        assert!(status.success(), "{status}: {}", log(self.folder.path()));
        look().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", log(self.folder.path()));
        }
    }
}

fn log(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

fn spawn(folder: &Path, wrapper: &[String], settings: &[(String, String)]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
    let server = env!("CARGO_BIN_EXE_mcp-sandbox-server").to_owned();
    let (arguments, environment): (Vec<_>, Vec<_>) = settings.iter().partition(|(name, _)| name == "--config");
    let arguments = arguments.into_iter().flat_map(|(name, value)| [name, value]);
    let mut words = wrapper.iter().chain([&server]);
    Command::new(words.next().expect("a command"))
        .args(words)
        .arg("serve")
        .args(arguments)
        .env_clear()
        .envs(environment.into_iter().map(|(name, value)| (name, value)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the server's binary")
}
