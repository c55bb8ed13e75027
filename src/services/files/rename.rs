//! Giving a file or a folder another path.

use tracing::debug;

use super::{
    Files, Precondition, no_files,
    write::{check, space},
};
use crate::{
    domain::{error::Failure, file::FileEntry, owner::ConversationKey, path::SafePath},
    ports::storage::{Storage, StorageError},
};

impl Files {
    /// Gives a file, a link (not its target) or a folder with its contents another path in one step, if the condition
    /// holds for what is moved. Missing folders are created; a file that has the path already stays unless it is to be
    /// replaced, and a folder always stays. Returns a plain file's entry.
    ///
    /// # Errors
    /// As [`Files::delete`]; `PreconditionFailed` also when a file has the path, `NotAFile` when a folder has it or a
    /// file is where a folder should be, `InvalidArgument` for a folder into itself, `FileBusy`, and those of a write
    /// where folders have to be created.
    pub async fn rename(
        &self,
        conversation: &ConversationKey,
        from: &SafePath,
        to: &SafePath,
        replace: bool,
        condition: Option<Precondition>,
    ) -> Result<Option<FileEntry>, Failure> {
        debug!(%conversation, replace, "move a file");
        if to != from && to.is_within(from) {
            return Err(Failure::argument("to", "it is inside what is moved: give a path outside it"));
        }
        // Between the condition and the move, no client writes.
        let writer = self.quota.writer(conversation).await;
        // A path that stays as it is replaces only itself.
        let replace = replace || from == to;
        let (id, from, to) = (conversation.clone(), from.clone(), to.clone());
        let announcer = self.announcer(conversation);
        let step = move |store: &dyn Storage| {
            check(store, &id, &from, condition.as_ref())?;
            let there = store.open(&id)?.ok_or_else(no_files)?;
            if !there.has_parent_of(&to) {
                writer.reserve(&space(&to, None))?;
            }
            there.mark()?;
            let moved = there.rename(&from, &to, replace).map_err(|error| match error {
                StorageError::NameTooLong => {
                    Failure::argument("to", "a name in it is longer than the disk allows: use a shorter one")
                }
                other => other.into(),
            })?;
            announcer.changed(Some(&from));
            announcer.changed(Some(&to));
            Ok(moved)
        };
        let moved = self.step(conversation, step).await?;
        Ok(moved.map(|entry| self.entry(conversation, entry, self.url_expires_unix_s())))
    }
}
