//! Settings: their sources, their names, and when they are refused.
//!
//! Later wins: built-in defaults, `sandbox.toml`, `.env`, the environment, the command line. Eight names stand alone;
//! every other setting is `SANDBOX_<SECTION>__<KEY>`. An unknown name is an error that names it, an empty value means
//! "not set". `app` turns the settings into the options of each part; no service sees them.

#![expect(clippy::doc_markdown, reason = "the doc comment of a key is also a line of .env.example and of a table")]

mod check;
mod engine;
mod load;
mod mounts;
mod packages;
mod print;
mod section;
mod sign_in;
mod tables;
pub mod telemetry;
mod value;

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

pub use self::{
    check::URL_TTL_S_MAX,
    engine::Engine,
    load::{Sources, load, logs_json},
    mounts::{Skills, shared_folders, skills_root},
    packages::Packages,
    print::{example, table},
    sign_in::SignIn,
    tables::{Opened, ToolCalls},
    telemetry::{Audit, Collector, History, Log, Metrics, Traces},
    value::{BaseUrl, BindAddr, Secret},
};
use self::{
    check::{absolute, ensure, list_of, one_of},
    mounts::MOUNTS,
    section::{ANY_KEY, any_keys, named, section, sections},
    tables::{NETWORK, NetworkPolicy, SECRETS, TOOLS, WithSecret},
};
use crate::domain::{Limits, network::SecretText, tools::ServerText};

/// Why the settings are refused: one sentence that names the setting and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// One setting, for documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Empty for the names that stand alone.
    pub section: &'static str,
    /// The key within the section, or the whole name.
    pub key: &'static str,
    /// Of a name that stands alone; a section has its own defaults.
    pub default: &'static str,
    pub doc: &'static str,
}

impl Setting {
    /// The name in the environment.
    pub fn name(&self) -> String {
        if self.section.is_empty() {
            self.key.to_owned()
        } else {
            format!("SANDBOX_{}__{}", self.section, self.key).to_uppercase()
        }
    }

    fn has_name(&self, name: &str) -> bool {
        if self.key == ANY_KEY {
            let prefix = self.name().replace(&ANY_KEY.to_uppercase(), "");
            let begins = name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(&prefix));
            return begins && name.len() > prefix.len();
        }
        if self.section.is_empty() { self.key == name } else { self.name().eq_ignore_ascii_case(name) }
    }

    /// Where the value of this name is in [`Config`], as figment writes paths.
    fn path(&self, name: &str) -> String {
        match (self.section, self.key) {
            ("", key) => key.to_lowercase(),
            (section, ANY_KEY) => {
                format!("{section}.{}", name.split_once("__").map_or(name, |(_, key)| key).to_lowercase())
            }
            (section, key) => format!("{section}.{key}"),
        }
    }
}

// The names that stand alone, in the order of documents.
named! {
    /// Token of the owner `default`, with every right, on every interface. Required, at least 16 characters:
    /// `openssl rand -hex 32` makes one.
    "MCP_API_TOKEN" = "",
    /// Signs the links to files. Required, at least 16 characters. `new,old` rotates: the first signs, all verify.
    "FILE_SECRET" = "",
    /// The files of a conversation are in {SANDBOX_ROOT}/{conversationId}/files, those of an owner other than `default`
    /// in {SANDBOX_ROOT}/@{owner}/{conversationId}/files.
    "SANDBOX_ROOT" = "/var/sandboxes",
    /// Prefix of the links to files; its host is also an allowed Host and Origin.
    "PUBLIC_BASE_URL" = "http://localhost:8080",
    /// Address to listen on; `:8080` means all interfaces, `127.0.0.1:8080` this machine only.
    "MCP_HTTP_ADDR" = ":8080",
    /// The container engine, such as unix:///var/run/docker.sock. Empty: the default of the platform.
    "DOCKER_HOST" = "",
    /// Where tokens and history are kept: postgres://… where several servers share it. Empty: the SQLite file
    /// {SANDBOX_ROOT}/.state/sandbox.db.
    "DATABASE_URL" = "",
    /// Used by docker-compose-cloudflare.yml only; the server ignores it.
    "TUNNEL_TOKEN" = "",
}

