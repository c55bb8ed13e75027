//! Describes the engine, and warns about settings that its operator should change. Pure.

use bollard::{
    ClientVersion,
    models::{SystemInfo, SystemInfoCgroupDriverEnum, SystemInfoCgroupVersionEnum, SystemVersion},
};

use super::runtime::{Runtime, RuntimeSetting};
use crate::ports::engine::Probe;

/// The oldest runc that does not let a container write to the host through masked paths (CVE-2025-31133 and related
/// ones).
const RUNC_MIN: (u32, u32, u32) = (1, 2, 8);

/// The name of Podman among its components.
const PODMAN: &str = "Podman Engine";

pub(super) fn is_podman(version: &SystemVersion) -> bool {
    version.components.iter().flatten().any(|part| part.name == PODMAN)
}

pub(super) fn is_cgroup_v1(info: &SystemInfo) -> bool {
    info.cgroup_version != Some(SystemInfoCgroupVersionEnum::_2)
}

pub(super) fn probe(
    version: &SystemVersion,
    info: &SystemInfo,
    negotiated: &ClientVersion,
    setting: &RuntimeSetting,
    runtime: &Runtime,
) -> Probe {
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let default = info.default_runtime.as_deref().unwrap_or("unknown");
    let name = runtime.name.as_deref().unwrap_or(default);
    let mut parts = version.components.iter().flatten();
    let component = parts.find(|part| part.name == name).map(|part| part.version.as_str());
    Probe {
        engine: format!("{} {}", if is_podman(version) { "Podman" } else { "Docker" }, text(&version.version)),
        api_version: negotiated.to_string(),
        runtime: component.map_or_else(|| name.to_owned(), |version| format!("{name} {version}")),
        runtime_reason: setting.reason(runtime),
        platform: format!("{}/{}", text(&version.os), text(&version.arch)),
        cpus: info.ncpu.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
        memory_bytes: info.mem_total.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        details: details(version, info),
        // Podman names its default by a path, which is not in its list of runtimes.
        warnings: warnings(
            info,
            if runtime.name.is_none() && is_podman(version) { "unknown" } else { name },
            component,
        ),
    }
}

fn details(version: &SystemVersion, info: &SystemInfo) -> Vec<String> {
    let parts = version.components.iter().flatten().filter(|part| !["Engine", PODMAN].contains(&part.name.as_str()));
    // Podman passes on what its parts say of themselves, in several lines.
    let parts = parts.map(|part| format!("{} {}", part.name, part.version.lines().next().unwrap_or_default()));
    let parts: Vec<_> = parts.collect();
    let groups = if is_cgroup_v1(info) { "v1" } else { "v2" };
    let driver = info.cgroup_driver.as_ref().map_or("unknown", |driver| driver.as_ref());
    let security = |option: &String| {
        let name = option.split(',').next().unwrap_or_default();
        name.trim_start_matches("name=").to_owned()
    };
    let security: Vec<_> = info.security_options.iter().flatten().map(security).collect();
    let kernel = info.kernel_version.as_deref().unwrap_or("unknown");
    let mut details = vec![
        format!("kernel {kernel}, control groups {groups} by {driver}"),
        format!("security: {}", if security.is_empty() { "none".to_owned() } else { security.join(", ") }),
    ];
    if !parts.is_empty() {
        details.insert(0, parts.join(", "));
    }
    details
}

fn warnings(info: &SystemInfo, runtime: &str, runtime_version: Option<&str>) -> Vec<String> {
    let seccomp = info.security_options.iter().flatten().any(|option| option.contains("seccomp"));
    let rules = [
        (
            runtime == "runc" && runtime_version.and_then(numbers).is_some_and(|version| version < RUNC_MIN),
            "runc is older than 1.2.8 and has known container escapes (CVE-2025-31133): update it.",
        ),
        (
            info.memory_limit == Some(false),
            "The engine cannot limit memory, so one program can take all of the host's: enable the memory controller \
             (boot with cgroup_enable=memory).",
        ),
        (
            info.swap_limit == Some(false),
            "The engine cannot limit swap, so a program may swap past its memory limit: boot with swapaccount=1, or \
             switch swap off.",
        ),
        (
            info.pids_limit == Some(false),
            "The engine cannot limit processes, so a fork bomb can stop the host: enable the pids controller of the \
             kernel's control groups.",
        ),
        (
            info.cpu_cfs_quota == Some(false),
            "The engine cannot limit CPU time, so programs can starve each other: use a kernel with \
             CONFIG_CFS_BANDWIDTH.",
        ),
        (
            info.cgroup_driver == Some(SystemInfoCgroupDriverEnum::NONE),
            "The engine runs without control groups, so no limit holds: give it delegated cgroups (v2 with systemd).",
        ),
        (
            !seccomp,
            "The engine was built without seccomp, so programs may make every system call: install one that has it.",
        ),
        (
            info.init_commit.as_ref().is_some_and(|commit| commit.id.as_deref() == Some("N/A")),
            "The engine has no docker-init (tini), which every sandbox starts with: install it.",
        ),
        (
            runtime != "unknown" && info.runtimes.as_ref().is_some_and(|known| !known.contains_key(runtime)),
            "The engine does not know the OCI runtime that is set: register it with the engine or change the setting.",
        ),
    ];
    rules.into_iter().filter(|(broken, _)| *broken).map(|(_, text): (bool, &str)| text.to_owned()).collect()
}

