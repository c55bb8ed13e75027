//! What can be seen without the engine: the root folder and its disk, addresses, the audit log, the collector of traces.

use std::{path::Path, sync::Arc};

use rustix::fs::{Mode, OFlags, fstatfs, open, statvfs};

use super::finding::Findings;
use crate::{
    adapters::{
        audit::Audit,
        storage::{DiskStorage, Owner},
        traces,
    },
    app,
    config::{BindAddr, Config},
    ports::storage::Storage,
};

/// Below this nothing can be relied on, in bytes.
const FREE_BYTES_FAIL: u64 = 100 << 20;
/// Below this there will soon be trouble, in bytes.
const FREE_BYTES_WARN: u64 = 2 << 30;

/// File systems (statfs(2)) on which conversations do not last or the kernel's checks do not hold.
const UNFIT: [(u64, &str, &str); 5] = [
    (0x0102_1994, "tmpfs", "files are gone after a restart"),
    (0x794c_7630, "overlay", "files are gone with the server's container"),
    (0x6969, "nfs", "times and links of files are not kept as on a local disk"),
    (0x0102_1997, "9p", "times and links of files are not kept as on a local disk"),
    (0x6573_5546, "fuse", "times and links of files may not be kept as on a local disk"),
];

/// The root folder: usable, on what, how full.
pub(super) fn root(config: &Config, findings: &mut Findings) -> Option<Arc<dyn Storage>> {
    let place = config.root.display();
    let owner = Owner { uid: config.engine.runner_uid, gid: config.engine.runner_uid };
    let store = match DiskStorage::at(&config.root, owner) {
        Ok(store) => store,
        Err(error) => {
            let fix = format!("make {place} a folder that the server's user owns, or set SANDBOX_ROOT to one");
            findings.fail("files", error, fix);
            return None;
        }
    };
    findings.ok("files", format!("{place} can be used"));
    disk(&config.root, findings);
    let store = if config.quota.hard { own_disks(store, config, findings)? } else { store };
    Some(Arc::new(store))
}

/// Conversations can have disks of their own.
fn own_disks(store: DiskStorage, config: &Config, findings: &mut Findings) -> Option<DiskStorage> {
    match store.with_own_disks(&app::own_disk(config)) {
        Ok(store) => {
            findings.ok("quota", "a disk for a conversation was made, mounted and unmounted");
            Some(store)
        }
        Err(error) => {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            let fix = "run the server as root on the engine's host and install e2fsprogs, or unset SANDBOX_QUOTA__HARD";
            findings.fail("quota", format!("no disk can be made for a conversation: {why}"), fix);
            None
        }
    }
}

fn disk(root: &Path, findings: &mut Findings) {
    let folder = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(kind) = folder.and_then(fstatfs).map(|stat| u64::try_from(stat.f_type).unwrap_or(0)) else { return };
    if let Some((_, name, why)) = UNFIT.iter().find(|(number, ..)| *number == kind) {
        findings.warn("disk", format!("SANDBOX_ROOT is on {name}, where {why}"), "put it on a local disk (ext4, xfs)");
    }
    if let Ok(stat) = statvfs(root) {
        free(stat.f_bavail.saturating_mul(stat.f_frsize), findings);
    }
}

/// How much is free, in bytes.
pub(super) fn free(bytes: u64, findings: &mut Findings) {
    let fix = "free space at SANDBOX_ROOT: delete old conversations, or move it to a larger disk";
    let told = format!("{} MiB are free at SANDBOX_ROOT", bytes >> 20);
    if bytes < FREE_BYTES_FAIL {
        findings.fail("disk", told, fix);
    } else if bytes < FREE_BYTES_WARN {
        findings.warn("disk", told, fix);
    } else {
        findings.ok("disk", told);
    }
}

/// Ports that are free.
pub(super) async fn addresses(config: &Config, findings: &mut Findings) {
    let metrics = config.metrics.addr().map(|addr| ("SANDBOX_METRICS__HTTP_ADDR", addr));
    for (name, addr) in [("MCP_HTTP_ADDR", config.http_addr.clone())].into_iter().chain(metrics) {
        match app::bind(&addr).await {
            Ok(_) => findings.ok("address", format!("{addr} is free")),
            Err(_) => findings.warn(
                "address",
                format!("{addr} is in use, by this server or by another program"),
                format!("if no server of yours runs there, stop what does (`ss -ltnp`) or change {name}"),
            ),
        }
    }
}

/// Whether links that are handed out can work.
pub(super) fn public_address(config: &Config, findings: &mut Findings) {
    let uri = &config.public_base_url;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "::1");
    let told = format!("links begin with {}", uri.to_string().trim_end_matches('/'));
    let all = match &config.http_addr {
        BindAddr::AllInterfaces { .. } => true,
        BindAddr::Host { host_port } => !here(host_port.rsplit_once(':').map_or("", |(host, _)| host)),
    };
    match (here(host), uri.scheme_str()) {
        (true, _) if all => findings.warn(
            "links",
            format!("{told}, which only this machine can open, while the server listens for others too"),
            "set PUBLIC_BASE_URL to the address that clients use, or MCP_HTTP_ADDR to 127.0.0.1",
        ),
        (false, Some("http")) => findings.warn(
            "links",
            format!("{told}: the token and every file cross the network in the clear"),
            "put a reverse proxy or a tunnel with https in front, and its address into PUBLIC_BASE_URL",
        ),
        _ => findings.ok("links", told),
    }
}

/// The audit log can be appended to.
pub(super) fn audit(config: &Config, findings: &mut Findings) {
    let path = &config.audit.file;
    if path.is_empty() {
        return;
    }
    match Audit::open(path.as_ref()) {
        Ok(audit) => {
            audit.close();
            findings.ok("audit", format!("{path} can be appended to"));
        }
        Err(error) => findings.fail("audit", format!("{path}: {error}"), "make its folder, owned by the server's user"),
    }
}

/// Somebody takes traces.
pub(super) async fn traces(config: &Config, findings: &mut Findings) {
    let Ok(Some(collector)) = config.traces.collector() else { return };
    let place = format!("{}:{}", collector.host, collector.port);
    match traces::reach(&collector).await {
        Ok(()) => findings.ok("traces", format!("{place} takes connections")),
        Err(error) => findings.warn(
            "traces",
            format!("{place}: {error}: traces are lost"),
            "start the collector, or correct SANDBOX_TRACES__OTLP_ENDPOINT",
        ),
    }
}