section! {
    /// The HTTP server.
    pub struct Server("server") {
        /// Largest request body, in bytes. `sandbox_write_file` takes a file that is not text as base64, so it can be
        /// three quarters of this.
        body_bytes_max: u64 = 12 << 20 => 4096..=256 << 20,
        /// Memory for all request bodies that are being read or processed, in bytes, as much again for the programs,
        /// input and files of runs that wait or run, and as much again for whole files that wait to be written; one
        /// owner has half of each.
        bodies_bytes_max: u64 = 256 << 20 => 4096..=1 << 40,
        /// Time to send the head of a request, in milliseconds.
        header_read_ms: u64 = 10_000 => 100..=600_000,
        /// Time to send the body of a request, in milliseconds.
        body_read_ms: u64 = 60_000 => 100..=3_600_000,
        /// Time that a connection may be idle between two requests, in milliseconds. Keep it above the time after
        /// which a proxy in front no longer uses an idle connection (nginx 60 s, cloudflared 90 s).
        idle_ms: u64 = 120_000 => 100..=3_600_000,
        /// How long the sending of an answer may make no progress, in milliseconds, before the connection is closed.
        write_stall_ms: u64 = 30_000 => 100..=3_600_000,
        /// Open connections; more wait to be accepted. A quarter is kept for new ones, health probes and requests with
        /// a valid token. Requests of one token may use twice as many as they leave free, those of one owner three
        /// times as many.
        connections_max: u32 = 1024 => 1..=1 << 20,
        /// Share of these connections that one address may use for requests without a valid token, in percent. Behind a
        /// proxy all clients have one address.
        address_percent: u32 = 50 => 1..=100,
        /// MCP sessions that may be open; beyond that, of the owner who has the most, the least recently used one
        /// without a call in progress is closed.
        sessions_max: u32 = 1000 => 1..=1 << 20,
        /// The same for the sessions of one owner.
        token_sessions_max: u32 = 500 => 1..=1 << 20,
        /// Time for running programs to end when the server stops, in milliseconds; then they are cancelled.
        shutdown_grace_ms: u64 = 5_000 => 0..=3_600_000,
        /// Additional host names that requests may be addressed to, comma separated. The host of PUBLIC_BASE_URL and
        /// the loopback names of this machine are always allowed.
        allowed_hosts: String = String::new(),
        /// Origins whose pages may use the API (CORS), comma separated, such as `https://app.example.org`. Empty: none
        /// but the page of the server itself.
        cors_origins: String = String::new(),
        /// Proxies of Cloudflare's tunnel (cloudflared), as addresses or networks, comma separated, such as
        /// `127.0.0.1,172.16.0.0/12`. Rates on their requests apply to the address in CF-Connecting-IP. Do not name a
        /// network that clients are in. Empty: the header is ignored.
        trusted_proxies: String = String::new(),
        /// The address at which other servers with the same DATABASE_URL and SANDBOX_ROOT reach this one, such as
        /// `http://10.0.0.7:8080`, when several are behind one public address. They forward requests to it, with their
        /// tokens. Empty: this is the only server.
        peer_url: String = String::new(),
    }
}

section! {
    /// What one run may use.
    pub struct RunLimits("limits") {
        /// CPU time per second, in thousandths of a core.
        cpu_millis: u32 = Limits::default().cpu_millis => 10..=1_000_000,
        /// Memory, in bytes; there is no swap.
        memory_bytes: u64 = Limits::default().memory_bytes => 16 << 20..=1 << 50,
        /// The most memory that a runner may ask for by its label `sandbox.memory-bytes`, in bytes; never less than
        /// MEMORY_BYTES.
        runner_memory_bytes_max: u64 = 1 << 30 => 16 << 20..=1 << 50,
        /// Wall clock, in milliseconds.
        wall_ms: u64 = Limits::default().wall_ms => 100..=24 * 3_600_000,
        /// Processes and threads together.
        processes_max: u32 = Limits::default().processes_max => 8..=1 << 22,
        /// Open files of one process.
        open_files_max: u32 = Limits::default().open_files_max => 32..=1 << 20,
        /// Size of one file, in bytes.
        file_bytes_max: u64 = Limits::default().file_bytes_max => 1..=1 << 50,
        /// Output of both streams together, in bytes; a program that prints more is stopped.
        output_bytes_max: u64 = Limits::default().output_bytes_max => 1024..=1 << 40,
        /// How much of the output is kept for the answer, in bytes: its beginning and its end.
        output_kept_bytes: u64 = Limits::default().output_kept_bytes => 1024..=64 << 20,
        /// Size of /tmp, in bytes; it counts as memory.
        tmp_bytes: u64 = Limits::default().tmp_bytes => 1 << 20..=1 << 40,
        /// Length of a program, in bytes.
        program_bytes_max: u64 = 1 << 20 => 1..=64 << 20,
    }
}

