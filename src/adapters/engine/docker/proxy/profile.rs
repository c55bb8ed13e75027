//! Whether a requested container is one of ours: the parts that differ between sandboxes are parsed into a spec, the
//! adapter's own function builds a container from that, and the two have to be equal. Pure.

use std::path::PathBuf;

use serde_json::Value;

use super::{
    super::convert::{self, Profile},
    rules::Denied,
};
use crate::{
    domain::{
        id::SandboxId,
        limits::Limits,
        shared_folder::SharedFolder,
        skills::{SkillFolders, SkillSource},
        users::RunnerUsers,
    },
    ports::engine::{ImageId, SandboxSpec, Volume},
};

const IMAGE_CHARS: usize = "sha256:".len() + 64;

/// What containers must look like on an engine.
#[derive(Debug)]
pub(super) struct Form {
    /// The same for all.
    pub profile: Profile,
    /// A runtime that the server may use instead of the profile's.
    pub candidate: Option<String>,
    /// Those that the operator shares.
    pub folders: Vec<SharedFolder>,
    /// The folder of skills on the engine's host.
    pub skills: Option<PathBuf>,
}

impl Form {
    /// The profile of a container that names a runtime: the one that is set, or the candidate.
    fn profile(&self, runtime: &Value) -> Profile {
        let candidate = self.candidate.clone().filter(|name| runtime == name.as_str());
        Profile { runtime: candidate.or_else(|| self.profile.runtime.clone()), ..self.profile.clone() }
    }

    /// The folder of public skills, or of an owner's. Which owner is the server's to say: it is the one that decides
    /// whose sandbox it is, and the mount is read-only.
    fn skills(&self, mounts: &[Value]) -> Option<SkillFolders> {
        let mut found = SkillFolders::default();
        for mount in mounts {
            let source = PathBuf::from(mount["Source"].as_str()?);
            let name = source.file_name()?.to_str()?;
            (source.parent()? == self.skills.as_deref()?).then_some(())?;
            match mount["Target"].as_str()? {
                SkillFolders::PUBLIC if name == SkillSource::Public.folder() => found.public = Some(source),
                SkillFolders::USER if SkillSource::of(&name.parse().ok()?).is_some() => found.user = Some(source),
                _ => return None,
            }
        }
        Some(found)
    }
}

/// The spec, and the body to send: never the received one, in which a key could occur twice.
pub(super) fn vet(
    form: &Form,
    id: SandboxId,
    users: &RunnerUsers,
    body: &[u8],
) -> Result<(SandboxSpec, Vec<u8>), Denied> {
    let requested: Value = serde_json::from_slice(body).map_err(|_| Denied::new("the body is no JSON"))?;
    let spec = read(form, &requested, id).ok_or_else(|| Denied::new("the container is not of our form"))?;
    if !users.contains(spec.uid) {
        let same = "SANDBOX_ENGINE__RUNNER_UID and SANDBOX_ENGINE__RUNNER_UIDS as for the server";
        return Err(Denied::new(format!("programs run as {users}, and not as {}: set {same}", spec.uid)));
    }
    let Volume::HostFolder(folder) = &spec.data else { return Err(Denied::new("/data is no folder of the host")) };
    let profile = form.profile(&requested["HostConfig"]["Runtime"]);
    let ours = convert::create_body(&profile, &spec, Some(folder));
    let ours = serde_json::to_value(ours).map_err(|_| Denied::new("the container cannot be made"))?;
    if ours != requested {
        return Err(Denied::new(format!("the container is not ours: {}", difference(&ours, &requested))));
    }
    Ok((spec, ours.to_string().into_bytes()))
}

/// The body of an update to send: only CPU, and not more than the container may use now.
pub(super) fn vet_update(nano_cpus: Option<i64>, body: &[u8]) -> Result<Vec<u8>, Denied> {
    let requested: Value = serde_json::from_slice(body).map_err(|_| Denied::new("the body is no JSON"))?;
    let form = || Denied::new("the update is not of our form");
    let wanted = requested["NanoCpus"].as_i64().filter(|wanted| *wanted > 0).ok_or_else(form)?;
    let cpu_millis = u32::try_from(wanted / 1_000_000).map_err(|_| form())?;
    let ours = serde_json::to_value(convert::update_body(cpu_millis)).map_err(|_| form())?;
    if ours != requested {
        return Err(form());
    }
    if nano_cpus.is_none_or(|now| wanted > now) {
        return Err(Denied::new("the update does not lower the CPU of the container"));
    }
    Ok(ours.to_string().into_bytes())
}

