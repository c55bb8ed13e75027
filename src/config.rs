//! Settings: where they come from, what they are called, and when they are refused.
//!
//! Later wins: built-in defaults, `sandbox.toml`, `.env`, the environment, the command line. The seven names of the
//! contract stand alone; everything else is `SANDBOX_<SECTION>__<KEY>`. An unknown name is an error that names it.
//! Settings are read once, turned into plain values by `app`, and dropped: no service sees them.

#![expect(clippy::doc_markdown, reason = "the words of a key are also lines of a .env file and of a table")]

mod check;
mod load;
mod print;
mod section;
pub mod telemetry;
mod traces;
mod value;

use std::path::PathBuf;

pub use check::URL_TTL_S_MAX;
pub use load::{Overrides, Sources, load};
pub use print::{example, table};
pub use traces::Collector;
pub use value::{BindAddr, Hidden, Secret};

use section::section;

use crate::domain::limits::Limits;

/// Why the settings are refused: one sentence that names the setting and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// One setting, for documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Its section, empty for the names of the contract.
    pub section: &'static str,
    /// Its key within the section, or its whole name.
    pub key: &'static str,
    /// What it means.
    pub doc: &'static str,
}

impl Setting {
    /// The name in the environment.
    pub fn name(&self) -> String {
        if self.section.is_empty() {
            self.key.to_owned()
        } else {
            format!("SANDBOX_{}__{}", self.section.to_uppercase(), self.key.to_uppercase())
        }
    }
}

/// The names that stand alone, in the order of the contract.
pub const NAMED: [Setting; 7] = [
    named(
        "MCP_API_TOKEN",
        "Bearer token for /mcp. Required, at least 16 characters: `openssl rand -hex 32` makes one.",
    ),
    named(
        "FILE_SECRET",
        "Signs the links to files. Required, at least 16 characters. `new,old` rotates: the first signs, all verify.",
    ),
    named("SANDBOX_ROOT", "A conversation's files are in {SANDBOX_ROOT}/{conversationId}/files."),
    named("PUBLIC_BASE_URL", "Prefix of the links that are handed out; its host is also an allowed Host and Origin."),
    named("MCP_HTTP_ADDR", "Address to listen on; `:8080` means all interfaces, `127.0.0.1:8080` this machine only."),
    named("DOCKER_HOST", "The container engine, such as unix:///var/run/docker.sock. Empty: the platform's default."),
    named("TUNNEL_TOKEN", "Used by docker-compose-cloudflare.yml only; the server ignores it."),
];

const fn named(key: &'static str, doc: &'static str) -> Setting {
    Setting { section: "", key, doc }
}

section! {
    /// The HTTP server.
    pub struct Server("server") {
        /// Largest request body, in bytes. Uploads are base64, so a file may be three quarters of it.
        body_bytes_max: u64 = 12 << 20,
        /// What all request bodies that are being read or worked on may hold together, in bytes.
        bodies_bytes_max: u64 = 256 << 20,
        /// How long a client may take to send its request's head, in milliseconds.
        header_read_ms: u64 = 10_000,
        /// How long a client may take to send its request's body, in milliseconds.
        body_read_ms: u64 = 60_000,
        /// Open connections; more wait to be accepted.
        connections_max: u32 = 1024,
        /// How long running programs may take to end when the server stops, in milliseconds; then they are cancelled.
        shutdown_grace_ms: u64 = 5_000,
        /// More host names that requests may be addressed to, comma separated. The host of PUBLIC_BASE_URL and this machine's loopback names are always allowed.
        allowed_hosts: String = String::new(),
    }
}

section! {
    /// What one run may use.
    pub struct RunLimits("limits") {
        /// CPU time per second, in thousandths of a core.
        cpu_millis: u32 = Limits::default().cpu_millis,
        /// Memory, in bytes; there is no swap.
        memory_bytes: u64 = Limits::default().memory_bytes,
        /// Wall clock, in milliseconds.
        wall_ms: u64 = Limits::default().wall_ms,
        /// Processes and threads together.
        processes_max: u32 = Limits::default().processes_max,
        /// Open files of one process.
        open_files_max: u32 = Limits::default().open_files_max,
        /// Size of one file, in bytes.
        file_bytes_max: u64 = Limits::default().file_bytes_max,
        /// Output of both streams together, in bytes; a program that prints more is stopped.
        output_bytes_max: u64 = Limits::default().output_bytes_max,
        /// How much of the output is kept for the answer, in bytes: its beginning and its end.
        output_kept_bytes: u64 = Limits::default().output_kept_bytes,
        /// Size of /tmp, in bytes; it counts as memory.
        tmp_bytes: u64 = Limits::default().tmp_bytes,
        /// Length of a program, in bytes.
        program_bytes_max: u64 = 1 << 20,
    }
}

