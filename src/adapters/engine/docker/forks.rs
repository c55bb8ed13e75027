//! Facts about a sandbox that the engine does not report: whether it was refused another process or thread, and whether
//! we killed it.
//!
//! The kernel counts refusals in `pids.events` of the control group of the sandbox, which is gone when the end of the
//! sandbox is known. So a refusal is remembered from two sources that come before that:
//!
//! * inotify reports a change of the counter. From Linux 6.10 on it does not for version 1 of control groups.
//! * [`Watched::read_counter`] reads the counter of version 1. It is called when output arrives (a refused program
//!   usually prints an error, and a framed runner reports its end) and before a sandbox is killed.
//!
//! Without access to the control groups the answer is "no". Spawns nothing; the descriptors are closed with the engine.

use std::{collections::HashMap, fs, mem::MaybeUninit, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use rustix::fs::inotify;

use crate::domain::SandboxId;

/// Both sources, for all sandboxes of an engine.
#[derive(Debug)]
pub(super) struct Forks {
    cgroup_root: PathBuf,
    /// Where below the root the groups of containers are: without and with systemd.
    parents: [PathBuf; 2],
    inotify: Option<OwnedFd>,
    watched: Mutex<HashMap<SandboxId, Watched>>,
}

#[derive(Debug, Default)]
struct Watched {
    refused: bool,
    killed: bool,
    watch: Option<i32>,
    /// The counter in version 1.
    counter: Option<PathBuf>,
}

/// One sandbox's part. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct Refusals {
    forks: Arc<Forks>,
    id: SandboxId,
}

impl Forks {
    /// For containers with that parent, or the engine's own.
    pub(super) fn new(cgroup_root: PathBuf, parent: Option<&str>) -> Self {
        let parents = match parent {
            None => ["docker", "system.slice"].map(PathBuf::from),
            Some(parent) => [folder(parent), folder(parent)],
        };
        let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok();
        Self { cgroup_root, parents, inotify, watched: Mutex::default() }
    }

    /// Registers a sandbox before it is started.
    pub(super) fn watch(self: &Arc<Self>, id: SandboxId) -> Refusals {
        self.watched.lock().insert(id, Watched::default());
        Refusals { forks: Arc::clone(self), id }
    }

    /// To be called before a sandbox is killed, since its control group is gone afterwards.
    pub(super) fn killing(&self, id: SandboxId) {
        if let Some(watched) = self.watched.lock().get_mut(&id) {
            watched.read_counter();
            watched.killed = true;
        }
    }

    /// The counters that a container may have, and whether they are of version 1.
    fn candidates(&self, container: &str) -> impl Iterator<Item = (PathBuf, bool)> {
        let [plain, slice] = &self.parents;
        let groups = [plain.join(container), slice.join(format!("docker-{container}.scope"))];
        let roots = [(self.cgroup_root.clone(), false), (self.cgroup_root.join("pids"), true)];
        let counters = move |(root, first): (PathBuf, bool)| {
            groups.clone().map(|group| (root.join(group).join("pids.events"), first))
        };
        roots.into_iter().flat_map(counters)
    }

    fn drain_inotify(&self, watched: &mut HashMap<SandboxId, Watched>) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify, &mut buffer);
        while let Ok(event) = events.next() {
            let modified = event.events().contains(inotify::ReadFlags::MODIFY);
            if let Some(one) = watched.values_mut().find(|one| modified && one.watch == Some(event.wd())) {
                one.refused = true;
            }
        }
    }
}

/// The folder of a parent below the root: a path as it is, and `a-b.slice` in `a.slice`.
fn folder(parent: &str) -> PathBuf {
    if let Some(path) = parent.strip_prefix('/') {
        return path.into();
    }
    let outer = parent.match_indices('-').map(|(at, _)| format!("{}.slice", &parent[..at]));
    outer.chain([parent.to_owned()]).collect()
}

impl Watched {
    /// Reads the counter of version 1.
    fn read_counter(&mut self) {
        if self.refused {
            return;
        }
        let text = self.counter.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let count = text.as_deref().and_then(|text| text.trim().strip_prefix("max "));
        self.refused = count.is_some_and(|count| count != "0");
    }
}

impl Refusals {
    /// Follows the control group of the container, which exists once the container was started.
    pub(super) fn follow_group(&self, container: &str) {
        let Some(inotify) = &self.forks.inotify else { return };
        // Once is enough, and a fork bomb would otherwise fill the queue.
        let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ONESHOT;
        let mut all = self.forks.watched.lock();
        let Some(watched) = all.get_mut(&self.id) else { return };
        for (path, first) in self.forks.candidates(container) {
            if let Ok(watch) = inotify::add_watch(inotify, &path, flags) {
                (watched.watch, watched.counter) = (Some(watch), first.then_some(path));
                return;
            }
        }
    }