/// Parses the parts that may differ.
fn read(form: &Form, requested: &Value, id: SandboxId) -> Option<SandboxSpec> {
    let host = &requested["HostConfig"];
    let some = |value: &Value| value.as_u64().filter(|number| *number > 0);
    let ulimit = |name: &str| {
        let all = host["Ulimits"].as_array()?;
        some(&all.iter().find(|limit| limit["Name"] == name)?["Hard"])
    };
    let image = requested["Image"].as_str().filter(|image| is_id(image))?;
    let tmp = host["Tmpfs"]["/tmp"].as_str()?.split(',').find_map(|option| option.strip_prefix("size="))?;
    let mounts = host["Mounts"].as_array()?;
    let is_skills = |mount: &Value| mount["Target"].as_str().is_some_and(|target| target.starts_with("/skills/"));
    let skills_at = mounts.iter().skip(1).position(is_skills).map_or(mounts.len(), |at| at + 1);
    let shared = |mount: &Value| form.folders.iter().find(|folder| mount["Target"] == folder.target()).cloned();
    let cpu_millis = u32::try_from(some(&host["NanoCpus"])? / 1_000_000).ok()?;
    // The limit of a container that has more while it loads is not in it; the environment shows whole cores of it.
    let loading_cpu_millis = host["CpuShares"].is_number().then_some(cpu_millis);
    let threads = requested["Env"].as_array()?.iter().find_map(|one| one.as_str()?.strip_prefix("OMP_NUM_THREADS="))?;
    let whole_cores = threads.parse::<u32>().ok()?.checked_mul(1000)?;
    let uid = requested["User"].as_str()?.split_once(':')?.0.parse().ok()?;
    Some(SandboxSpec {
        id,
        instance: requested["Labels"]["sandbox.instance"].as_str()?.parse().ok()?,
        image: ImageId(image.to_owned()),
        data: Volume::HostFolder(PathBuf::from(mounts.first()?["Source"].as_str()?)),
        folders: mounts[1..skills_at].iter().map(shared).collect::<Option<_>>()?,
        skills: form.skills(&mounts[skills_at..])?,
        limits: Limits {
            cpu_millis: if loading_cpu_millis.is_some() { whole_cores } else { cpu_millis },
            memory_bytes: some(&host["Memory"])?,
            processes_max: u32::try_from(some(&host["PidsLimit"])?).ok()?,
            open_files_max: u32::try_from(ulimit("nofile")?).ok()?,
            file_bytes_max: ulimit("fsize")?,
            tmp_bytes: tmp.parse().ok().filter(|bytes| *bytes > 0)?,
            // The server enforces the others.
            ..Limits::default()
        },
        loading_cpu_millis,
        uid,
        own_init: !host["Init"].as_bool()?,
        deadline_unix_s: requested["Labels"]["sandbox.deadline"].as_str()?.parse().ok()?,
    })
}

