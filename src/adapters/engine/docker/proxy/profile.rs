//! Whether a requested container is one of ours: the parts that differ between sandboxes are parsed into a spec, the
//! adapter's own function builds a container from that, and the two have to be equal. Pure.

use std::path::PathBuf;

use bollard::models::SystemInfo;
use serde_json::Value;

use super::{
    super::convert::{self, Profile},
    ownership::Folders,
    rules::Denied,
};
use crate::{
    domain::{
        Limits, RunnerUsers, SandboxId,
        shared_folder::SharedFolder,
        skills::{SkillFolders, SkillSource},
    },
    ports::engine::{ImageId, SandboxSpec, Volume},
};

/// As many as the kernel has ids for by default.
const PROCESSES_MAX: u32 = 32_768;
const OPEN_FILES_MAX: u32 = 1 << 20;

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
    /// What one container may be given at most.
    pub ceiling: Limits,
}

/// What a machine can give one container: its memory, its processors, and the processes and files that the settings
/// allow at most. The other limits are not those of a container, or count as memory, or are held by quotas.
pub(super) fn ceiling(info: &SystemInfo) -> Limits {
    let cores = info.ncpu.and_then(|cores| u32::try_from(cores).ok());
    Limits {
        cpu_millis: cores.map_or(u32::MAX, |cores| cores.saturating_mul(1000)),
        memory_bytes: info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(u64::MAX),
        processes_max: PROCESSES_MAX,
        open_files_max: OPEN_FILES_MAX,
        ..Limits::UNBOUNDED
    }
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

/// Its image and folders, and the body to send: never the received one, in which a key could occur twice.
pub(super) fn vet(
    form: &Form,
    id: SandboxId,
    users: &RunnerUsers,
    body: &[u8],
) -> Result<(ImageId, Folders, Vec<u8>), Denied> {
    let requested: Value = serde_json::from_slice(body).map_err(|_| Denied::new("the body is no JSON"))?;
    let spec = read(form, &requested, id).ok_or_else(|| Denied::new("the container is not of our form"))?;
    if !users.contains(spec.uid) {
        let same = "SANDBOX_ENGINE__RUNNER_UID and SANDBOX_ENGINE__RUNNER_UIDS as for the server";
        return Err(Denied::new(format!("programs run as {users}, and not as {}: set {same}", spec.uid)));
    }
    let loading = Limits { cpu_millis: spec.loading_cpu_millis.unwrap_or_default(), ..spec.limits };
    if [spec.limits, loading].iter().any(|limits| limits.at_most(&form.ceiling) != *limits) {
        return Err(Denied::new("the container may use more memory, processors, processes or files than one may have"));
    }
    let Volume::HostFolder(data) = spec.data.clone() else { return Err(Denied::new("/data is no folder of the host")) };
    let profile = form.profile(&requested["HostConfig"]["Runtime"]);
    let ours = convert::create_body(&profile, &spec, Some(&data));
    let ours = serde_json::to_value(ours).map_err(|_| Denied::new("the container cannot be made"))?;
    if ours != requested {
        return Err(Denied::new(format!("the container is not ours: {}", difference(&ours, &requested))));
    }
    let folders = Folders { data, skills: spec.skills.mounts().map(|(path, _)| path.clone()).collect() };
    Ok((spec.image, folders, ours.to_string().into_bytes()))
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
    let is_digest = |digest: &str| digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    image.strip_prefix("sha256:").is_some_and(is_digest)
}

/// The path of the first difference, for the log.
fn difference(ours: &Value, requested: &Value) -> String {
    let (Value::Object(of_ours), Value::Object(of_requested)) = (ours, requested) else { return String::new() };
    let mut names = of_ours.keys().chain(of_requested.keys());
    let different = names.find(|name| of_ours.get(*name) != of_requested.get(*name));
    let name = different.map(String::as_str).unwrap_or_default();
    format!("{name} {}", difference(&ours[name], &requested[name])).trim_end().to_owned()
}

#[cfg(test)]
mod tests;
