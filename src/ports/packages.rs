//! The store of installed packages: trees that were made once for an owner and are put into its conversations.
//!
//! Every method blocks on a disk. What an installation leaves is untrusted; a tree that was kept can be changed by no
//! program, whichever conversation it is in.

#![expect(clippy::missing_errors_doc, reason = "the variants of StorageError are documented")]

use std::{fmt, sync::Arc};

use super::storage::{DataFolder, FsResult, Usage};
use crate::domain::{ConversationKey, Principal, packages::Tool};

/// The file of a tree that says what was asked for and what was installed.
pub const NOTE: &str = ".sandbox.json";
/// The longest of them, in bytes.
pub const NOTE_BYTES_MAX: usize = 256 << 10;

/// The trees of all owners.
pub trait PackageStore: fmt::Debug + Send + Sync {
    /// A new, empty folder for one installation.
    fn stage(self: Arc<Self>, owner: &Principal) -> FsResult<Box<dyn Staging>>;

    /// A tree that was kept at or after a time; it counts as used now.
    fn find(&self, owner: &Principal, key: &str, since_unix_s: i64) -> FsResult<Option<Tree>>;

    /// What a conversation has by a tool: the note in its tree, which a program may have replaced, and the space that
    /// it takes.
    fn placed(&self, conversation: &ConversationKey, tool: Tool) -> FsResult<Tree>;

    /// Puts a tree into a conversation, which is made where it is missing, in place of the one that is there. Programs
    /// see the old one or the new, never a part.
    fn put(&self, key: &str, conversation: &ConversationKey, tool: Tool) -> FsResult<()>;

    /// Deletes trees of every owner that were not used for some time, and of each owner those that were used least
    /// recently as long as all of them take more. What is left.
    fn trim(&self, unused_since_unix_s: i64, owner_bytes_max: u64) -> FsResult<StoreSize>;
}

/// A folder for one installation. Deleted when it is dropped.
pub trait Staging: fmt::Debug + Send + Sync {
    /// The folder that becomes `/data`.
    fn data(&self) -> DataFolder;

    /// The space that it takes, counted until it exceeds a ceiling.
    fn usage(&self, ceiling: &Usage) -> FsResult<Usage>;

    /// Keeps what was installed by a tool as the tree of this key, with its note. Links that lead out of the tree are
    /// kept as they are, since they are followed only inside a sandbox.
    fn keep(&self, tool: Tool, key: &str, ceiling: &Usage) -> FsResult<Tree>;
}

/// A tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Its note; empty where there is none.
    pub note: Vec<u8>,
    pub usage: Usage,
}

/// What is in the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreSize {
    pub trees: u64,
    pub bytes: u64,
}
