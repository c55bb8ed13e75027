//! Bodies that are ours, and bodies that nearly are.

use std::path::Path;

use serde_json::json;

use super::*;

const FOLDER: &str = "/var/sandboxes/c/files";

fn profile() -> Profile {
    Profile { runtime: None, cgroup_v1: true, podman: None, cgroup_parent: None }
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        limits: Limits { memory_bytes: 64 << 20, cpu_millis: 1500, tmp_bytes: 1 << 20, ..Limits::default() },
        own_init: true,
        ..SandboxSpec::example(ImageId(format!("sha256:{}", "5d".repeat(32))), Volume::HostFolder(FOLDER.into()))
    }
}

fn users() -> RunnerUsers {
    RunnerUsers::each(1000, 70_000..=70_999)
}

fn ours(spec: &SandboxSpec) -> Value {
    serde_json::to_value(convert::create_body(&profile(), spec, Some(Path::new(FOLDER)))).expect("JSON")
}

fn form() -> Form {
    let ceiling = Limits::UNBOUNDED;
    Form { profile: profile(), candidate: None, folders: Vec::new(), skills: None, ceiling }
}

fn vetted(spec: &SandboxSpec, body: &str) -> Result<Vec<u8>, Denied> {
    vet(&form(), spec.id, &users(), body.as_bytes()).map(|(.., body)| body)
}

#[test]
fn vet_accepts_a_container_of_the_adapter_with_any_limits() {
    for (own_init, loading_cpu_millis) in [(true, None), (false, None), (true, Some(4000))] {
        let spec = SandboxSpec { loading_cpu_millis, own_init, ..spec() };
        let made = vetted(&spec, &ours(&spec).to_string()).expect("ours");
        assert_eq!(serde_json::from_slice::<Value>(&made).expect("JSON"), ours(&spec));
    }
}

#[test]
fn vet_refuses_more_than_the_machine_has() {
    let info = SystemInfo { ncpu: Some(2), mem_total: Some(4 << 30), ..SystemInfo::default() };
    let form = Form { ceiling: ceiling(&info), ..form() };
    let passes = |limits: Limits, loading_cpu_millis: Option<u32>| {
        let spec = SandboxSpec { limits, loading_cpu_millis, ..spec() };
        vet(&form, spec.id, &users(), ours(&spec).to_string().as_bytes()).is_ok()
    };
    let most = Limits { cpu_millis: 2000, memory_bytes: 4 << 30, processes_max: 32_768, ..spec().limits };
    assert!(passes(most, None) && passes(spec().limits, Some(2000)) && !passes(spec().limits, Some(2001)));
    for beyond in [
        Limits { cpu_millis: 2001, ..most },
        Limits { memory_bytes: (4 << 30) + 1, ..most },
        Limits { processes_max: 32_769, ..most },
        Limits { open_files_max: (1 << 20) + 1, ..most },
    ] {
        assert!(!passes(beyond, None), "{beyond:?}");
    }
}

#[test]
fn vet_accepts_only_users_of_programs() {
    let passes = |uid| {
        let spec = SandboxSpec { uid, ..spec() };
        vetted(&spec, &ours(&spec).to_string()).is_ok()
    };
    assert!([1000, 70_000, 70_999].into_iter().all(passes));
    assert!(![0, 999, 1001, 69_999, 71_000, u32::MAX].into_iter().any(passes));
    for user in ["70000", "70000:0", "0:70000", "70000:70001", "+70000:70000", "root:root", ":", ""] {
        let mut body = ours(&spec());
        body["User"] = json!(user);
        assert!(vetted(&spec(), &body.to_string()).is_err(), "{user:?}");
    }
}