fn is_id(image: &str) -> bool {
    let digest = image.strip_prefix("sha256:").unwrap_or_default();
    image.len() == IMAGE_CHARS && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The path of the first difference, for the log.
fn difference(ours: &Value, requested: &Value) -> String {
    match (ours, requested) {
        (Value::Object(ours), Value::Object(requested)) => {
            let mut names = ours.keys().chain(requested.keys());
            let name = names.find(|name| ours.get(*name) != requested.get(*name)).cloned().unwrap_or_default();
            let null = Value::Null;
            let (ours, requested) = (ours.get(&name).unwrap_or(&null), requested.get(&name).unwrap_or(&null));
            format!("{name} {}", difference(ours, requested))
        }
        _ => String::new(),
    }
    .trim_end()
    .to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::domain::id::InstanceId;

    const FOLDER: &str = "/var/sandboxes/c/files";

    fn profile() -> Profile {
        Profile { runtime: None, own_seccomp: true, cgroup_v1: true, podman: None }
    }

    fn spec() -> SandboxSpec {
        SandboxSpec {
            id: SandboxId::new(),
            instance: InstanceId::new(),
            image: ImageId(format!("sha256:{}", "5d".repeat(32))),
            data: Volume::HostFolder(FOLDER.into()),
            folders: Vec::new(),
            skills: SkillFolders::default(),
            limits: Limits { memory_bytes: 64 << 20, cpu_millis: 1500, tmp_bytes: 1 << 20, ..Limits::default() },
            loading_cpu_millis: None,
            uid: 1000,
            own_init: true,
            deadline_unix_s: 1_800_000_000,
        }
    }

    fn users() -> RunnerUsers {
        RunnerUsers::each(1000, 70_000..=70_999)
    }

    fn ours(spec: &SandboxSpec) -> Value {
        serde_json::to_value(convert::create_body(&profile(), spec, Some(Path::new(FOLDER)))).expect("JSON")
    }

    fn vetted(spec: &SandboxSpec, body: &str) -> Result<Vec<u8>, Denied> {
        vet(
            &Form { profile: profile(), candidate: None, folders: Vec::new(), skills: None },
            spec.id,
            &users(),
            body.as_bytes(),
        )
        .map(|(_, body)| body)
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
        let changes: [(&str, Value); 24] = [
            ("/HostConfig/Privileged", json!(true)),
            ("/HostConfig/privileged", json!(true)),
            ("/hostconfig", json!({"Privileged": true})),
            ("/HostConfig/Binds", json!(["/:/host"])),
            ("/HostConfig/PidMode", json!("host")),
            ("/HostConfig/IpcMode", json!("host")),
            ("/HostConfig/UsernsMode", json!("host")),
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
            ("/Labels/com.example", json!("x")),
        ];
        for (place, value) in changes {
            let (spec, (parent, name)) = (spec(), place.rsplit_once('/').expect("a place"));
            let mut body = ours(&spec);
            match body.pointer_mut(parent).expect("a parent") {
                Value::Object(members) => drop(members.insert(name.to_owned(), value)),
                Value::Array(items) => items.push(value),
                other => panic!("{other}"),
            }
            assert!(vetted(&spec, &body.to_string()).is_err(), "{place}");
        }
    }

    #[test]
    fn vet_accepts_only_folders_that_the_operator_shares() {
        let folder = |path: &str, writable| SharedFolder {
            name: "a".to_owned(),
            source: path.into(),
            writable,
            owners: Vec::new(),
        };
        let (allowed, other) =
            (folder("/srv/a", false), SharedFolder { name: "b".to_owned(), ..folder("/srv/b", true) });
        let form =
            Form { profile: profile(), candidate: None, folders: vec![allowed.clone(), other.clone()], skills: None };
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
        let form = |root: Option<&str>| Form {
            profile: profile(),
            candidate: None,
            folders: Vec::new(),
            skills: root.map(PathBuf::from),
        };
        let passes = |form: &Form, public: Option<&str>, user: Option<&str>| {
            let skills = SkillFolders { public: public.map(PathBuf::from), user: user.map(PathBuf::from) };
            let spec = SandboxSpec { skills, ..spec() };
            vet(form, spec.id, &users(), ours(&spec).to_string().as_bytes()).is_ok()
        };
        let (public, ann) = (Some("/srv/skills/public"), Some("/srv/skills/ann"));
        let set = form(Some("/srv/skills"));
        assert!(passes(&set, public, ann) && passes(&set, public, None) && passes(&set, None, ann));
        for bad in
            ["/srv/skills", "/srv/skills/public", "/srv/skills/..", "/srv/skills/.incoming", "/srv/skills/a/b", "/"]
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
            let body =
                serde_json::to_value(convert::create_body(&asking, &spec, Some(Path::new(FOLDER)))).expect("JSON");
            let (_, made) = vet(form, spec.id, &users(), body.to_string().as_bytes()).ok()?;
            Some(serde_json::from_slice::<Value>(&made).expect("JSON")["HostConfig"]["Runtime"].clone())
        };
        let set = |name: &str| Profile { runtime: Some(name.to_owned()), ..profile() };
        let automatic =
            Form { profile: profile(), candidate: Some("crun".to_owned()), folders: Vec::new(), skills: None };
        assert_eq!(made(&automatic, None), Some(Value::Null));
        assert_eq!(made(&automatic, Some("crun")), Some(json!("crun")));
        assert_eq!(made(&automatic, Some("io.containerd.anything")), None);
        let without = Form { profile: profile(), candidate: None, folders: Vec::new(), skills: None };
        assert_eq!((made(&without, Some("crun")), made(&without, None)), (None, Some(Value::Null)));
        let gvisor = Form { profile: set("runsc"), candidate: None, folders: Vec::new(), skills: None };
        assert_eq!(made(&gvisor, Some("runsc")), Some(json!("runsc")));
        assert_eq!((made(&gvisor, Some("crun")), made(&gvisor, None)), (None, None));
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
}
