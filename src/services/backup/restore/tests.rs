//! What a restore says that fails after it has begun.

use std::io::Write as _;

use super::*;
use crate::{
    adapters::{database::Database, storage::DiskStorage},
    domain::RunnerUsers,
    ports::database::DumpStore as _,
};

#[tokio::test]
async fn an_archive_that_cannot_be_read_again_is_not_refused() {
    let (folder, database) = Database::in_new_folder().await;
    let users = RunnerUsers::one(rustix::process::geteuid().as_raw());
    let store: Arc<dyn Storage> = Arc::new(DiskStorage::at(&folder.path().join("root"), users).expect("a root"));
    let mut archive = tempfile::tempfile().expect("a file");
    archive.write_all(b"no archive any more").expect("written");
    let of_files = files(store.as_ref(), &archive).expect_err("no archive");
    let (backup, version) = (Backup::new(store, Arc::new(database.clone())), database.version());
    let of_rows = backup.load(Arc::new(archive), version, false).await.expect_err("no archive");
    for error in [of_files, of_rows] {
        assert!(matches!(error, BackupError::ReadAgain(_)), "{error}");
    }
    database.close().await;
}