    /// Reads the counter on each call, for a stream of output.
    pub(super) fn counter_reader(&self) -> impl Fn() + Send + Sync + use<> {
        let (forks, id) = (Arc::clone(&self.forks), self.id);
        move || forks.watched.lock().get_mut(&id).into_iter().for_each(Watched::read_counter)
    }

    /// Whether the sandbox was refused a process until now.
    pub(super) fn seen(&self) -> bool {
        let mut all = self.forks.watched.lock();
        self.forks.drain_inotify(&mut all);
        all.get_mut(&self.id).is_some_and(|watched| {
            watched.read_counter();
            watched.refused
        })
    }

    /// Whether we killed the sandbox.
    pub(super) fn killed(&self) -> bool {
        self.forks.watched.lock().get(&self.id).is_some_and(|watched| watched.killed)
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let mut all = self.forks.watched.lock();
        // What others' watches have reported is kept before this one's number can be given again.
        self.forks.drain_inotify(&mut all);
        let watch = all.remove(&self.id).and_then(|watched| watched.watch);
        if let (Some(watch), Some(inotify)) = (watch, &self.forks.inotify) {
            // Gone already when it fired or when the group was removed.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_after_the_group_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        let forks = Arc::new(Forks::new(root.path().to_owned(), None));
        let begin = |name: &str| {
            let group = root.path().join("docker").join(name);
            fs::create_dir_all(&group).expect("a group");
            fs::write(group.join("pids.events"), "max 0\n").expect("a counter");
            let refusals = forks.watch(SandboxId::new());
            refusals.follow_group(name);
            (group, refusals)
        };
        let (bomb, bomb_refusals) = begin("bomb");
        let (_, calm_refusals) = begin("calm");
        assert!(!bomb_refusals.seen());
        fs::write(bomb.join("pids.events"), "max 1\n").expect("a change");
        fs::remove_dir_all(bomb).expect("removed");
        assert!(bomb_refusals.seen() && bomb_refusals.seen());
        assert!(!calm_refusals.seen());
        drop((bomb_refusals, calm_refusals));
        assert!(forks.watched.lock().is_empty());
    }

    #[test]
    fn a_container_is_found_below_its_parent() {
        for (parent, group) in [
            (None, "docker/bomb"),
            (None, "system.slice/docker-bomb.scope"),
            (Some("/sandboxes"), "sandboxes/bomb"),
            (Some("/machines/sandboxes"), "machines/sandboxes/bomb"),
            (Some("sandboxes.slice"), "sandboxes.slice/docker-bomb.scope"),
            (Some("a-b-c.slice"), "a.slice/a-b.slice/a-b-c.slice/docker-bomb.scope"),
        ] {
            for version in ["", "pids"] {
                let root = tempfile::tempdir().expect("a folder");
                let group = root.path().join(version).join(group);
                fs::create_dir_all(&group).expect("a group");
                fs::write(group.join("pids.events"), "max 0\n").expect("a counter");
                let forks = Arc::new(Forks::new(root.path().to_owned(), parent));
                let refusals = forks.watch(SandboxId::new());
                refusals.follow_group("bomb");
                fs::write(group.join("pids.events"), "max 1\n").expect("a change");
                assert!(refusals.seen(), "{parent:?} {version}");
            }
        }
    }

    #[test]
    fn a_counter_of_version_1_is_read_without_inotify() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("pids/docker/bomb");
        fs::create_dir_all(&group).expect("a group");
        fs::write(group.join("pids.events"), "max 0\n").expect("a counter");
        let (forks, id) = (Arc::new(Forks::new(root.path().to_owned(), None)), SandboxId::new());
        let refusals = forks.watch(id);
        refusals.follow_group("bomb");
        // No event is reported, as on Linux 6.10 and later.
        forks.watched.lock().get_mut(&id).expect("it is watched").watch = None;
        refusals.counter_reader()();
        assert!(!refusals.seen());
        fs::write(group.join("pids.events"), "max 3\n").expect("a change");
        assert!(!refusals.killed());
        forks.killing(id);
        fs::remove_dir_all(group).expect("removed");
        assert!(refusals.seen() && refusals.killed());
    }

    #[test]
    fn no_refusal_is_seen_without_control_groups() {
        let forks = Arc::new(Forks::new("/nowhere".into(), None));
        let refusals = forks.watch(SandboxId::new());
        refusals.follow_group("abc");
        assert!(!refusals.seen());
    }
}
