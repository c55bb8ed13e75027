//! The pool alone, without watchers.

use std::path::PathBuf;

use tokio::time::advance;

use super::*;
use crate::{
    adapters::engine::fake::FakeEngine,
    domain::{clock::ManualClock, id::InstanceId, owner::Principal},
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
        since: Instant::now(),
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
