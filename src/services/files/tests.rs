//! Limits and refusals. Names, links and downloads are tested in `api::http::files`.

pub(in crate::services) mod fixture;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use self::fixture::NOW;
use super::*;
use crate::{
    adapters::storage::tests::holder::Holder,
    domain::{RunnerUsers, clock::ManualClock, test_scale::until},
    ports::storage::Usage,
    services::links::SignedLink,
};

const ROOM: QuotaOptions =
    QuotaOptions { bytes_max: 1 << 20, entries_max: 100, free_bytes_min: 0, owner_bytes_max: None };

fn files(options: FilesOptions) -> (tempfile::TempDir, Arc<ManualClock>, Arc<Files>) {
    let root = tempfile::tempdir().expect("a folder");
    let (files, clock) = fixture::with_options(&root.path().join("root"), RunnerUsers::one(1000), options);
    (root, clock, files)
}

fn with_quota(quota: QuotaOptions) -> (tempfile::TempDir, Arc<Files>) {
    let (root, _, files) = files(FilesOptions { quota, ..FilesOptions::default() });
    (root, files)
}

fn key(text: &str) -> ConversationKey {
    text.parse().expect("an id")
}

fn path(text: &str) -> SafePath {
    SafePath::from_text(text).expect("a path")
}

#[tokio::test]
async fn files_refuse_missing_files_and_exceeded_limits() {
    let options = FilesOptions { write_bytes_max: 10, entries_max: 1, ..FilesOptions::default() };
    let (root, _, files) = files(options);
    let id = key("c");
    assert_eq!(files.list(&id).await, Ok(FileList::default()));
    let code = |result: Result<(), Failure>| result.map_err(|failure| failure.code);
    assert_eq!(code(files.read(&id, &path("a"), 0, 4).await.map(|_| ())), Err(Code::ConversationNotFound));
    assert_eq!(code(files.delete(&id, &path("a"), None).await), Err(Code::ConversationNotFound));
    let long = files.write(&id, &path("a"), Bytes::from_static(b"01234567890")).await;
    assert_eq!(code(long.map(|_| ())), Err(Code::TooLarge));
    // None of that made a folder.
    assert!(!root.path().join("root/c").exists());

    let entry = files.write(&id, &path("d/a.png"), Bytes::from_static(b"0123456789")).await.expect("written");
    let listed = (entry.path.display(), entry.size, entry.media_type(), entry.change, entry.path_encoded());
    assert_eq!(listed, ("d/a.png".to_owned(), 10, "image/png", Change::Created, None));
    for (offset, bytes, truncated) in
        [(0, "0123", true), (4, "4567", true), (8, "89", false), (10, "", false), (u64::MAX, "", false)]
    {
        let part = files.read(&id, &path("d/a.png"), offset, 4).await.expect("read");
        assert_eq!((&part.bytes[..], part.truncated, part.size), (bytes.as_bytes(), truncated, 10), "{offset}");
    }
    assert_eq!(code(files.read(&id, &path("b"), 0, 4).await.map(|_| ())), Err(Code::FileNotFound));
    assert_eq!(code(files.read(&id, &path("d"), 0, 4).await.map(|_| ())), Err(Code::NotAFile));
    assert_eq!(code(files.write(&id, &path("d"), Bytes::new()).await.map(|_| ())), Err(Code::NotAFile));
    files.write(&id, &path("z"), Bytes::new()).await.expect("written");
    let list = files.list(&id).await.expect("a list");
    assert_eq!((list.files.len(), list.truncated), (1, true));
    assert_eq!(code(files.delete(&id, &path("d"), None).await), Ok(()));
    assert_eq!(code(files.delete(&id, &path("d"), None).await), Err(Code::FileNotFound));
}

