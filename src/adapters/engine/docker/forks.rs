//! Which sandbox was refused another process or thread.
//!
//! The engine does not tell. The kernel does, in two places, and by the time anybody asks, the sandbox and its control
//! group are gone, so reading the counter then is too late. Both sources below keep what they were told, so nothing has
//! to be polled and nothing can be missed; they are read when a sandbox has ended:
//!
//! * a change of the group's `pids.events`, told by inotify. Kernels from 6.10 on no longer tell it for the first
//!   generation of control groups.
//! * the kernel's log, which names the group at its first refusal. Reading it needs a right that a server in a
//!   container does not have by default.
//!
//! Where neither can be seen, the answer is "no". Spawns nothing; the descriptors are closed with the engine.

use std::{
    collections::HashMap,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{Mode, OFlags, SeekFrom, inotify, open, seek},
    io::{Errno, read},
};

/// The longest record of the kernel's log, in bytes.
const RECORD_BYTES_MAX: usize = 8192;

/// Both sources, for all sandboxes of an engine.
#[derive(Debug)]
pub(super) struct Forks {
    cgroup_root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inotify: Option<OwnedFd>,
    kernel_log: Option<OwnedFd>,
    /// By the number of the watch: the container.
    watches: HashMap<i32, String>,
    /// By container: whether it was refused.
    refused: HashMap<String, bool>,
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
        let state = State { inotify, kernel_log: kernel_log(), watches: HashMap::new(), refused: HashMap::new() };
        Self { cgroup_root, state: Mutex::new(state) }
    }

    /// Begins to listen, before the container is started.
    pub(super) fn watch(self: &Arc<Self>, container: &str) -> Refusals {
        self.state().refused.insert(container.to_owned(), false);
        Refusals { forks: Arc::clone(self), container: container.to_owned() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where engines put the group of a container: both generations, with and without systemd.
    fn candidates(&self, container: &str) -> [PathBuf; 4] {
        let plain = format!("docker/{container}/pids.events");
        let scope = format!("system.slice/docker-{container}.scope/pids.events");
        let root = &self.cgroup_root;
        [root.join(&plain), root.join(&scope), root.join("pids").join(&plain), root.join("pids").join(&scope)]
    }
}

impl Refusals {
    /// Listens to the container's group, which is there once the container has been started.
    pub(super) fn follow_group(&self) {
        let mut state = self.forks.state();
        let Some(inotify) = &state.inotify else { return };
        // Once is enough, and a fork bomb would otherwise fill the queue.
        let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::ONESHOT;
        let mut paths = self.forks.candidates(&self.container).into_iter();
        let watch = paths.find_map(|path| inotify::add_watch(inotify, path, flags).ok());
        if let Some(watch) = watch {
            state.watches.insert(watch, self.container.clone());
        }
    }

    /// Whether the sandbox was refused a process until now.
    pub(super) fn seen(&self) -> bool {
        let mut state = self.forks.state();
        state.drain_inotify();
        state.drain_kernel_log();
        state.refused.get(&self.container).copied().unwrap_or(false)
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let mut state = self.forks.state();
        state.refused.remove(&self.container);
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
            if let Some(refused) = self.watches.get(&event.wd()).and_then(|name| self.refused.get_mut(name)) {
                *refused = true;
            }
        }
    }

    fn drain_kernel_log(&mut self) {
        let Some(log) = &self.kernel_log else { return };
        let mut buffer = [0; RECORD_BYTES_MAX];
        loop {
            let length = match read(log, &mut buffer) {
                Ok(0) => return,
                Ok(length) => length,
                // Older records were overwritten before they were read, or we were interrupted: go on.
                Err(Errno::PIPE | Errno::INVAL | Errno::INTR) => continue,
                Err(_) => return,
            };
            if let Some(refused) = refused_group(&buffer[..length]).and_then(|name| self.refused.get_mut(name)) {
                *refused = true;
            }
        }
    }
}

/// The kernel's log, from here on.
fn kernel_log() -> Option<OwnedFd> {
    let log = open("/dev/kmsg", OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    seek(&log, SeekFrom::End(0)).ok()?;
    Some(log)
}

/// The container that a record of the kernel's log names as refused. A record is `priority,number,time,flags;text`.
fn refused_group(record: &[u8]) -> Option<&str> {
    let (head, text) = std::str::from_utf8(record).ok()?.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    // The facility is above the lowest three bits; anything but zero was written by a program.
    if priority >> 3 != 0 {
        return None;
    }
    let text = text.lines().next()?;
    // The path is a continuation of the line: another processor's message can part the two.
    let path = text.split_once("pids controller in ").map_or(text, |(_, path)| path);
    let name = path.starts_with('/').then(|| path.rsplit('/').next())??;
    Some(name.strip_prefix("docker-").and_then(|name| name.strip_suffix(".scope")).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_kernels_log_names_the_container() {
        let of = |record: &str| refused_group(record.as_bytes()).map(str::to_owned);
        let told = "6,812,1518928661,-;cgroup: fork rejected by pids controller in /docker/abc\n SUBSYSTEM=x\n";
        assert_eq!(of(told).as_deref(), Some("abc"));
        let scope = "6,812,1,-;cgroup: fork rejected by pids controller in /system.slice/docker-abc.scope\n";
        assert_eq!(of(scope).as_deref(), Some("abc"));
        assert_eq!(of("6,813,1,+;/docker/abc\n").as_deref(), Some("abc"));
        assert_eq!(of("6,814,1,-;oom-kill:task_memcg=/docker/abc,task=x\n"), None);
        assert_eq!(
            of("14,815,1,-;cgroup: fork rejected by pids controller in /docker/abc\n"),
            None,
            "a program's line"
        );
        assert_eq!(of("nonsense"), None);
    }

    #[test]
    fn a_change_of_the_counter_is_kept_after_the_group_is_gone() {
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
        assert!(state.refused.is_empty() && state.watches.is_empty());
    }

    #[test]
    fn a_host_that_shows_nothing_says_no() {
        let forks = Arc::new(Forks::new("/nowhere".into()));
        let refusals = forks.watch("abc");
        refusals.follow_group();
        assert!(!refusals.seen());
    }
}