section! {
    /// Sessions: sandboxes that keep an interpreter between calls.
    pub struct Sessions("sessions") {
        /// The memory limits of all open sessions together, in bytes. When they do not leave enough for a new session,
        /// one of the owner who holds the most ends. With several owners, one holds at most three quarters. 0: no
        /// sessions.
        memory_bytes_max: u64 = 4 << 30 => 0..=1 << 50,
        /// How long a session is kept after its last use, in seconds.
        idle_s: u64 = 15 * 60 => 1..=7 * 24 * 3600,
        /// Age at which a session ends, in seconds.
        age_s: u64 = 8 * 3600 => 1..=7 * 24 * 3600,
    }
}

section! {
    /// The environment of programs.
    pub struct Env("env") {
        /// Variables that a request may set for its run or session, comma separated, such as API_KEY,TZ. Empty: none.
        allowed: String = String::new(),
    }
}

section! {
    /// Admission of runs.
    pub struct Admission("admission") {
        /// Programs that run at once. 0: two for each core of the engine's host, as long as they fit into three
        /// quarters of its memory.
        slots: u32 = 0 => 0..=10_000,
        /// Runs that may wait for a slot; more are refused.
        queue_max: u32 = 256 => 0..=1 << 20,
        /// How long a run may wait for a slot, in milliseconds.
        queue_wait_ms: u64 = 60_000 => 0..=3_600_000,
        /// Runs of one conversation that may run or wait; more are refused, so that no conversation can fill the queue
        /// alone.
        conversation_max: u32 = 32 => 1..=1 << 20,
        /// Runs that an owner may begin per minute with all tokens together, on average. 0: no limit.
        rate_per_minute: u32 = 0 => 0..=60_000_000,
        /// Runs that an owner may begin at once before the rate applies.
        rate_burst: u32 = 60 => 1..=60_000_000,
    }
}

section! {
    /// Sandboxes that are started ahead of need.
    pub struct Standby("standby") {
        /// Standbys (sandboxes that are started ahead of need), all together. 0 turns them off.
        total_max: u32 = 12 => 0..=1000,
        /// Memory of all standbys together, in bytes.
        memory_bytes_max: u64 = 1 << 30,
        /// For each language in use: standbys for conversations that do not exist yet.
        nameless_max: u32 = 2 => 0..=1000,
        /// How long a standby of a conversation that is not active is kept, in seconds.
        idle_s: u64 = 300 => 1..=86_400,
        /// How long a language counts as in use after its last run, in seconds.
        used_s: u64 = 86_400 => 1..=365 * 86_400,
        /// Age at which a standby is replaced, in seconds.
        age_s: u64 = 1800 => 10..=7 * 86_400,
    }
}

section! {
    /// Runs that can be watched, left and fetched later.
    pub struct Runs("runs") {
        /// Finished runs that are kept; beyond that, the oldest one of the owner who has the most is removed.
        kept_max: u32 = 256 => 1..=100_000,
        /// Memory of the finished runs that are kept, in bytes; beyond that, the oldest one of the owner who has the
        /// most bytes is removed. The newest is kept whatever its size.
        kept_bytes: u64 = 64 << 20 => 1..=1 << 40,
        /// How long a finished run is kept, in seconds.
        kept_age_s: u64 = 3_600 => 1..=30 * 86_400,
        /// How long a call waits for its run by default, in seconds. Many clients give up after 60 s.
        wait_s_default: u64 = 45 => 0..=3_600,
        /// What happens by default to a run whose client disconnects while it waits: cancel or detach.
        on_disconnect: String = "cancel".to_owned(),
    }
}

