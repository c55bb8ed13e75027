//! The pool alone, without watchers.

use std::path::PathBuf;

use tokio::time::advance;

use super::*;
use crate::{
    adapters::engine::fake::FakeEngine,
    domain::{InstanceId, Principal, clock::ManualClock},
    ports::storage::{ConversationFolder, DataFolder, StorageError},
    services::janitor::Janitor,
};

/// A standby, and its watcher's end of it.
fn standby(image: &str) -> (Standby, oneshot::Receiver<Handover>) {
    let engine = Arc::new(FakeEngine::default());
    let janitor = Janitor::new(engine, InstanceId::new(), Arc::new(ManualClock::at(1000)));
    let key = ConversationKey::new(Principal::default(), "c".parse().expect("an id"));
    let (handover, requested) = oneshot::channel();
    let standby = Standby {
        lease: Arc::new(janitor.lease(SandboxId::new())),
        image: ImageId(image.to_owned()),
        language: "python".parse().expect("a language"),
        assignee: Assignee::Conversation { key, folder: FolderId { device: 1, inode: 1 } },
        phase: Phase::Ready,
        since: Moment::now(&ManualClock::at(1000)),
        loads_fast: false,
        handover,
    };
    (standby, requested)
}

/// A folder that is nowhere, and becomes that of no conversation.
#[derive(Debug)]
pub(crate) struct NoFolder;

impl UnassignedFolder for NoFolder {
    fn is_assigned(&self) -> bool {
        false
    }

    fn data(&self) -> DataFolder {
        DataFolder { path: PathBuf::new(), uid: 0 }
    }

    fn assign(&mut self, _: &ConversationKey) -> Result<Option<Box<dyn ConversationFolder>>, StorageError> {
        Ok(None)
    }
}

#[tokio::test]
async fn reports_of_a_standby_count_while_its_folder_is_assigned() {
    let mut pool = Pool::default();
    let ((loads, _requested), (dies, _other_requested)) = (standby("a"), standby("a"));
    let image = loads.image.clone();
    for mut standby in [loads, dies] {
        (standby.assignee, standby.loads_fast) = (Assignee::Unassigned(Some(Box::new(NoFolder))), true);
        pool.standbys.push(standby);
    }
    let (first, folder) = pool.take_folder(&image).expect("a folder");
    let (second, other) = pool.take_folder(&image).expect("another folder");
    assert!(first != second && pool.take_folder(&image).is_none(), "both folders are taken");
    pool.record_phase(first, Phase::Warm, None);
    assert!(pool.remove_dead(second).is_some());
    assert_eq!(pool.loading(), 0);
    assert!(pool.return_folder(second, other).is_some(), "its standby is gone");
    assert!(pool.return_folder(first, folder).is_none());
    assert_eq!(pool.take_folder(&image).map(|(id, _)| id), Some(first));
    assert_eq!(pool.standbys.len(), 1);
}

#[tokio::test]
async fn folder_of_a_standby_that_is_being_started_is_not_taken() {
    let mut pool = Pool::default();
    let (mut starting, _requested) = standby("a");
    (starting.assignee, starting.phase) = (Assignee::Unassigned(Some(Box::new(NoFolder))), Phase::Starting);
    let (id, image) = (starting.id(), starting.image.clone());
    pool.standbys.push(starting);
    assert!(pool.take_folder(&image).is_none(), "its path is not mounted yet");
    pool.record_phase(id, Phase::Ready, None);
    assert!(pool.take_folder(&image).is_some());
}

#[tokio::test]
async fn expire_forgets_what_images_that_are_gone_used() {
    let mut pool = Pool::default();
    let (standby, _requested) = standby("old");
    let (id, old) = (standby.id(), standby.image.clone());
    pool.standbys.push(standby);
    pool.record_phase(id, Phase::Warm, Some(MEMORY_GUESS_BYTES + 1));
    pool.expire(QUICK[0], QUICK[0], std::slice::from_ref(&old));
    assert_eq!(pool.expected_bytes(&old), MEMORY_GUESS_BYTES + 1);
    pool.expire(QUICK[0], QUICK[0], &[ImageId("new".to_owned())]);
    assert_eq!((pool.expected_bytes(&old), pool.memory_max.len()), (MEMORY_GUESS_BYTES, 0));
}

#[tokio::test(start_paused = true)]
async fn conversation_gets_as_many_as_its_pace_needs() {
    let key = ConversationKey::new(Principal::default(), "loop".parse().expect("an id"));
    let (python, bash) = ("python".parse().expect("a language"), "bash".parse().expect("a language"));
    let mut pool = Pool::default();
    let mut wanted_after = async |pause_ms: u64, language: &Language| {
        advance(Duration::from_millis(pause_ms)).await;
        pool.record_run(&key, language, 10);
        pool.recent[0].standbys_wanted()
    };
    assert_eq!(wanted_after(0, &python).await, 1);
    assert_eq!(wanted_after(6000, &python).await, 1, "its runs are far apart");
    assert_eq!(wanted_after(4000, &python).await, 2, "they are close");
    assert_eq!(wanted_after(900, &python).await, 3, "they are very close");
    assert_eq!(wanted_after(6000, &python).await, 3, "they were lately");
    assert_eq!(wanted_after(31_000, &python).await, 1, "they are no longer");
    assert_eq!(wanted_after(100, &bash).await, 1, "a run of another language needs another standby");
}

#[tokio::test]
async fn conversations_of_the_owner_who_has_the_most_are_forgotten_first() {
    let python: Language = "python".parse().expect("a language");
    let mut pool = Pool::default();
    for (owner, id) in [("bob", "b"), ("ann", "a1"), ("ann", "a2"), ("ann", "a3")] {
        let key = ConversationKey::new(owner.parse().expect("an owner"), id.parse().expect("an id"));
        pool.record_run(&key, &python, 3);
    }
    let kept: Vec<_> = pool.recent.iter().map(|recent| recent.key.to_string()).collect();
    assert_eq!(kept, ["@bob/b", "@ann/a2", "@ann/a3"]);
}

#[tokio::test]
async fn conversation_is_in_use_until_its_run_and_the_opening_of_its_session_have_ended() {
    let (mut pool, key) = (Pool::default(), ConversationKey::new(Principal::default(), "c".parse().expect("an id")));
    pool.begin_use(&key);
    pool.begin_use(&key);
    pool.end_use(&key);
    assert!(pool.in_use.contains_key(&key) && pool.quiet_since.is_none(), "the run goes on");
    pool.end_use(&key);
    assert!(pool.in_use.is_empty() && pool.quiet_since.is_some());
    // However many uses there are, and in whatever order they begin and end.
    let keys = ["a", "b", "c"].map(|name| ConversationKey::new(Principal::default(), name.parse().expect("an id")));
    for order in 0..1_u32 << 12 {
        let (mut pool, mut uses) = (Pool::default(), [0_usize; 3]);
        for step in 0..6 {
            let (at, begins) = ((order >> (2 * step)) as usize % 4 % keys.len(), (order >> step) & 1 == 0);
            if begins {
                pool.begin_use(&keys[at]);
                uses[at] += 1;
            } else if uses[at] > 0 {
                pool.end_use(&keys[at]);
                uses[at] -= 1;
            }
            assert_eq!(keys.each_ref().map(|key| pool.in_use.get(key).copied().unwrap_or(0)), uses, "{order:b}");
        }
    }
}
