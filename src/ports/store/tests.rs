//! The store against what programs plant.

use std::{fs, io::Read as _};

use super::*;

const OWNER: Owner = Owner { uid: 1000, gid: 1000 };
const ALL: ListBounds = ListBounds { entries_max: 1000, depth_max: 16 };

struct Place {
    /// Gone when dropped.
    root: tempfile::TempDir,
    store: Store,
    conversation: Conversation,
}

fn place() -> Place {
    let root = tempfile::tempdir().expect("a folder");
    let store = Store::open(&root.path().join("root"), OWNER).expect("a store");
    let conversation = store.create_conversation(&id("c")).expect("a conversation");
    Place { root, store, conversation }
}

fn id(text: &str) -> ConversationId {
    text.parse().expect("an id")
}

fn path(text: &str) -> SafePath {
    SafePath::from_text(text).expect("a path")
}

fn bytes(opened: Result<OpenFile, StoreError>) -> Vec<u8> {
    let mut bytes = Vec::new();
    opened.expect("a file").file.read_to_end(&mut bytes).expect("its bytes");
    bytes
}

fn names(listing: &Listing) -> Vec<String> {
    listing.entries.iter().map(|entry| entry.path.display()).collect()
}

#[test]
fn a_file_goes_in_and_comes_out() {
    let Place { conversation, store, root } = place();
    let written = conversation.write(&path("a/b/c.txt"), b"one").expect("written");
    assert_eq!((written.size, written.change), (3, Change::Created));
    assert_eq!(conversation.write(&path("a/b/c.txt"), b"three").expect("written").change, Change::Changed);
    assert_eq!(bytes(conversation.read(&path("a/b/c.txt"))), b"three");
    let listing = conversation.list(ALL, None).expect("a listing");
    assert_eq!((names(&listing), listing.truncated), (vec!["a/b/c.txt".to_owned()], false));
    assert!(matches!(conversation.read(&path("a/b")), Err(StoreError::NotAFile)));
    assert!(matches!(conversation.read(&path("a/x")), Err(StoreError::NotFound)));
    assert!(matches!(conversation.read(&path("a/b/c.txt/d")), Err(StoreError::NotFound)));
    assert!(matches!(conversation.write(&path("a/b"), b""), Err(StoreError::FolderInTheWay)));
    assert!(matches!(conversation.write(&path("a/b/c.txt/d"), b""), Err(StoreError::FolderBlocked)));
    conversation.delete(&path("a/b/c.txt")).expect("deleted");
    assert!(matches!(conversation.delete(&path("a/b/c.txt")), Err(StoreError::NotFound)));
    conversation.delete(&path("a")).expect("deleted");
    assert_eq!(conversation.list(ALL, None).expect("a listing"), Listing::default());
    assert!(store.remove_conversation(&id("c")).expect("removed"));
    assert!(!store.remove_conversation(&id("c")).expect("removed"));
    assert!(store.open_conversation(&id("c")).expect("opened").is_none());
    for folder in ["root/.trash", "root/.incoming"] {
        assert_eq!(fs::read_dir(root.path().join(folder)).expect("a folder").count(), 0, "{folder}");
    }
}