section! {
    /// Defaults for MCP clients that choose nothing in the query of /mcp.
    pub struct Mcp("mcp") {
        /// Groups of tools that are listed, comma separated: run, files, session (where a language has a kernel),
        /// coderunner, ipybox, web (where there is a browser), skills and tools (where there are some), and check. A
        /// client chooses with `/mcp?tools=run`.
        tools: String = "run,files,session,web,skills,tools".to_owned(),
        /// Names of tools: underscore, as sandbox_run_code, because many model APIs refuse a dot; or dotted. A client
        /// chooses with `/mcp?names=dotted`. Both are always accepted.
        names: String = "underscore".to_owned(),
        /// Whether results are also sent as structuredContent, which makes many clients hide the text and the pictures
        /// from the model. A client chooses with `/mcp?structured=on`. true or false.
        structured: bool = false,
    }
}

section! {
    /// Files of conversations.
    pub struct Files("files") {
        /// How long a link works, in seconds; at most seven days.
        url_ttl_s: u64 = 86_400 => 1..=URL_TTL_S_MAX,
        /// Maximum number of files listed in one answer.
        listed_max: u32 = 200 => 1..=10_000,
        /// Depth of nested folders that a listing descends into.
        depth_max: u32 = 16 => 1..=32,
        /// Largest part of a file that sandbox_read_file returns, in bytes.
        read_bytes_max: u64 = 192 << 10 => 1..=192 << 10,
        /// Largest file that sandbox_write_file accepts, in bytes.
        write_bytes_max: u64 = 8 << 20 => 1..=256 << 20,
        /// Largest picture that an answer includes, in bytes; all of an answer is at most 700 KiB.
        image_bytes_max: u64 = 1 << 20 => 0..=16 << 20,
        /// Maximum number of pictures that an answer includes.
        images_max: u32 = 4 => 0..=64,
        /// Prefix of the links to files, such as `https://files.example.com`, for files on an origin of their own: that
        /// host then serves only files, and the host of PUBLIC_BASE_URL serves none. It must lead to this server.
        /// Empty: PUBLIC_BASE_URL.
        base_url: String = String::new(),
    }
}

section! {
    /// What conversations may take on disk, and how long they are kept.
    pub struct Quota("quota") {
        /// Disk space of one conversation, in bytes. A program that writes more is stopped.
        bytes_max: u64 = 1 << 30 => 1 << 20..=1 << 50,
        /// Files, folders and links of one conversation. A program that makes more is stopped.
        entries_max: u32 = 50_000 => 10..=10_000_000,
        /// Give each new conversation a disk of its own with BYTES_MAX and ENTRIES_MAX as its size: an ext4 image,
        /// loop-mounted. The server must run as root on the engine's host, with e2fsprogs. true or false.
        hard: bool = false,
        /// Free space on the disk of SANDBOX_ROOT below which nothing is run or written, in bytes.
        free_bytes_min: u64 = 512 << 20 => 0..=1 << 50,
        /// Disk space of all conversations of one owner, in bytes; beyond that, nothing is run or written for that
        /// owner. 0: no limit.
        owner_bytes_max: u64 = 0 => 0..=1 << 60,
        /// Disk space of all conversations together, in bytes; beyond that, the least recently used ones of the owner
        /// who has the most are deleted. 0: no limit.
        total_bytes_max: u64 = 0 => 0..=1 << 60,
        /// How long an unused conversation is kept, in seconds; then it is deleted. 0: no limit.
        kept_unused_s: u64 = 2_592_000 => 0..=100 * 365 * 86_400,
    }
}

sections! {
    server: Server,
    limits: RunLimits,
    engine: Engine,
    env: Env,
    admission: Admission,
    standby: Standby,
    sessions: Sessions,
    runs: Runs,
    history: History,
    mcp: Mcp,
    files: Files,
    quota: Quota,
    skills: Skills,
    opened: Opened,
    packages: Packages,
    tool_calls: ToolCalls,
    sign_in: SignIn,
    metrics: Metrics,
    audit: Audit,
    traces: Traces,
    log: Log,
}
