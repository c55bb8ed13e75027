//! Checks without the engine: the root folder and its disk, addresses, the audit log, the collector of traces, and
//! settings that are allowed and may still be wrong here, such as weak secrets and the limit on descriptors.

use std::{io::ErrorKind, path::Path, sync::Arc};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatfs, open, statvfs};

use super::{Findings, Level, quota};
use crate::{
    adapters::{audit, storage::DiskStorage, traces},
    app::{self, descriptors, engine},
    config::Config,
    ports::storage::Storage,
};

/// Free space below which programs fail, in bytes.
const FREE_BYTES_FAIL: u64 = 100 << 20;
/// Free space below which the disk will soon be full, in bytes.
const FREE_BYTES_WARN: u64 = 2 << 30;

/// File systems (statfs(2)) on which conversations do not last, or times and links are unreliable.
const UNFIT: [(u64, &str, &str); 5] = [
    (0x0102_1994, "tmpfs", "files are gone after a restart"),
    (0x794c_7630, "overlay", "files are gone with the server's container"),
    (0x6969, "nfs", "times and links of files are not kept as on a local disk"),
    (0x0102_1997, "9p", "times and links of files are not kept as on a local disk"),
    (0x6573_5546, "fuse", "times and links of files may not be kept as on a local disk"),
];

/// Whether the root folder is usable, on which file system, and how full that is.
pub(super) fn root(config: &Config, findings: &mut Findings) -> Option<Arc<dyn Storage>> {
    let root = config.root.display();
    let fix = "run the server as root, or unset SANDBOX_ENGINE__RUNNER_UIDS";
    let users = engine::runner_users(config).inspect_err(|error| findings.fail("files", error, fix)).ok()?;
    let fix = format!("make {root} a folder that the server's user owns, or set SANDBOX_ROOT to one");
    let store = DiskStorage::at(&config.root, users).inspect_err(|error| findings.fail("files", error, fix)).ok()?;
    findings.ok("files", format!("{root} can be used"));
    disk(&config.root, findings);
    Some(Arc::new(quota::limited(store, config, findings)?))
}

fn disk(root: &Path, findings: &mut Findings) {
    let folder = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let Ok(kind) = folder.and_then(fstatfs).map(|stat| u64::try_from(stat.f_type).unwrap_or(0)) else { return };
    if let Some((_, name, why)) = UNFIT.iter().find(|(number, ..)| *number == kind) {
        findings.warn("disk", format!("SANDBOX_ROOT is on {name}, where {why}"), "put it on a local disk (ext4, xfs)");
    }
    if let Ok(stat) = statvfs(root) {
        free(stat.f_bavail.saturating_mul(stat.f_frsize), findings);
        mount(stat.f_flag, findings);
    }
}

/// Checks how `SANDBOX_ROOT` is mounted. Programs inherit the options as those of `/data`.
pub(super) fn mount(flags: StatVfsMountFlags, findings: &mut Findings) {
    if flags.contains(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV) {
        return findings.ok("mount", "SANDBOX_ROOT is mounted with nosuid and nodev");
    }
    findings.warn(
        "mount",
        "SANDBOX_ROOT is mounted without nosuid or nodev, so a setuid program or a device in /data would work on this \
         machine",
        "run ./quickstart.sh as root, or give it its own mount with these options (docs/operations.md)",
    );
}

/// Checks the free space, in bytes.
pub(super) fn free(bytes: u64, findings: &mut Findings) {
    let fix = "free space at SANDBOX_ROOT: delete old conversations, or move it to a larger disk";
    let text = format!("{} MiB are free at SANDBOX_ROOT", bytes >> 20);
    if bytes < FREE_BYTES_FAIL {
        findings.fail("disk", text, fix);
    } else if bytes < FREE_BYTES_WARN {
        findings.warn("disk", text, fix);
    } else {
        findings.ok("disk", text);
    }
}

/// Whether the addresses are free. In a container only the server can have taken them.
pub(super) async fn addresses(config: &Config, in_container: bool, findings: &mut Findings) {
    let metrics = config.metrics.addr().map(|addr| ("SANDBOX_METRICS__HTTP_ADDR", addr));
    for (name, addr) in [("MCP_HTTP_ADDR", config.http_addr.clone())].into_iter().chain(metrics) {
        match app::bind(&addr).await {
            Ok(_) => findings.ok("address", format!("{addr} is free")),
            Err(error) if error.kind() != ErrorKind::AddrInUse => findings.fail(
                "address",
                format!("{addr} cannot be listened on: {error}"),
                format!("set {name} to an address of the server's machine or container, and to a port that it may use"),
            ),
            Err(_) if in_container => {
                findings.ok("address", format!("{addr} is in use, by the server of this container"));
            }
            Err(_) => findings.warn(
                "address",
                format!("{addr} is in use, by this server or by another program"),
                format!("unless this server uses it, stop what does (`ss -ltnp`) or change {name}"),
            ),
        }
    }
}

