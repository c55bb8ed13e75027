//! Which sandbox was refused another process or thread.
//!
//! The engine does not report it. The kernel counts it in `pids.events` of the control group of the sandbox, which is
//! gone when the end of the sandbox is known. So a refusal is remembered from two sources that come before that:
//!
//! * inotify reports a change of the counter. From Linux 6.10 on it does not for version 1 of control groups.
//! * [`Forks::look`] reads the counters of version 1. It is called when output arrives (a refused program usually
//!   prints an error, and a framed runner reports its end) and before a sandbox is killed.
//!
//! Without access to the control groups the answer is "no". Spawns nothing; the descriptors are closed with the engine.

use std::{
    collections::HashMap,
    fs,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::fs::inotify;

/// Both sources, for all sandboxes of an engine.
#[derive(Debug)]
pub(super) struct Forks {
    cgroup_root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inotify: Option<OwnedFd>,
    /// The container of each watch.
    watches: HashMap<i32, String>,
    containers: HashMap<String, Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    refused: bool,
    /// The counter of a container in version 1.
    counter: Option<PathBuf>,
}

/// One sandbox's part. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct Refusals {
    forks: Arc<Forks>,
    container: String,
}

impl Forks {
    pub(super) fn new(cgroup_root: PathBuf) -> Self {
        let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok();
        let state = State { inotify, watches: HashMap::new(), containers: HashMap::new() };
        Self { cgroup_root, state: Mutex::new(state) }
    }

    /// Registers a container before it is started.
    pub(super) fn watch(self: &Arc<Self>, container: &str) -> Refusals {
        self.state().containers.insert(container.to_owned(), Watched::default());
        Refusals { forks: Arc::clone(self), container: container.to_owned() }
    }

    /// Reads the counters of version 1: of one container, or of all.
    pub(super) fn look(&self, container: Option<&str>) {
        let mut state = self.state();
        match container {
            Some(name) => state.containers.get_mut(name).into_iter().for_each(Watched::look),
            None => state.containers.values_mut().for_each(Watched::look),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters that a container may have, and whether they are of version 1: with and without systemd.
    fn candidates(&self, container: &str) -> [(PathBuf, bool); 4] {
        let plain = format!("docker/{container}/pids.events");
        let scope = format!("system.slice/docker-{container}.scope/pids.events");
        let (second, first) = (&self.cgroup_root, self.cgroup_root.join("pids"));
        [
            (second.join(&plain), false),
            (second.join(&scope), false),
            (first.join(&plain), true),
            (first.join(&scope), true),
        ]
    }
}

impl Watched {
    fn look(&mut self) {
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
    pub(super) fn follow_group(&self) {
        let mut state = self.forks.state();
        let State { inotify, watches, containers } = &mut *state;
        let Some(inotify) = inotify else { return };
        // Once is enough, and a fork bomb would otherwise fill the queue.
        let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ONESHOT;
        let found = self.forks.candidates(&self.container).into_iter().find_map(|(path, first)| {
            let watch = inotify::add_watch(&*inotify, &path, flags).ok()?;
            Some((watch, first.then_some(path)))
        });
        if let (Some((watch, counter)), Some(watched)) = (found, containers.get_mut(&self.container)) {
            watches.insert(watch, self.container.clone());
            watched.counter = counter;
        }
    }

    /// Reads the counter on each call, for a stream of output.
    pub(super) fn looker(&self) -> impl Fn() + Send + Sync + use<> {
        let (forks, container) = (Arc::clone(&self.forks), self.container.clone());
        move || forks.look(Some(&container))
    }

    /// Whether the sandbox was refused a process until now.
    pub(super) fn seen(&self) -> bool {
        let mut state = self.forks.state();
        state.drain_inotify();
        state.containers.get_mut(&self.container).is_some_and(|watched| {
            watched.look();
            watched.refused
        })
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let mut state = self.forks.state();
        state.containers.remove(&self.container);
        let State { inotify, watches, .. } = &mut *state;
        watches.retain(|watch, container| {
            let ours = *container == self.container;
            if let (true, Some(inotify)) = (ours, &inotify) {
                // Gone already when it fired or when the group was removed.
                let _ = inotify::remove_watch(inotify, *watch);
            }
            !ours
        });
    }
}

impl State {
    fn drain_inotify(&mut self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify, &mut buffer);
        while let Ok(event) = events.next() {
            if !event.events().contains(inotify::ReadFlags::MODIFY) {
                continue;
            }
            if let Some(watched) = self.watches.get(&event.wd()).and_then(|name| self.containers.get_mut(name)) {
                watched.refused = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_after_the_group_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        let forks = Arc::new(Forks::new(root.path().to_owned()));
        let begin = |name: &str| {
            let group = root.path().join("docker").join(name);
            fs::create_dir_all(&group).expect("a group");
            fs::write(group.join("pids.events"), "max 0\n").expect("a counter");
            let refusals = forks.watch(name);
            refusals.follow_group();
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
        let state = forks.state();
        assert!(state.containers.is_empty() && state.watches.is_empty());
    }

    #[test]
    fn a_counter_of_version_1_is_read_without_inotify() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("pids/docker/bomb");
        fs::create_dir_all(&group).expect("a group");
        fs::write(group.join("pids.events"), "max 0\n").expect("a counter");
        let forks = Arc::new(Forks::new(root.path().to_owned()));
        let refusals = forks.watch("bomb");
        refusals.follow_group();
        // No event is reported, as on Linux 6.10 and later.
        forks.state().inotify = None;
        refusals.looker()();
        assert!(!refusals.seen());
        fs::write(group.join("pids.events"), "max 3\n").expect("a change");
        forks.look(None);
        fs::remove_dir_all(group).expect("removed");
        assert!(refusals.seen());
    }

    #[test]
    fn no_refusal_is_seen_without_control_groups() {
        let forks = Arc::new(Forks::new("/nowhere".into()));
        let refusals = forks.watch("abc");
        refusals.follow_group();
        assert!(!refusals.seen());
    }
}