/// The three numbers at the start of a version such as `1.1.5+ds1`.
fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).map_or(part, |end| &part[..end]);
        digits.parse().ok()
    });
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use bollard::models::{Commit, SystemVersionComponents};

    use super::*;

    fn with_runc(version: &str) -> SystemVersion {
        SystemVersion {
            version: Some("20.10.24".to_owned()),
            os: Some("linux".to_owned()),
            arch: Some("amd64".to_owned()),
            components: Some(vec![SystemVersionComponents {
                name: "runc".to_owned(),
                version: version.to_owned(),
                details: None,
            }]),
            ..SystemVersion::default()
        }
    }

    fn good() -> SystemInfo {
        SystemInfo {
            default_runtime: Some("runc".to_owned()),
            ncpu: Some(2),
            mem_total: Some(1 << 30),
            security_options: Some(vec!["name=seccomp,profile=default".to_owned()]),
            ..SystemInfo::default()
        }
    }

    fn negotiated() -> ClientVersion {
        ClientVersion { major_version: 1, minor_version: 41 }
    }

    fn probe_of(version: &SystemVersion, info: &SystemInfo) -> Probe {
        probe(version, info, &negotiated(), &RuntimeSetting::Automatic, &Runtime::new(None, "runc", false))
    }

    #[test]
    fn probe_of_a_sound_engine_has_no_warnings() {
        let probe = probe_of(&with_runc("1.2.8"), &good());
        assert_eq!(probe.engine, "Docker 20.10.24");
        assert_eq!((probe.api_version.as_str(), probe.runtime.as_str()), ("1.41", "runc 1.2.8"));
        assert_eq!((probe.platform.as_str(), probe.cpus, probe.memory_bytes), ("linux/amd64", 2, 1 << 30));
        assert_eq!(probe.warnings, Vec::<String>::new());
    }

    #[test]
    fn each_missing_feature_causes_a_warning() {
        let cases: [(SystemInfo, &str); 7] = [
            (SystemInfo { swap_limit: Some(false), ..good() }, "swap"),
            (SystemInfo { memory_limit: Some(false), ..good() }, "memory"),
            (SystemInfo { pids_limit: Some(false), ..good() }, "processes"),
            (SystemInfo { cgroup_driver: Some(SystemInfoCgroupDriverEnum::NONE), ..good() }, "control groups"),
            (SystemInfo { security_options: None, ..good() }, "seccomp"),
            (SystemInfo { init_commit: Some(Commit { id: Some("N/A".to_owned()) }), ..good() }, "docker-init"),
            (SystemInfo { runtimes: Some([].into()), ..good() }, "OCI runtime"),
        ];
        for (info, word) in cases {
            let warnings = probe_of(&with_runc("1.3.3"), &info).warnings;
            assert!(warnings.len() == 1 && warnings[0].contains(word), "{word}: {warnings:?}");
        }
        assert!(probe_of(&with_runc("1.1.5+ds1"), &good()).warnings[0].contains("runc"));
    }

    #[test]
    fn podman_is_named_by_its_component() {
        let part = |name: &str, version: &str| SystemVersionComponents {
            name: name.to_owned(),
            version: version.to_owned(),
            details: None,
        };
        let components = vec![part("Podman Engine", "4.3.1"), part("Conmon", "conmon version 2.1.6\ncommit: x")];
        let version = SystemVersion { components: Some(components), ..with_runc("1.2.8") };
        let info = SystemInfo { runtimes: Some([].into()), ..good() };
        let probe = probe_of(&version, &info);
        assert_eq!(
            (probe.engine.as_str(), probe.details[0].as_str()),
            ("Podman 20.10.24", "Conmon conmon version 2.1.6")
        );
        assert_eq!(probe.warnings, Vec::<String>::new());
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(numbers("1.1.5+ds1"), Some((1, 1, 5)));
        assert_eq!(numbers("1.4.0-rc.3"), Some((1, 4, 0)));
        assert_eq!(numbers("1.10"), Some((1, 10, 0)));
        assert_eq!(numbers("n/a"), None);
    }
}