#[tokio::test]
async fn a_move_needs_room_for_new_folders_only() {
    let (_root, files) = with_quota(QuotaOptions { entries_max: 3, ..ROOM });
    let id = key("c");
    let rename = async |from: &str, to: &str, replace: bool, condition: Option<Precondition>| {
        let moved = files.rename(&id, &path(from), &path(to), replace, condition).await;
        moved.map(|entry| entry.map(|entry| entry.path.display())).map_err(|failure| failure.code)
    };
    assert_eq!(rename("d/a", "a", false, None).await, Err(Code::ConversationNotFound));
    for name in ["d/a", "b"] {
        files.write(&id, &path(name), Bytes::from_static(b"x")).await.expect("written");
    }
    assert_eq!(rename("b", "d/b", false, None).await, Ok(Some("d/b".to_owned())), "the folder is there");
    assert_eq!(rename("d/b", "e/b", false, None).await, Err(Code::QuotaExceeded));
    assert_eq!(rename("d", "e", false, None).await, Ok(None));
    assert_eq!(rename("e", "e/in", false, None).await, Err(Code::InvalidArgument));
    assert_eq!(rename("e/a", "e/a", false, None).await, Ok(Some("e/a".to_owned())));
    assert_eq!(rename("e/a", "e/b", false, None).await, Err(Code::PreconditionFailed));
    let other: Precondition = Box::new(|etag| etag == Some("another"));
    assert_eq!(rename("e/a", "a", false, Some(other)).await, Err(Code::PreconditionFailed));
    assert_eq!(rename("e/a", "e/b", true, None).await, Ok(Some("e/b".to_owned())));
    let list = files.list(&id).await.expect("a list");
    assert_eq!(list.files.iter().map(|file| file.path.display()).collect::<Vec<_>>(), ["e/b"]);
}

#[tokio::test]
async fn links_expire_as_stated_and_within_a_week() {
    for (url_ttl_s, lives_s) in [(60, 60), (u64::MAX, URL_TTL_S_MAX)] {
        let (_root, clock, files) = files(FilesOptions { url_ttl_s, ..FilesOptions::default() });
        let id = key("c");
        let entry = files.write(&id, &path("f"), Bytes::from_static(b"x")).await.expect("written");
        assert_eq!(entry.url_expires_unix_s, NOW + lives_s);
        let link = || SignedLink {
            conversation: b"c".to_vec(),
            components: vec![b"f".to_vec()],
            expires: entry.url_expires_unix_s.to_string(),
            signature: entry.url.split_once("&sig=").expect("a signature").1.to_owned(),
            bytes_max: None,
        };
        assert_eq!(files.open_signed(Some(link())).await.map(|download| download.size), Ok(1));
        clock.set(NOW + lives_s);
        let refused = files.open_signed(Some(link())).await.map(|_| ());
        assert_eq!(refused, files.open_signed(None).await.map(|_| ()));
        assert_eq!(refused.map_err(|failure| failure.code), Err(Code::Forbidden));
    }
}

#[tokio::test]
async fn a_link_is_refused_for_what_another_kind_is_for() {
    let (_root, _, files) = files(FilesOptions::default());
    let (id, f) = (key("c"), path("f"));
    files.write(&id, &f, Bytes::from_static(b"x")).await.expect("written");
    let upload = files.upload_url(&id, &f).expect("a link").0;
    let all = files.archive_url(&id).await.expect("a link").0;
    let file = (files.url(&id, &f), [true, false, false]);
    for (url, opens) in [file, (all, [false, true, false]), (upload, [false, false, true])] {
        let part = |name: &str| url.split(['?', '&']).find_map(|part| part.strip_prefix(name)).map(str::to_owned);
        let link = || SignedLink {
            conversation: b"c".to_vec(),
            components: if opens[1] { Vec::new() } else { vec![b"f".to_vec()] },
            expires: part("expires=").expect("a time"),
            signature: part("sig=").expect("a signature"),
            bytes_max: part("max="),
        };
        let opened = [
            files.open_signed(Some(link())).await.map(drop),
            files.open_archive(link()).await.map(drop),
            files.open_upload(Some(link())).map(drop),
        ];
        let expected = opens.map(|opens| if opens { Ok(()) } else { Err(Code::Forbidden) });
        assert_eq!(opened.map(|opened| opened.map_err(|failure| failure.code)), expected, "{url}");
    }
}

