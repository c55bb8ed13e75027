//! Decides which server a container belongs to. Each server has its own root, and the engine reports which folder it
//! mounted as `/data`: a server can choose the instance on a label, but not that folder. Pure.

use std::{
    mem,
    path::{Path, PathBuf},
};

use bollard::models::{
    ContainerInspectResponse,
    ContainerStateStatusEnum::{CREATED, DEAD, EXITED},
    ContainerSummary, MountPoint,
};

use super::super::convert;
use crate::{
    domain::{skills::SkillFolders, text::rfc3339},
    ports::engine,
};

/// How long ago a container that its server has not removed exited, in seconds. A living server removes it at once.
const UNCLAIMED_S: i64 = 30;
/// How long ago a container that its server has not started was created, in seconds. A living server starts it at once.
const UNSTARTED_S: i64 = 60;

/// The folders of a container that are below a root, in which the server writes.
#[derive(Debug, Clone, Default)]
pub(super) struct Folders {
    pub data: PathBuf,
    pub skills: Vec<PathBuf>,
}

/// The folders that are mounted as `/data` and as skills.
pub(super) fn folders(found: &ContainerInspectResponse) -> Option<Folders> {
    let source = |target| source(found.mounts.as_deref(), target);
    let skills = [SkillFolders::PUBLIC, SkillFolders::USER];
    Some(Folders { data: source("/data")?, skills: skills.into_iter().filter_map(source).collect() })
}

fn source(mounts: Option<&[MountPoint]>, target: &str) -> Option<PathBuf> {
    let mount = mounts?.iter().find(|mount| mount.destination.as_deref() == Some(target))?;
    mount.source.as_ref().map(PathBuf::from)
}

/// Whether a server may see a listed container: one of its own as it is, and of another server's what tells the janitor
/// that it is left behind, once it does not run or is long past its deadline.
pub(super) fn show(one: &mut ContainerSummary, root: &Path, now_unix_s: i64) -> bool {
    if source(one.mounts.as_deref(), "/data").is_some_and(|data| data.starts_with(root)) {
        return true;
    }
    let Some(listed) = convert::listed(one) else { return false };
    let ContainerSummary { id, names, created, labels, state, .. } = mem::take(one);
    *one = ContainerSummary { id, names, created, labels, state, ..ContainerSummary::default() };
    !listed.running || engine::is_abandoned(listed.deadline_unix_s, now_unix_s)
}

/// Whether it is a sandbox whose server must be gone: it does not run and was left so, or it is long past its deadline.
pub(super) fn is_left_behind(found: &ContainerInspectResponse, now_unix_s: i64) -> bool {
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    let Some(deadline_unix_s) = labels.and_then(convert::deadline_unix_s) else { return false };
    let state = found.state.as_ref();
    let (since, seconds) = match state.and_then(|state| state.status) {
        Some(EXITED | DEAD) => (state.and_then(|state| state.finished_at.as_ref()), UNCLAIMED_S),
        Some(CREATED) => (found.created.as_ref(), UNSTARTED_S),
        _ => (None, 0),
    };
    // Both are in UTC (RFC 3339), so the seconds compare as text.
    let until = rfc3339(now_unix_s - seconds);
    let is_over = since.and_then(|since| since.get(..19)).is_some_and(|since| since < &until[..19]);
    is_over || engine::is_abandoned(deadline_unix_s, now_unix_s)
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerConfig, ContainerState, ContainerStateStatusEnum};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn found(
        status: ContainerStateStatusEnum,
        finished_unix_s: i64,
        deadline: Option<i64>,
    ) -> ContainerInspectResponse {
        let labels = deadline.map(|deadline| [("sandbox.deadline".to_owned(), deadline.to_string())].into());
        let at = rfc3339(finished_unix_s).replace('Z', ".123456789Z");
        ContainerInspectResponse {
            config: Some(ContainerConfig { labels, ..ContainerConfig::default() }),
            created: Some(rfc3339(NOW - 50)),
            state: Some(ContainerState { status: Some(status), finished_at: Some(at), ..ContainerState::default() }),
            ..ContainerInspectResponse::default()
        }
    }

    #[test]
    fn only_exited_or_abandoned_sandboxes_are_left_behind() {
        use ContainerStateStatusEnum::RUNNING;
        let never = -62_135_596_800;
        for (status, finished, deadline, expected) in [
            (RUNNING, never, Some(NOW), false),
            (RUNNING, NOW - 3600, Some(NOW - 599), false),
            (RUNNING, never, Some(NOW - 601), true),
            (EXITED, NOW - 1, Some(NOW + 60), false),
            (EXITED, NOW - 31, Some(NOW + 60), true),
            (CREATED, never, Some(NOW + 60), false),
            (EXITED, NOW - 3600, None, false),
            (CREATED, never, None, false),
        ] {
            let is = is_left_behind(&found(status, finished, deadline), NOW);
            assert_eq!(is, expected, "{status:?} {finished} {deadline:?}");
        }
        assert!(is_left_behind(&found(CREATED, never, Some(NOW + 60)), NOW + 11), "never started");
    }
}
