//! The isolation that must be observable inside a container of ours, and the fix for each missing part. Pure.

use super::runtime::Runtime;
use crate::{
    domain::{limits::Limits, users::RunnerUsers},
    ports::engine::{Expectation, Fact, Severity},
};

/// The expectations under a runtime. A kernel of its own (gVisor, Kata) shows neither our list of system calls nor the
/// host's control groups. A candidate replaces runc, so it has to be as tight as runc in every respect.
pub(super) fn expectations(runtime: &Runtime, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
    let required = |fact, otherwise: &str| Expectation::required(fact, otherwise);
    let mut all = vec![
        Expectation::required(
            Fact::User(*users),
            format!("programs do not run as user {users}: the engine must honour the user of a container"),
        ),
        required(Fact::NoCapabilities, "programs have capabilities: the engine must drop all of them (`CapDrop: ALL`)"),
        required(Fact::NoNewPrivileges, "programs may gain privileges: the engine must honour `no-new-privileges`"),
        required(Fact::LoopbackOnly, "programs see a network: the engine must honour `NetworkMode: none`"),
        required(Fact::ReadOnlyRoot, "the root file system can be written: the engine must honour `ReadonlyRootfs`"),
        required(
            Fact::WritableData,
            "/data cannot be written: SANDBOX_ROOT must be on a file system of the engine's host, writable for \
             SANDBOX_ENGINE__RUNNER_UID",
        ),
    ];
    if runtime.has_own_kernel {
        return all;
    }
    let limit = |what, fact| {
        let otherwise = format!(
            "the limit on {what} does not hold: give the engine control groups that it may use (with cgroup v2, \
             systemd and delegation; `docker info` names what is missing)"
        );
        Expectation::required(fact, otherwise).or_unobserved(format!(
            "The limit on {what} cannot be observed from inside a sandbox: check with `docker inspect` that it holds."
        ))
    };
    all.extend([
        required(
            Fact::SystemCallFilter,
            "system calls are not filtered: use an engine that was built with seccomp, and do not start it with \
             `--seccomp-profile=unconfined`",
        ),
        Expectation {
            severity: if runtime.is_candidate { Severity::Required } else { Severity::Recommended },
            ..required(
                Fact::ReadOnlyControlGroups,
                "Programs can write to the file system at /sys/fs/cgroup, up to their limit on memory: use an engine \
                 with control groups v2, or runc.",
            )
        },
        Expectation::recommended(
            Fact::NoCorePipe,
            "The memory of each program that crashes is handed to a root process of the host, since core_pattern \
             begins with `|` or `@`: set it to a file name there (`sysctl kernel.core_pattern=core`).",
        ),
        limit("memory", Fact::MemoryLimit(limits.memory_bytes)),
        limit("processes", Fact::ProcessLimit(limits.processes_max)),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn severity(runtime: &Runtime, fact: Fact) -> Option<Severity> {
        let all = expectations(runtime, &Limits::default(), &RunnerUsers::one(1000));
        all.iter().find(|expectation| expectation.fact == fact).map(|expectation| expectation.severity)
    }

    #[test]
    fn expectations_are_stricter_for_a_candidate_and_fewer_for_an_own_kernel() {
        let group = Fact::ReadOnlyControlGroups;
        assert_eq!(severity(&Runtime::new(None, "runc", false), group), Some(Severity::Recommended));
        assert_eq!(severity(&Runtime::new(Some("crun"), "runc", true), group), Some(Severity::Required));
        let gvisor = Runtime::new(Some("runsc"), "runc", false);
        for fact in [group, Fact::SystemCallFilter, Fact::MemoryLimit(Limits::default().memory_bytes)] {
            assert_eq!(severity(&gvisor, fact), None);
        }
        assert_eq!(severity(&gvisor, Fact::LoopbackOnly), Some(Severity::Required));
        assert_eq!(severity(&Runtime::new(None, "/usr/bin/kata-runtime", false), group), None);
    }

    #[test]
    fn only_limits_may_be_unobserved() {
        let all = expectations(&Runtime::new(None, "runc", false), &Limits::default(), &RunnerUsers::one(1000));
        let unobserved: Vec<_> = all.iter().filter(|one| one.unobserved.is_some()).map(|one| one.fact).collect();
        let Limits { memory_bytes, processes_max, .. } = Limits::default();
        assert_eq!(unobserved, [Fact::MemoryLimit(memory_bytes), Fact::ProcessLimit(processes_max)]);
    }
}
