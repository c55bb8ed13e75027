//! How many uploaded archives are unpacked at once.

use std::time::Duration;

use tokio::time::timeout;

use super::*;
use crate::adapters::storage::DiskSkills;

#[tokio::test(start_paused = true)]
async fn archives_are_unpacked_one_at_a_time() {
    let root = tempfile::tempdir().expect("a folder");
    let skills = Skills::new(Some(Arc::new(DiskSkills::at(root.path(), 0).expect("a store"))));
    let (owner, name): (_, SkillName) = (Principal::default(), "a".parse().expect("a name"));
    let turn = skills.changes.lock().await;
    let mut waiting = Box::pin(skills.upload(&owner, &name, Bytes::from_static(b"no zip")));
    // The paused time stands still while an archive is being unpacked.
    assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
    drop(turn);
    assert_eq!(waiting.await.map(drop).map_err(|failure| failure.code), Err(Code::BadArchive));
}