#[test]
fn vet_update_accepts_only_less_cpu() {
    let vetted = |now, body: &str| vet_update(now, body.as_bytes()).ok();
    let lower = r#"{"CpuShares":1024,"NanoCpus":500000000}"#;
    assert_eq!(vetted(Some(1_000_000_000), lower), Some(lower.as_bytes().to_vec()));
    assert_eq!(vetted(Some(500_000_000), lower), Some(lower.as_bytes().to_vec()));
    for (now, body) in [
        (Some(499_000_000), lower),
        (Some(0), lower),
        (None, lower),
        (Some(1_000_000_000), "{}"),
        (Some(1_000_000_000), r#"{"NanoCpus":500000000}"#),
        (Some(1_000_000_000), r#"{"CpuShares":200000,"NanoCpus":500000000}"#),
        (Some(1_000_000_000), r#"{"CpuShares":1024,"NanoCpus":0}"#),
        (Some(1_000_000_000), r#"{"CpuShares":1024,"NanoCpus":-1}"#),
        (Some(1_000_000_000), r#"{"CpuShares":1024,"NanoCpus":500000000,"Memory":0}"#),
        (Some(1_000_000_000), r#"{"CpuShares":1024,"NanoCpus":500000000,"PidsLimit":-1}"#),
        (Some(1_000_000_000), r#"{"CpuShares":1024,"NanoCpus":500000000,"RestartPolicy":{"Name":"always"}}"#),
        (Some(1_000_000_000), r#"{"CpuShares":1024,"NanoCpus":500000000,"Devices":[]}"#),
        (Some(1_000_000_000), r#"{"CpuShares":500000000}"#),
        (Some(1_000_000_000), "500000000"),
        (Some(1_000_000_000), "x"),
    ] {
        assert_eq!(vetted(now, body), None, "{now:?} {body}");
    }
}

#[test]
fn vet_refuses_every_other_field_or_value() {
    let changes: [(&str, Value); 28] = [
        ("/HostConfig/Privileged", json!(true)),
        ("/HostConfig/privileged", json!(true)),
        ("/hostconfig", json!({"Privileged": true})),
        ("/HostConfig/Binds", json!(["/:/host"])),
        ("/HostConfig/PidMode", json!("host")),
        ("/HostConfig/IpcMode", json!("host")),
        ("/HostConfig/UsernsMode", json!("host")),
        ("/HostConfig/CgroupParent", json!("/")),
        ("/HostConfig/CgroupParent", json!("system.slice")),
        ("/HostConfig/NetworkMode", json!("host")),
        ("/HostConfig/CapAdd", json!(["SYS_ADMIN"])),
        ("/HostConfig/CapDrop", json!([])),
        ("/HostConfig/SecurityOpt", json!(["no-new-privileges", "seccomp=unconfined"])),
        ("/HostConfig/Devices", json!([{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda"}])),
        ("/HostConfig/ReadonlyRootfs", json!(false)),
        ("/HostConfig/MaskedPaths", json!([])),
        ("/HostConfig/Memory", json!(0)),
        ("/HostConfig/PidsLimit", json!(-1)),
        ("/HostConfig/NanoCpus", json!(0)),
        ("/HostConfig/VolumesFrom", json!(["web"])),
        ("/HostConfig/Mounts/1", json!({"Type": "bind", "Source": "/", "Target": "/host"})),
        ("/User", json!("0:0")),
        ("/Cmd", json!(["sh"])),
        ("/Entrypoint", json!(["sh"])),
        ("/Image", json!("debian:latest")),
        ("/Image", json!("../containers/".repeat(6)[..71])),
        ("/Image", json!(format!("sha256:{}", "z".repeat(64)))),
        ("/Labels/com.example", json!("x")),
    ];
    for (path, value) in changes {
        let (spec, (parent, name)) = (spec(), path.rsplit_once('/').expect("a member"));
        let mut body = ours(&spec);
        match body.pointer_mut(parent).expect("a parent") {
            Value::Object(members) => drop(members.insert(name.to_owned(), value)),
            Value::Array(items) => items.push(value),
            other => panic!("{other}"),
        }
        assert!(vetted(&spec, &body.to_string()).is_err(), "{path}");
    }
}

#[test]
fn vet_accepts_only_folders_that_the_operator_shares() {
    let folder =
        |path: &str, writable| SharedFolder { name: "a".to_owned(), source: path.into(), writable, owners: Vec::new() };
    let (allowed, other) = (folder("/srv/a", false), SharedFolder { name: "b".to_owned(), ..folder("/srv/b", true) });
    let form = Form { folders: vec![allowed.clone(), other.clone()], ..form() };
    let passes = |folders: Vec<SharedFolder>| {
        let spec = SandboxSpec { folders, ..spec() };
        vet(&form, spec.id, &users(), ours(&spec).to_string().as_bytes()).is_ok()
    };
    assert!(passes(vec![allowed.clone(), other.clone()]) && passes(vec![other]) && passes(Vec::new()));
    let named = |name: &str| SharedFolder { name: name.to_owned(), ..allowed.clone() };
    for refused in [folder("/srv/a", true), folder("/etc", false), named("b"), named("c"), named("../data")] {
        assert!(!passes(vec![refused.clone()]), "{refused:?}");
    }
}

#[test]
fn vet_accepts_only_skills_of_the_folder_of_skills() {
    let form = |root: Option<&str>| Form { skills: root.map(PathBuf::from), ..form() };
    let passes = |form: &Form, public: Option<&str>, user: Option<&str>| {
        let skills = SkillFolders { public: public.map(PathBuf::from), user: user.map(PathBuf::from) };
        let spec = SandboxSpec { skills, ..spec() };
        vet(form, spec.id, &users(), ours(&spec).to_string().as_bytes()).is_ok()
    };
    let (public, ann) = (Some("/srv/skills/public"), Some("/srv/skills/ann"));
    let set = form(Some("/srv/skills"));
    assert!(passes(&set, public, ann) && passes(&set, public, None) && passes(&set, None, ann));
    for bad in ["/srv/skills", "/srv/skills/public", "/srv/skills/..", "/srv/skills/.incoming", "/srv/skills/a/b", "/"]
    {
        assert!(!passes(&set, public, Some(bad)), "{bad}");
    }
    assert!(!passes(&set, ann, None) && !passes(&form(None), public, None));
    let spec = SandboxSpec { skills: SkillFolders { public: public.map(PathBuf::from), user: None }, ..spec() };
    let writable = ours(&spec).to_string().replace(r#""ReadOnly":true,"#, "").replace(r#","ReadOnly":true"#, "");
    assert!(vet(&set, spec.id, &users(), writable.as_bytes()).is_err());
}

#[test]
fn vet_accepts_the_set_runtime_or_the_candidate() {
    let made = |form: &Form, runtime: Option<&str>| {
        let asking = Profile { runtime: runtime.map(str::to_owned), ..profile() };
        let spec = spec();
        let body = serde_json::to_value(convert::create_body(&asking, &spec, Some(Path::new(FOLDER)))).expect("JSON");
        let (.., made) = vet(form, spec.id, &users(), body.to_string().as_bytes()).ok()?;
        Some(serde_json::from_slice::<Value>(&made).expect("JSON")["HostConfig"]["Runtime"].clone())
    };
    let set = |name: &str| Profile { runtime: Some(name.to_owned()), ..profile() };
    let automatic = Form { candidate: Some("crun".to_owned()), ..form() };
    assert_eq!(made(&automatic, None), Some(Value::Null));
    assert_eq!(made(&automatic, Some("crun")), Some(json!("crun")));
    assert_eq!(made(&automatic, Some("io.containerd.anything")), None);
    let without = form();
    assert_eq!((made(&without, Some("crun")), made(&without, None)), (None, Some(Value::Null)));
    let gvisor = Form { profile: set("runsc"), ..form() };
    assert_eq!(made(&gvisor, Some("runsc")), Some(json!("runsc")));
    assert_eq!((made(&gvisor, Some("crun")), made(&gvisor, None)), (None, None));
}

#[test]
fn vet_accepts_only_the_set_parent_of_control_groups() {
    let with = |parent: Option<&str>| Profile { cgroup_parent: parent.map(str::to_owned), ..profile() };
    let form = Form { profile: with(Some("/sandboxes")), ..form() };
    let passes = |parent: Option<&str>| {
        let spec = spec();
        let body = convert::create_body(&with(parent), &spec, Some(Path::new(FOLDER)));
        let body = serde_json::to_value(body).expect("JSON").to_string();
        vet(&form, spec.id, &users(), body.as_bytes()).is_ok()
    };
    assert!(passes(Some("/sandboxes")));
    for other in [None, Some(""), Some("/"), Some("/sandboxes/"), Some("/sandboxes/../system"), Some("sandboxes.slice")]
    {
        assert!(!passes(other), "{other:?}");
    }
}

#[test]
fn vet_sends_its_own_body_for_repeated_keys_and_refuses_extra_ones() {
    let spec = spec();
    let body = ours(&spec).to_string();
    let twice = body.replacen('{', r#"{"HostConfig":{"Privileged":true,"Binds":["/:/h"]},"#, 1);
    let made = vetted(&spec, &twice).expect("the last one counts, and it is ours");
    assert!(!String::from_utf8(made).expect("text").contains("Privileged"));
    let large = body.replacen('{', &format!(r#"{{"Cmd":["{}"],"#, "x".repeat(2 << 20)), 1);
    assert!(vetted(&spec, &large).is_err());
}