#[tokio::test]
async fn an_upload_of_announced_length_is_counted_once() {
    let (_root, files) = with_quota(ROOM);
    let id = key("c");
    let body = |bytes: usize| futures_util::stream::iter([Ok(Bytes::from(vec![1; bytes]))]);
    for name in 0..3 {
        let (path, bytes) = (path(&name.to_string()), 300 << 10);
        files.upload(&id, &path, None, Some(bytes as u64), body(bytes)).await.expect("stored");
    }
    let known = files.quota.cached(&id).expect("it is known");
    files.quota.measured(&id, None);
    let there = files.quota.usage(&id).expect("measured");
    assert!(known.bytes.abs_diff(there.bytes) <= 16 << 10, "{known:?} {there:?}");
    let broken = futures_util::stream::iter([Err(Failure::new(Code::InvalidArgument, "it broke off"))]);
    let broken = files.upload(&id, &path("broken"), None, Some(100 << 10), broken).await;
    assert_eq!(broken.map_err(|failure| failure.code).map(drop), Err(Code::InvalidArgument));
    assert_eq!(files.quota.cached(&id), Some(there), "nothing was stored");
}

#[tokio::test]
async fn an_upload_whose_conversation_is_deleted_meanwhile_creates_it_again() {
    let (root, files) = with_quota(ROOM);
    let (id, deleting) = (key("c"), Arc::clone(&files));
    let last = stream::once(async move {
        let id = key("c");
        assert!(deleting.blocking(move |store| Ok(store.remove(&id)?)).await?, "it was there");
        Ok::<_, Failure>(Bytes::from_static(b"end"))
    });
    let body = stream::iter([Ok::<_, Failure>(Bytes::from(vec![1; 300 << 10]))]).chain(last);
    let entry = files.upload(&id, &path("d/f"), None, None, body).await.expect("written");
    assert_eq!(entry.size, (300 << 10) + 3);
    let there = std::fs::metadata(root.path().join("root/c/files/d/f")).expect("a file");
    assert_eq!(there.len(), entry.size);
}