section! {
    /// The container engine.
    pub struct Engine("engine") {
        /// The OCI runtime, such as runsc for gVisor; refused where the engine does not have or use it. `default`: the engine's own. Empty: crun where the engine's own is runc, it has crun too and the self-test passes under it; otherwise the engine's own.
        runtime: String = String::new(),
        /// SANDBOX_ROOT as the engine's host sees it. Empty: found by inspecting the server's own container, where it runs in one.
        host_root: String = String::new(),
        /// The host's cgroup file system as this process sees it. Used to tell which limit a program hit.
        cgroup_root: String = "/sys/fs/cgroup".to_owned(),
        /// The user and group that programs run as.
        runner_uid: u32 = 1000,
    }
}

section! {
    /// Who may start when.
    pub struct Admission("admission") {
        /// Programs that run at once. 0: two for each core of the engine's host, as far as three quarters of its memory hold them.
        slots: u32 = 0,
        /// Runs that may wait for a slot; more are refused.
        queue_max: u32 = 256,
        /// How long a run may wait for its turn, in milliseconds.
        queue_wait_ms: u64 = 60_000,
        /// Runs of one conversation that may run or wait; more are refused, so that none can fill the queue alone.
        conversation_max: u32 = 32,
        /// Runs that a token may begin in a minute, on average. 0: as many as it likes.
        rate_per_minute: u32 = 0,
        /// Runs that a token may begin at once before its rate is felt.
        rate_burst: u32 = 60,
    }
}

section! {
    /// Sandboxes that are started ahead of need.
    pub struct Standby("standby") {
        /// Sandboxes that stand by, all together. 0 turns them off.
        total_max: u32 = 12,
        /// Memory that they may hold together, in bytes.
        memory_bytes_max: u64 = 1 << 30,
        /// For each language in use: sandboxes that stand by for conversations that do not exist yet.
        nameless_max: u32 = 2,
        /// How long one stands by for a conversation that is not active, in seconds.
        idle_s: u64 = 300,
        /// How long a language counts as in use after its last run, in seconds.
        used_s: u64 = 86_400,
        /// How old a standby may become, in seconds.
        age_s: u64 = 1800,
    }
}

section! {
    /// Runs that can be watched, left and come back to.
    pub struct Runs("runs") {
        /// Runs that are remembered once they are over; the oldest leave first.
        kept_max: u32 = 256,
        /// Bytes of those together: their output and what is known of them. The newest is remembered however large it is.
        kept_bytes: u64 = 64 << 20,
        /// How long a run is remembered once it is over, in seconds.
        kept_age_s: u64 = 3_600,
        /// How long a call waits for its run when it does not say, in seconds. Many clients give up after 60 s.
        wait_s_default: u64 = 45,
        /// What becomes of a run whose caller goes away while it waits, where it does not say: cancel or detach.
        on_disconnect: String = "cancel".to_owned(),
    }
}

section! {
    /// Files of conversations.
    pub struct Files("files") {
        /// How long a link works, in seconds; at most seven days.
        url_ttl_s: u64 = 86_400,
        /// Files named in one answer.
        listed_max: u32 = 200,
        /// Folders within folders that a listing goes down.
        depth_max: u32 = 16,
        /// Largest part of a file that sandbox.read_file answers with, in bytes.
        read_bytes_max: u64 = 1 << 20,
        /// Largest file that sandbox.write_file accepts, in bytes.
        write_bytes_max: u64 = 8 << 20,
        /// Largest picture that is put into an answer itself, in bytes.
        image_bytes_max: u64 = 1 << 20,
        /// Pictures that are put into an answer itself.
        images_max: u32 = 4,
    }
}

section! {
    /// What conversations may take on disk, and how long they are kept.
    pub struct Quota("quota") {
        /// What the files of one conversation may take on disk, in bytes. A program that writes more is stopped.
        bytes_max: u64 = 1 << 30,
        /// Files, folders and links of one conversation. A program that makes more is stopped.
        entries_max: u32 = 50_000,
        /// Give each new conversation a disk of its own that holds no more than that: an ext4 image, loop-mounted. The server has to run as root on the engine's host, with e2fsprogs. true or false.
        hard: bool = false,
        /// Free space on the disk of SANDBOX_ROOT below which nothing is run or written, in bytes.
        free_bytes_min: u64 = 512 << 20,
        /// What all conversations may take together, in bytes; above it those used longest ago are deleted. 0: no ceiling.
        total_bytes_max: u64 = 0,
        /// How long a conversation is kept in which nothing is run or written, in seconds; then it is deleted. 0: for ever.
        kept_unused_s: u64 = 2_592_000,
    }
}

