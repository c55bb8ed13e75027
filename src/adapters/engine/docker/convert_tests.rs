//! The container's profile against a literal: a change of it has to be made twice, on purpose.

use serde_json::{Value, json};

use super::*;
use crate::{domain::InstanceId, ports::runner};

fn profile() -> Profile {
    Profile { runtime: None, cgroup_v1: true, podman: None, cgroup_parent: None }
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        id: "sandbox-0190c6a000007000800000000000000a".parse().expect("an id"),
        instance: "instance-0190c6a000007000800000000000000b".parse().expect("an id"),
        ..SandboxSpec::example(ImageId("sha256:5d0d".to_owned()), Volume::HostFolder("/var/sandboxes/c/files".into()))
    }
}

fn body(profile: &Profile, spec: &SandboxSpec) -> Value {
    serde_json::to_value(create_body(profile, spec, Some(Path::new("/host/c/files")))).expect("json")
}

#[test]
fn create_body_matches_the_literal() {
    let expected = json!({
        "Image": "sha256:5d0d",
        "Hostname": "sandbox",
        "User": "1000:1000",
        "WorkingDir": "/data",
        "Env": [
            "HOME=/tmp", "LANG=C.UTF-8",
            "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1", "NUMEXPR_NUM_THREADS=1"
        ],
        "Labels": {
            "sandbox.managed": "true",
            "sandbox.id": "sandbox-0190c6a000007000800000000000000a",
            "sandbox.instance": "instance-0190c6a000007000800000000000000b",
            "sandbox.deadline": "1800000000"
        },
        "AttachStdin": true, "AttachStdout": true, "AttachStderr": true,
        "OpenStdin": true, "StdinOnce": true, "Tty": false,
        "NetworkDisabled": true,
        "StopTimeout": 1,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Mounts": [{
                "Type": "bind", "Source": "/host/c/files", "Target": "/data",
                "BindOptions": {"Propagation": "rprivate", "NonRecursive": true}
            }],
            "Tmpfs": {"/tmp": "rw,nosuid,nodev,noexec,size=67108864,nr_inodes=4096,mode=1777"},
            "NetworkMode": "none",
            "Memory": 268_435_456, "MemorySwap": 268_435_456, "MemorySwappiness": 0,
            "NanoCpus": 500_000_000,
            "PidsLimit": 128,
            "Ulimits": [
                {"Name": "nofile", "Soft": 1024, "Hard": 1024},
                {"Name": "fsize", "Soft": 104_857_600, "Hard": 104_857_600},
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "msgqueue", "Soft": 0, "Hard": 0},
                {"Name": "memlock", "Soft": 0, "Hard": 0},
                {"Name": "sigpending", "Soft": 256, "Hard": 256}
            ],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", format!("seccomp={}", seccomp())],
            "ReadonlyRootfs": true,
            "MaskedPaths": [
                "/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore",
                "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
                "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel"
            ],
            "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
            "LogConfig": {"Type": "none"},
            "IpcMode": "private", "ShmSize": 16_777_216,
            "CgroupnsMode": "private",
            "OomScoreAdj": 1000,
            "Init": true,
            "AutoRemove": false,
            "RestartPolicy": {"Name": "no"}
        }
    });
    let actual = body(&profile(), &spec());
    assert_eq!(actual, expected, "{actual:#}");
}

#[test]
fn create_body_for_podman_differs_in_three_fields_only() {
    let podman = Profile { podman: Some("/host/.seccomp.json".to_owned()), ..profile() };
    let (docker, mut podman) = (body(&profile(), &spec()), body(&podman, &spec()));
    assert_eq!(podman["HostConfig"]["SecurityOpt"][1], "seccomp=/host/.seccomp.json");
    assert_eq!(podman["HostConfig"]["Tmpfs"]["/tmp"], "rw,nosuid,nodev,noexec,size=67108864,mode=1777");
    for pointer_path in ["/HostConfig/SecurityOpt/1", "/HostConfig/Tmpfs/~1tmp"] {
        *podman.pointer_mut(pointer_path).expect("a member") = docker.pointer(pointer_path).expect("a member").clone();
    }
    assert_eq!(podman.as_object_mut().and_then(|body| body.remove("StopSignal")), Some(json!("SIGKILL")));
    assert_eq!(podman, docker, "nothing else differs");
}

#[test]
fn create_body_of_a_sandbox_with_its_own_data_mounts_no_folder() {
    let streamed = SandboxSpec { data: Volume::Streamed { bytes: 1 << 20 }, ..spec() };
    let mut made = serde_json::to_value(create_body(&profile(), &streamed, None)).expect("json");
    let tmpfs = made["HostConfig"]["Tmpfs"].as_object_mut().and_then(|all| all.remove("/data"));
    let expected = "rw,nosuid,nodev,exec,size=1048576,nr_inodes=20000,uid=1000,gid=1000,mode=755";
    assert_eq!(tmpfs, Some(json!(expected)));
    let mut usual = body(&profile(), &spec());
    let mounts = usual["HostConfig"]["Mounts"].as_array_mut().map(|mounts| mounts.remove(0));
    assert_eq!(mounts.expect("mounts")["Target"], "/data");
    assert_eq!(made, usual, "nothing else differs");
}