/// An upload that stands still holds what it sent: against its own conversation, and against the owner's others.
#[tokio::test]
async fn uploads_in_progress_count_for_the_quotas_until_they_end() {
    for (bytes_max, owner_bytes_max, other) in [(1 << 20, None, "c"), (8 << 20, Some(1 << 20), "other")] {
        let (_root, files) = with_quota(QuotaOptions { bytes_max, owner_bytes_max, ..ROOM });
        let (id, other) = (key("c"), key(other));
        let (a, b) = (path("a"), path("b"));
        let piece = || stream::iter([Ok::<_, Failure>(Bytes::from(vec![1; 600 << 10]))]);
        let upload = async || {
            let done = files.upload(&other, &b, None, None, piece()).await;
            done.map(|entry| entry.size).map_err(|failure| failure.code)
        };
        let mut halted = Box::pin(files.upload(&id, &a, None, None, piece().chain(stream::pending())));
        tokio::select! {
            done = &mut halted => panic!("it ended: {done:?}"),
            () = until("bytes arrive", || files.quota.arriving_bytes(&id) > 0) => {}
        }
        assert_eq!(upload().await, Err(Code::QuotaExceeded), "{other}");
        let written = files.write(&other, &b, Bytes::from(vec![1; 600 << 10])).await;
        assert_eq!(written.map(drop).map_err(|failure| failure.code), Err(Code::QuotaExceeded), "{other}");
        files.check_capacity(&id, Usage::default()).await.expect("a program may run");
        drop(halted);
        // Its last step may still be at the disk.
        until("the upload is given up", || files.quota.arriving_bytes(&id) == 0).await;
        assert_eq!(upload().await, Ok(600 << 10), "{other}");
        assert_eq!(files.quota.arriving_bytes(&other), 0, "it is usage now");
        assert_eq!(upload().await, Err(Code::QuotaExceeded), "{other}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_leaves_out_what_a_program_holds() {
    let (root, _, files) = files(FilesOptions::default());
    let id = key("c");
    for name in ["a", "held", "z"] {
        files.write(&id, &path(name), Bytes::from_static(b"x")).await.expect("written");
    }
    let packed = async || {
        let pieces: Vec<_> = files.archive(&id).await.expect("an archive").try_collect().await.expect("its bytes");
        let bytes = pieces.concat();
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().expect("entries").map(|entry| entry.expect("an entry"));
        entries.map(|entry| entry.path().expect("a path").display().to_string()).collect::<Vec<_>>()
    };
    let holder = Holder::of(&root.path().join("root/c/files/held"));
    assert_eq!(packed().await, ["a", "z"]);
    drop(holder);
    assert_eq!(packed().await, ["a", "held", "z"]);
}

/// Each of them is measured before any of them is written, unless one waits for the other.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_writes_respect_the_quota() {
    for _ in 0..8 {
        let (_root, files) = with_quota(ROOM);
        let id = key("c");
        let bytes = Bytes::from(vec![1; 300 << 10]);
        let paths: Vec<_> = (0..12).map(|number| path(&number.to_string())).collect();
        let writes = paths.iter().map(|path| files.write(&id, path, bytes.clone()));
        let written = futures_util::future::join_all(writes).await;
        assert_eq!(written.iter().filter(|result| result.is_ok()).count(), 3, "{written:?}");
        assert_eq!(files.list(&id).await.expect("a list").files.len(), 3);
    }
}

#[tokio::test]
async fn a_writer_blocks_its_own_conversation_only() {
    let (_root, _, files) = files(FilesOptions::default());
    let (one, two) = (key("one"), key("two"));
    let writer = files.quota().writer(&one).await;
    let waiting = Arc::clone(&files);
    let waits = tokio::spawn(async move { waiting.write(&one, &path("f"), Bytes::new()).await });
    files.write(&two, &path("f"), Bytes::new()).await.expect("written");
    assert!(!waits.is_finished(), "the same conversation waits");
    drop(writer);
    waits.await.expect("it ended").expect("written");
}

/// Otherwise what it frees stays counted, and other clients write before it has ended.
#[tokio::test]
async fn a_deletion_whose_client_has_gone_is_counted_and_ends_in_its_turn() {
    let (_root, files) = with_quota(QuotaOptions { owner_bytes_max: Some(1 << 20), ..ROOM });
    for name in ["f", "g"] {
        files.write(&key("c"), &path(name), Bytes::from_static(b"text")).await.expect("written");
    }
    assert!(files.quota().cached(&key("c")).is_some());
    drop(files.delete(&key("c"), &path("f"), None).now_or_never());
    drop(files.quota().writer(&key("c")).await);
    let gone = files.open(&key("c"), &path("f")).await.map(drop).map_err(|failure| failure.code);
    assert_eq!((gone, files.quota().cached(&key("c"))), (Err(Code::FileNotFound), None));
    files.quota().usage(&key("c")).expect("measured");
    drop(files.remove(&key("c")).now_or_never());
    // No step is under way.
    let all = u32::try_from(STEPS_MAX).expect("few");
    drop(files.steps.acquire_many(all).await.expect("open"));
    assert_eq!(files.quota().cached(&key("c")), None);
}

#[tokio::test]
async fn writes_of_one_owner_that_wait_leave_memory_to_others() {
    let (_root, _, files) = files(FilesOptions::default());
    let bytes = Bytes::from(vec![1; 8 << 20]);
    let write = async |id: &str| {
        let written = files.write(&key(id), &path("f"), bytes.clone()).await;
        written.map(drop).map_err(|failure| failure.code)
    };
    let writer = files.quota().writer(&key("@ann/one")).await;
    let mut waiting: Vec<_> = (0..16).map(|_| Box::pin(write("@ann/one"))).collect();
    for one in &mut waiting {
        assert_eq!(one.now_or_never(), None);
    }
    assert_eq!(write("@ann/two").await, Err(Code::QueueFull), "16 of 8 MiB are half of it");
    let append = files.edit(&key("@ann/two"), &path("f"), TextChange::Append("x".to_owned())).await;
    assert_eq!(append.map(drop).map_err(|failure| failure.code), Err(Code::QueueFull));
    assert_eq!(write("@bob/one").await, Ok(()));
    drop((waiting, writer));
    assert_eq!(write("@ann/two").await, Ok(()));
}

/// Steps that stand still in these conversations, in turn, take `most` of all, and another conversation has one.
async fn assert_steps_are_left(slow: &[&str], most: usize) {
    let (_root, _, files) = files(FilesOptions::default());
    let is_open = Arc::new(AtomicBool::new(false));
    let blocked: Vec<_> = slow
        .iter()
        .cycle()
        .take(STEPS_MAX)
        .map(|slow| {
            let (files, slow, is_open) = (Arc::clone(&files), key(slow), Arc::clone(&is_open));
            tokio::spawn(async move {
                let step = move |_: &Step<'_>| {
                    while !is_open.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(())
                };
                files.step(&slow, step).await
            })
        })
        .collect();
    until("the steps have begun", || files.steps.available_permits() <= STEPS_MAX - most).await;
    let listed = tokio::time::timeout(Duration::from_mins(1), files.list(&key("other"))).await;
    assert_eq!(files.steps.available_permits(), STEPS_MAX - most, "the others still wait");
    is_open.store(true, Ordering::SeqCst);
    listed.expect("it does not wait for the other").expect("a list");
    for step in blocked {
        step.await.expect("a step").expect("it ends");
    }
    assert_eq!(files.steps.available_permits(), STEPS_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_steps_of_one_conversation_leave_steps_to_others() {
    assert_steps_are_left(&["slow"], CONVERSATION_STEPS_MAX).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_steps_of_one_owner_leave_steps_to_others() {
    assert_steps_are_left(&["@ann/a", "@ann/b", "@ann/c", "@ann/d"], OWNER_STEPS_MAX).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn few_long_reads_of_one_owner_are_in_memory_at_once() {
    let (_root, _, files) = files(FilesOptions::default());
    let read = async |id: &str, bytes_max| files.read(&key(id), &path("f"), 0, bytes_max).await.expect("read");
    for id in ["c", "@ann/c"] {
        files.write(&key(id), &path("f"), Bytes::from_static(b"text")).await.expect("written");
    }
    let mut held = Vec::new();
    for _ in 0..OWNER_STEPS_MAX {
        held.push(read("c", LONG_READ_BYTES + 1).await);
    }
    let waits = tokio::spawn({
        let files = Arc::clone(&files);
        async move { files.read(&key("c"), &path("f"), 0, LONG_READ_BYTES + 1).await }
    });
    for _ in 0..10 {
        read("@ann/c", LONG_READ_BYTES + 1).await;
        read("c", LONG_READ_BYTES).await;
    }
    assert!(!waits.is_finished(), "its bytes would be too many");
    let first = held.remove(0).bytes.slice(1..);
    tokio::task::yield_now().await;
    assert!(!waits.is_finished(), "a part is still held");
    drop(first);
    assert_eq!(&waits.await.expect("it ended").expect("read").bytes[..], b"text");
}

#[test]
fn changes_of_other_owners_make_no_reader_miss_any() {
    let (_root, _, files) = files(FilesOptions::default());
    let [ann, bob] = ["@ann/c", "@bob/c"].map(key);
    let mut changes = files.changes(&ann.owner);
    files.changes.announce(&ann, None);
    (0..=announce::BEHIND_MAX).for_each(|_| files.changes.announce(&bob, None));
    assert_eq!(changes.try_recv(), Ok(Changed::of(&ann, None)));
    assert!(changes.try_recv().is_err(), "another owner's change came");
}

#[test]
fn only_what_is_watched_is_noted() {
    let uses = Uses::default();
    let [watched, other] = ["a", "b"].map(key);
    uses.watch(&watched);
    for conversation in [&watched, &other] {
        uses.note(conversation, 5);
    }
    assert_eq!((uses.last(&watched), uses.last(&other)), (Some(5), None));
    uses.watch(&watched);
    assert_eq!(uses.last(&watched), Some(5), "watched again, it keeps its last use");
    uses.forget(&watched);
    assert_eq!(uses.last(&watched), None);
}
