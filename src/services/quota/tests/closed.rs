//! Folders that programs close to a server which is neither root nor their user.

use std::{
    fs::{create_dir, remove_dir_all, set_permissions},
    os::unix::fs::{PermissionsExt as _, chown},
};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

/// The user of programs.
const UID: u32 = 12_345;

#[test]
fn what_programs_hide_in_closed_folders_counts_until_it_can_be_measured() {
    if !as_root() {
        return;
    }
    let disk = OwnDisk::mount();
    // Threads of a runtime have what the thread has that starts them: none of root's rights to the files of others.
    std::thread::scope(|scope| {
        let test = scope.spawn(|| {
            let mut sets = capabilities(None).expect("its capabilities");
            let rights = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
            sets.effective.remove(rights);
            set_capabilities(None, sets).expect("fewer capabilities");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(count_closed_folders(&disk));
        });
        test.join().expect("it passes");
    });
}

async fn count_closed_folders(disk: &OwnDisk) {
    let (store, quota) = on(disk, 8 * MIB);
    let data = store.create(&id()).expect("a conversation").data().path;
    let admits = async |bytes: u64| {
        let admitted = quota.writer(&id()).await.check_room(&usage(bytes, 0));
        admitted.map(|there| there.is_some()).map_err(|refused| refused.code)
    };
    let mode = |name: &str, mode| set_permissions(data.join(name), std::fs::Permissions::from_mode(mode));
    // A program that makes a folder with so much in it, and closes it.
    let run = async |name: &str, mib: u64| {
        let watch = Watch::begin(Arc::clone(&quota), id());
        create_dir(data.join(name)).expect("a folder");
        let file = File::create(data.join(name).join("f")).expect("a file");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mib * MIB).expect("its space");
        // A walk that finds it before it is closed explains it, and it still counts.
        let _ = quota.sample(&id(), watch.number);
        mode(name, 0o000).expect("closed");
        chown(data.join(name), Some(UID), Some(UID)).expect("its owner");
        drop(watch);
        quota.exceeds_now(&id()).await
    };
    let delete = |name: &str| {
        chown(data.join(name), Some(0), Some(0)).expect("its owner");
        mode(name, 0o700).expect("opened");
        remove_dir_all(data.join(name)).expect("deleted");
    };

    assert_eq!(admits(8 * MIB).await, Ok(true), "it is empty");
    for name in ["a", "b"] {
        assert_eq!(run(name, 3).await, Some(DiskLimit::Closed));
        assert_eq!(admits(0).await, Ok(false), "a program may open what is below the quota");
    }
    assert_eq!(admits(3 * MIB).await, Err(Code::QuotaExceeded));
    // What clients write counts too.
    quota.writer(&id()).await.reserve(&usage(MIB, 1)).expect("room");
    assert_eq!(admits(MIB + 1).await, Err(Code::QuotaExceeded));
    assert_eq!(run("c", 3).await, Some(DiskLimit::Closed));
    assert_eq!(admits(0).await, Err(Code::QuotaExceeded));
    let other = quota.writer(&"other".parse().expect("an id")).await;
    assert!(other.check_room(&usage(MIB, 1)).is_ok(), "another conversation has its own quota");
    let options = QuotaOptions { owner_bytes_max: Some(2 * MIB), ..quota.options };
    let of_owner = Arc::new(Quota::new(store, options));
    // An upload whose file is being placed counts once.
    let (writer, mut upload) = (of_owner.writer(&id()).await, of_owner.arrival(&id(), false));
    writer.admit(&mut upload, &usage(MIB, 1)).expect("room");
    writer.settle(&mut upload).expect("room");
    drop(writer);
    let reserve = async || of_owner.writer(&id()).await.reserve(&usage(MIB, 1)).map_err(|refused| refused.code);
    assert_eq!([reserve().await, reserve().await], [Ok(()), Err(Code::QuotaExceeded)]);

    delete("a");
    assert_eq!(admits(0).await, Err(Code::QuotaExceeded), "it cannot be measured yet");
    delete("b");
    delete("c");
    assert_eq!(admits(8 * MIB).await, Ok(true), "it is empty again");
    assert_eq!(run("d", 3).await, Some(DiskLimit::Closed));
    assert_eq!(admits(0).await, Ok(false), "what was deleted counts no more");
    delete("d");
    let known = quota.known.lock();
    let is_begun = known.conversations.values().any(|one| one.begun.is_some());
    assert!(known.watched.is_empty() && !is_begun, "nothing is kept of programs that ended");
}
