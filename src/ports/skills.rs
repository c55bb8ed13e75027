//! The store of skills: folders that sandboxes see read-only, public ones and those of each owner.
//!
//! Every method blocks on a disk. Programs change nothing in it, but an operator may have put anything there: links are
//! not followed, and only plain files are read.

#![expect(clippy::missing_errors_doc, reason = "the variants of StorageError are documented")]

use std::{fmt, path::PathBuf};

use super::storage::FsResult;
use crate::domain::{
    SafePath,
    skills::{SkillName, SkillSource},
};

pub trait SkillStore: fmt::Debug + Send + Sync {
    /// The folder for the engine's mount, made where it is missing; `None` where it can be neither opened nor made.
    fn folder(&self, source: &SkillSource) -> Option<PathBuf>;

    /// The folders with names of skills, ordered, at most [`SKILLS_MAX`](crate::domain::skills::SKILLS_MAX).
    fn names(&self, source: &SkillSource) -> FsResult<Vec<SkillName>>;

    /// The first bytes of a plain file, and its length.
    fn read(&self, source: &SkillSource, name: &SkillName, path: &SafePath, bytes_max: u64)
    -> FsResult<(Vec<u8>, u64)>;

    /// The plain files of a skill with their lengths, ordered, within the bounds of a skill, and whether these are all.
    fn files(&self, source: &SkillSource, name: &SkillName) -> FsResult<(Vec<(SafePath, u64)>, bool)>;

    /// Puts a skill in place of the one of that name: `true` where there was one. Readers see all of the old one or all
    /// of the new.
    fn replace(&self, source: &SkillSource, name: &SkillName, files: &[NewFile]) -> FsResult<bool>;

    /// `false` when there was none. Its name is free at once.
    fn remove(&self, source: &SkillSource, name: &SkillName) -> FsResult<bool>;
}

/// A file of a skill that is put in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    pub path: SafePath,
    pub bytes: Vec<u8>,
    pub is_executable: bool,
}