section! {
    /// What is measured, as `/metrics`.
    pub struct Metrics("metrics") {
        /// Address of its own for /metrics, without a token: `127.0.0.1:9090`, or one of a network that only scrapers are in. Empty: only /metrics of the server itself, which asks for the bearer token.
        http_addr: String = String::new(),
    }
}

section! {
    /// A line for each run, for whoever has to account for them.
    pub struct Audit("audit") {
        /// File that each run appends a line of JSON to: who, what (as a hash), in which image, how it ended. Empty: none. Moving it away begins a new one.
        file: String = String::new(),
    }
}

section! {
    /// Traces of requests and runs, for a collector of OpenTelemetry's.
    pub struct Traces("traces") {
        /// Collector that traces are sent to as OTLP over HTTP (protobuf), such as `http://127.0.0.1:4318`; they go to its `/v1/traces`. Without https: the collector is on this machine or on a network that you trust. Empty: none.
        otlp_endpoint: String = String::new(),
        /// Headers that the collector asks for: `name=value,name=value`, values percent-encoded. A secret.
        otlp_headers: Hidden = Hidden::default(),
    }
}

section! {
    /// The log, on standard error.
    pub struct Log("log") {
        /// error, warn, info, debug or trace, or a tracing filter such as `info,mcp_sandbox_server=debug`.
        level: String = "info".to_owned(),
        /// text or json.
        format: String = "text".to_owned(),
    }
}

/// Every setting, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// `MCP_API_TOKEN`.
    pub api_token: Secret,
    /// `FILE_SECRET`: the first signs, all verify.
    pub file_secrets: Vec<Secret>,
    /// `SANDBOX_ROOT`.
    pub root: PathBuf,
    /// `PUBLIC_BASE_URL` without a trailing slash.
    pub public_base_url: http::Uri,
    /// `MCP_HTTP_ADDR`.
    pub http_addr: BindAddr,
    /// `DOCKER_HOST`.
    pub docker_host: Option<String>,
    /// The HTTP server.
    pub server: Server,
    /// What one run may use.
    pub limits: RunLimits,
    /// The container engine.
    pub engine: Engine,
    /// Who may start when.
    pub admission: Admission,
    /// Sandboxes that are started ahead of need.
    pub standby: Standby,
    /// Runs that can be watched, left and come back to.
    pub runs: Runs,
    /// Files of conversations.
    pub files: Files,
    /// What conversations may take on disk.
    pub quota: Quota,
    /// What is measured.
    pub metrics: Metrics,
    /// A line for each run.
    pub audit: Audit,
    /// Traces of requests and runs.
    pub traces: Traces,
    /// The log.
    pub log: Log,
}

impl Metrics {
    /// The address of its own, where there is one.
    pub fn addr(&self) -> Option<BindAddr> {
        BindAddr::parse(&self.http_addr).ok()
    }
}

impl RunLimits {
    /// As the noun that services use.
    pub fn limits(&self) -> Limits {
        Limits {
            cpu_millis: self.cpu_millis,
            memory_bytes: self.memory_bytes,
            wall_ms: self.wall_ms,
            processes_max: self.processes_max,
            open_files_max: self.open_files_max,
            file_bytes_max: self.file_bytes_max,
            output_bytes_max: self.output_bytes_max,
            output_kept_bytes: self.output_kept_bytes,
            tmp_bytes: self.tmp_bytes,
        }
    }
}

/// Every setting there is, in the order of documents.
pub fn settings() -> impl Iterator<Item = Setting> {
    let sections = [
        Server::SETTINGS,
        RunLimits::SETTINGS,
        Engine::SETTINGS,
        Admission::SETTINGS,
        Standby::SETTINGS,
        Runs::SETTINGS,
        Files::SETTINGS,
        Quota::SETTINGS,
        Metrics::SETTINGS,
        Audit::SETTINGS,
        Traces::SETTINGS,
        Log::SETTINGS,
    ];
    NAMED.into_iter().chain(sections.into_iter().flatten().copied())
}