#[test]
fn create_body_applies_the_profile() {
    let (runtime, parent) = (Some("runsc".to_owned()), Some("sandboxes.slice".to_owned()));
    let other = Profile { runtime, cgroup_v1: false, podman: None, cgroup_parent: parent };
    let host = &body(&other, &spec())["HostConfig"];
    assert_eq!((&host["Runtime"], &host["CgroupParent"]), (&json!("runsc"), &json!("sandboxes.slice")));
    assert_eq!(host.get("MemorySwappiness"), None);
    let seccomp = host["SecurityOpt"][1].as_str().and_then(|option| option.strip_prefix("seccomp=")).expect("seccomp");
    let seccomp: Value = serde_json::from_str(seccomp).expect("the profile is JSON");
    assert_eq!(seccomp["defaultAction"], "SCMP_ACT_ERRNO");
    // Process 1 is of the same user. A limit of its own would end it, and with a low priority it would be too late. The
    // kernels of sessions set the usual policy of the scheduler for each thread, and end where they may not.
    let rules: Vec<_> = seccomp["syscalls"].as_array().into_iter().flatten().collect();
    for (name, index) in [("prlimit64", 0), ("setpriority", 1), ("sched_setscheduler", 1)] {
        let named = |rule: &&&Value| rule["names"].as_array().is_some_and(|names| names.contains(&json!(name)));
        let [rule] = rules.iter().filter(named).collect::<Vec<_>>()[..] else { panic!("{name}: one rule") };
        let itself = json!({"index": index, "value": 0, "op": "SCMP_CMP_EQ"});
        assert!(rule["args"].as_array().is_some_and(|args| args.contains(&itself)), "{name}: {rule}");
    }
}

/// A filter of a program's own takes kernel memory that its limit on memory does not count.
#[test]
fn the_profile_allows_every_usual_option_of_prctl_but_filters() {
    const PR_SET_SECCOMP: u64 = 22;
    const PR_SCHED_CORE: u64 = 62;
    let profile: Value = serde_json::from_str(seccomp()).expect("the profile is JSON");
    let rules = profile["syscalls"].as_array().expect("rules");
    let of = |name: &str| -> Vec<&Value> {
        rules.iter().filter(|rule| rule["names"].as_array().is_some_and(|names| names.contains(&json!(name)))).collect()
    };
    assert!(of("seccomp").is_empty(), "nor by its own call");
    let options = of("prctl");
    let allows = |option: u64| {
        options.iter().any(|rule| {
            let arg = &rule["args"][0];
            assert!(rule["action"] == "SCMP_ACT_ALLOW" && arg["index"] == 0, "{rule}");
            let (value, masked) = (arg["value"].as_u64().expect("a number"), arg["valueTwo"].as_u64());
            if arg["op"] == "SCMP_CMP_EQ" { option == value } else { Some(option & value) == masked }
        })
    };
    let refused: Vec<_> = (0..80).filter(|option| !allows(*option)).collect();
    assert_eq!(refused, [PR_SET_SECCOMP, PR_SCHED_CORE]);
    // The kernel reads the lower half of the number.
    assert!(!allows((1 << 32) + PR_SET_SECCOMP));
}

#[test]
fn create_body_of_two_specs_differs_in_labels_and_limits_only() {
    let mut other = spec();
    (other.id, other.instance, other.deadline_unix_s) = (SandboxId::new(), InstanceId::new(), 1);
    other.loading_cpu_millis = Some(2000);
    other.limits = Limits { cpu_millis: 1500, memory_bytes: 1 << 30, processes_max: 7, ..Limits::default() };
    let (mut one, mut two) = (body(&profile(), &spec()), body(&profile(), &other));
    assert_eq!(two["Env"][2], "OMP_NUM_THREADS=2", "a second core is used when half of it may be");
    for body in [&mut one, &mut two] {
        for path in ["/Labels", "/Env"] {
            body.pointer_mut(path).expect("there").take();
        }
        for name in ["Memory", "MemorySwap", "NanoCpus", "PidsLimit", "CpuShares"] {
            body["HostConfig"].as_object_mut().expect("there").remove(name);
        }
    }
    assert_eq!(one, two);
}

#[test]
fn our_labels_differ_from_runner_labels() {
    let runner = [
        runner::LABEL_RUNNER,
        runner::LABEL_LANGUAGE,
        runner::LABEL_VERSION,
        runner::LABEL_ALIASES,
        runner::LABEL_DESCRIPTION,
        runner::LABEL_PROTOCOL,
    ];
    for ours in [labels::MANAGED, labels::ID, labels::INSTANCE, labels::DEADLINE] {
        assert!(!runner.contains(&ours), "{ours}");
    }
}

fn summary(name: &str) -> ContainerSummary {
    ContainerSummary {
        names: Some(vec![name.to_owned()]),
        labels: Some(labels::of(&spec()).into()),
        state: Some(ContainerSummaryStateEnum::RUNNING),
        ..ContainerSummary::default()
    }
}

#[test]
fn listed_requires_matching_name_and_labels() {
    let SandboxSpec { id, instance, deadline_unix_s, .. } = spec();
    let expected = Listed { id, instance, deadline_unix_s, running: true };
    assert_eq!(listed(&summary(&format!("/{id}"))), Some(expected));
    assert_eq!(listed(&summary("/someone-elses")), None, "an image committed from a sandbox carries our labels");
    let mut broken = summary(&format!("/{id}"));
    broken.labels.as_mut().expect("labels").insert(labels::DEADLINE.to_owned(), "soon".to_owned());
    assert_eq!(listed(&broken), None);
}

#[test]
fn runner_image_requires_a_tag() {
    let image = |tags: &[&str]| ImageSummary {
        id: "sha256:1".to_owned(),
        repo_tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..ImageSummary::default()
    };
    let reference = |tags: &[&str]| runner_image(image(tags), |_| true).and_then(|runner| runner.reference);
    assert_eq!(reference(&["<none>:<none>"]), None);
    assert_eq!(reference(&[]), None);
    assert_eq!(reference(&["runner-b:latest", "runner-a:1"]).as_deref(), Some("runner-a:1"));
}