/// Whether clients can open the links. A container listens on all its interfaces; where its port is published is not
/// known there.
pub(super) fn public_address(config: &Config, in_container: bool, findings: &mut Findings) {
    let uri = config.public_base_url.uri();
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "::1");
    let links = format!("links begin with {}", config.public_base_url);
    let all = config.http_addr.host.as_deref().is_none_or(|host| !here(host.trim_matches(['[', ']'])));
    match (here(host), uri.scheme_str()) {
        (true, _) if all && !in_container => findings.warn(
            "links",
            format!("{links}, which only this machine can open, but the server listens on other interfaces too"),
            "set PUBLIC_BASE_URL to the address that clients use, or MCP_HTTP_ADDR to 127.0.0.1",
        ),
        (false, Some("http")) => findings.warn(
            "links",
            format!("{links}: the token and all files cross the network unencrypted"),
            "put a reverse proxy or a tunnel with https in front, and set PUBLIC_BASE_URL to its address",
        ),
        _ => findings.ok("links", links),
    }
}

/// Whether the audit log can be appended to.
pub(super) fn audit(config: &Config, findings: &mut Findings) {
    let path = &config.audit.file;
    if path.is_empty() {
        return;
    }
    match audit::check(path.as_ref()) {
        Ok(()) => findings.ok("audit", format!("{path} can be appended to")),
        Err(error) => findings.fail("audit", format!("{path}: {error}"), "make its folder, owned by the server's user"),
    }
}

/// Whether the collector accepts connections.
pub(super) async fn traces(config: &Config, findings: &mut Findings) {
    let Ok(Some(collector)) = config.traces.collector() else { return };
    let address = format!("{}:{}", collector.host, collector.port);
    match traces::reach(&collector).await {
        Ok(()) => findings.ok("traces", format!("{address} accepts connections")),
        Err(error) => findings.warn(
            "traces",
            format!("{address}: {error}: traces are lost"),
            "start the collector, or correct SANDBOX_TRACES__OTLP_ENDPOINT",
        ),
    }
}

/// Whether the secrets look random.
pub(super) fn secrets(config: &Config, findings: &mut Findings) {
    for name in config.weak_secrets() {
        let fix = "make another with `openssl rand -hex 32`, and change it where it is used";
        findings.warn("secrets", format!("{name} is probably not random, so it can be guessed"), fix);
    }
}

/// Whether a process with this limit on descriptors can hold what the settings allow.
pub(super) fn open_descriptors(limit: u64, config: &Config, slots: usize, findings: &mut Findings) {
    match descriptors::shortage(limit, config, slots) {
        Some(why) => findings.sentence(Level::Warn, "descriptors", &why),
        None => findings.ok("descriptors", format!("{limit} may be open")),
    }
}

/// Whether the shared folders exist. A process in a container does not see them.
pub(super) fn shared_folders(config: &Config, in_container: bool, findings: &mut Findings) {
    let folders = config.shared_folders().unwrap_or_default();
    for folder in folders.into_iter().filter(|_| !in_container) {
        let source = folder.source.display();
        if folder.source.is_dir() {
            findings.ok("mounts", format!("{source} is {folder}"));
        } else {
            let fix = "create it, or correct SANDBOX_MOUNTS__…; until then no program runs";
            findings.warn("mounts", format!("{source} is not a folder of this machine"), fix);
        }
    }
}

/// Whether the values of the secrets for programs, and the roots for opened TLS and for packages, can be read.
pub(super) fn secrets_of_programs(config: &Config, findings: &mut Findings) {
    let roots = [config.more_roots().map(|_| ()), config.package_roots().map(|_| ())];
    for read in [config.secrets().map(|_| ())].into_iter().chain(roots) {
        if let Err(why) = read {
            let fix = "correct this setting, or the file that it names";
            findings.fail("network", why.0.trim_end_matches('.'), fix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    #[test]
    fn weak_secrets_and_few_descriptors_are_warned_of_with_a_fix() {
        let pairs = [
            ("MCP_API_TOKEN", "0123456789abcdef"),
            ("FILE_SECRET", "9b1f64c07de2a853"),
            ("SANDBOX_MOUNTS__GONE", "/nowhere/at/all"),
            ("SANDBOX_OPENED__CA_FILE", "/nowhere/roots.pem"),
            ("SANDBOX_PACKAGES__CA_FILE", "/nowhere/index.pem"),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = load(&Sources::environment_only(pairs.into())).expect("settings");
        let mut findings = Findings::default();
        secrets(&config, &mut findings);
        shared_folders(&config, false, &mut findings);
        open_descriptors(1 << 20, &config, 4, &mut findings);
        open_descriptors(1024, &config, 4, &mut findings);
        let text = findings.text();
        assert!(text.contains("MCP_API_TOKEN") && !text.contains("FILE_SECRET"), "{text}");
        assert!(text.contains("1048576 may be open") && text.contains("SANDBOX_SERVER__CONNECTIONS_MAX"), "{text}");
        assert!(text.contains("/nowhere/at/all is not a folder"), "{text}");
        assert!(!findings.failed(), "{text}");
        secrets_of_programs(&config, &mut findings);
        let text = findings.text();
        assert!(findings.failed() && text.contains("SANDBOX_OPENED__CA_FILE /nowhere/roots.pem"), "{text}");
        assert!(text.contains("SANDBOX_PACKAGES__CA_FILE /nowhere/index.pem"), "{text}");
        assert!(text.contains("(os error 2)\n      fix: correct this setting"), "{text}");
    }
}
