//! Restoring an archive: check everything, then files, then the database in one transaction.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fs::File, io, sync::Arc};

use tokio::sync::mpsc;

use super::{
    Backup, BackupError, Manifest, PIECE_BYTES, ROWS_WAITING_MAX, Sums, archive, blocking,
    check::{check, rows},
    read::{FilePart, Part, read},
};
use crate::{
    domain::{Clock, ConversationKey},
    ports::{
        database::Loading,
        storage::{ConversationFolder, FsResult, Storage, StorageError},
    },
};

/// The mode of new folders.
const FOLDER_MODE: u32 = 0o755;

/// What a restore did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    pub manifest: Manifest,
    pub sums: Sums,
    pub owners: usize,
    /// Conversations that were deleted first.
    pub removed: usize,
    /// Runs that were under way when the backup was made.
    pub lost: u64,
}

impl Backup {
    /// Restores an archive into an empty root and database. With `replace`, deletes every conversation and every row
    /// first. Files come before rows, so that no token opens conversations that are not there yet.
    ///
    /// # Errors
    /// [`BackupError::Refused`] and [`BackupError::InTheWay`] before anything was changed.
    pub async fn restore(&self, file: File, replace: bool, clock: &dyn Clock) -> Result<Restored, BackupError> {
        let (file, tables, newest) = (Arc::new(file), self.database.tables(), self.database.version());
        let (store, archive) = (Arc::clone(&self.store), Arc::clone(&file));
        let (manifest, sums) = blocking("read", move || {
            let (manifest, sums, longest) = check(&archive, tables, newest)?;
            if !store.can_hold_file(longest)? {
                return Err(BackupError::Refused(format!("the disk cannot have its file of {longest} bytes")));
            }
            Ok((manifest, sums))
        })
        .await?;
        let state = self.database.state().await?;
        if state.version > manifest.tables {
            let why = "the database has tables of a newer version than the backup: name a new database".to_owned();
            return Err(BackupError::InTheWay(why));
        }
        let store = Arc::clone(&self.store);
        let present = blocking("read", move || Ok(store.last_uses()?)).await?;
        let is_empty = present.is_empty() && state.is_empty;
        if !is_empty && !replace {
            let what = if state.is_empty { "the root has conversations" } else { "the database has rows" };
            let why = format!("{what}: --force deletes every conversation and every row of this server first");
            return Err(BackupError::InTheWay(why));
        }
        let (store, archive) = (Arc::clone(&self.store), Arc::clone(&file));
        let (removed, owners) = blocking("read", move || {
            for used in &present {
                store.remove(&used.key)?;
            }
            Ok((present.len(), files(store.as_ref(), &archive)?))
        })
        .await?;
        self.load(file, manifest.tables, replace).await?;
        let lost = self.close_lost(clock).await?;
        Ok(Restored { manifest, sums, owners, removed, lost })
    }

    async fn load(&self, file: Arc<File>, version: i64, replace: bool) -> Result<(), BackupError> {
        let (sender, receiver) = mpsc::channel(ROWS_WAITING_MAX);
        let reading = blocking("read", move || {
            read_again(&file, &mut |part| {
                let Part::Rows { table, text } = part else { return Ok(()) };
                for row in rows(&table, &text)? {
                    // When they are not taken, the other side has an error.
                    drop(sender.blocking_send(Loading::Row { table: table.clone(), row }));
                }
                Ok(())
            })?;
            drop(sender.blocking_send(Loading::End));
            Ok(())
        });
        let (loaded, read) = tokio::join!(self.database.load(version, replace, receiver), reading);
        // First: when the rows end early, the database has an error too.
        read?;
        loaded.map_err(BackupError::Load)
    }

    /// The servers of the backup do not run these any more.
    async fn close_lost(&self, clock: &dyn Clock) -> Result<u64, BackupError> {
        let sentence = "It was under way when the backup was made; how it ended is not known.";
        let now = clock.unix_s().saturating_mul(1000);
        let mut lost = 0;
        for (instance, _) in self.database.open().await? {
            lost += self.database.close_lost(instance, i64::MAX, now, sentence).await?;
        }
        Ok(lost)
    }
}

/// Passes on the entries of an archive that was checked. Whatever is wrong with it now, something may be changed.
fn read_again(file: &File, each: &mut dyn FnMut(Part<'_>) -> Result<(), BackupError>) -> Result<(), BackupError> {
    read(file, each).map_err(|error| match error {
        BackupError::Refused(why) => BackupError::ReadAgain(io::Error::other(why)),
        BackupError::Archive { source, .. } => BackupError::ReadAgain(source),
        other => other,
    })
}

/// Writes all files; how many owners they are of.
fn files(store: &dyn Storage, archive: &File) -> Result<usize, BackupError> {
    let (mut owners, mut modes, mut used) = (BTreeSet::new(), Vec::new(), Vec::new());
    read_again(archive, &mut |part| {
        match part {
            Part::Conversation { key, used_unix_s } => {
                store.create(&key).map_err(failed(&key))?;
                owners.insert(key.owner.clone());
                used.push((key, used_unix_s));
            }
            Part::Folder { key, path, mode } => {
                in_folder(store, &key, |folder| folder.make_folders(&path))?;
                if mode != FOLDER_MODE {
                    modes.push((key, path, mode));
                }
            }
            Part::File(mut file) => write(store, &mut file)?,
            Part::Link { key, path, first } => in_folder(store, &key, |folder| folder.link(&first, &path))?,
            Part::Manifest(_) | Part::Rows { .. } | Part::Sums { .. } => {}
        }
        Ok(())
    })?;
    // Last: a folder may be closed to the one who writes into it.
    for (key, path, mode) in modes.iter().rev() {
        in_folder(store, key, |folder| folder.set_folder_mode(path, *mode))?;
    }
    for (key, unix_s) in used {
        in_folder(store, &key, |folder| folder.set_last_use(unix_s))?;
    }
    Ok(owners.len())
}

fn write(store: &dyn Storage, file: &mut FilePart<'_>) -> Result<(), BackupError> {
    let failed = failed(&file.key);
    let mut incoming = in_folder(store, &file.key, |folder| folder.incoming())?;
    let mut piece = vec![0; PIECE_BYTES];
    for part in &file.data {
        incoming.extend(part.start).map_err(&failed)?;
        let mut left = part.end - part.start;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
            file.content.read_exact(&mut piece[..most]).map_err(archive("read"))?;
            incoming.append(&piece[..most]).map_err(&failed)?;
            left -= most as u64;
        }
    }
    incoming.extend(file.length).map_err(&failed)?;
    incoming.set_attributes(file.mode, file.modified_unix_s).map_err(&failed)?;
    incoming.persist(&file.path).map(drop).map_err(&failed)
}

fn in_folder<T>(
    store: &dyn Storage,
    key: &ConversationKey,
    step: impl FnOnce(Box<dyn ConversationFolder>) -> FsResult<T>,
) -> Result<T, BackupError> {
    let folder = store.open(key).and_then(|folder| folder.ok_or(StorageError::NotFound));
    folder.and_then(step).map_err(failed(key))
}

fn failed(key: &ConversationKey) -> impl Fn(StorageError) -> BackupError {
    let key = key.to_string();
    move |source| BackupError::Write { key: key.clone(), source }
}
