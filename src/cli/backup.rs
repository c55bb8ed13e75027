//! The subcommands for backups.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::Args;
use uuid::Uuid;

use crate::{
    app,
    config::Config,
    domain::clock::SystemClock,
    ports::storage::Storage,
    services::backup::{Backup, Sums},
};

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The archive; `-` is standard output. A file of this name is replaced when the archive is complete.
    file: PathBuf,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The archive.
    file: PathBuf,
    /// First delete every conversation of every owner, and every row of the database: tokens, history, usage.
    #[arg(long)]
    force: bool,
}

/// # Errors
/// When something cannot be read or written. No file is left then.
pub async fn backup(config: &Config, args: BackupArgs) -> anyhow::Result<ExitCode> {
    let (backup, store) = app::backup_beside(config).await?;
    let written = if args.file == Path::new("-") {
        backup.write(io::stdout(), &SystemClock).await.map_err(Into::into)
    } else {
        to_file(&backup, &args.file).await
    };
    close(store).await?;
    let sums = written?;
    // A closed standard error does not undo the backup.
    drop(writeln!(io::stderr(), "Backed up {}.{}", counts(&sums), remarks(&sums)));
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// When the archive is refused, something is there already, or it cannot be written.
pub async fn restore(config: &Config, args: RestoreArgs) -> anyhow::Result<ExitCode> {
    let file = File::open(&args.file).with_context(|| args.file.display().to_string())?;
    let (backup, store) = app::backup_alone(config)?;
    let restored = backup.restore(file, args.force, &SystemClock).await;
    close(store).await?;
    let restored = restored?;
    if restored.removed > 0 {
        super::print(&format!("Deleted {} conversations first.\n", restored.removed))?;
    }
    let (of, created) = (restored.owners, &restored.manifest.created);
    super::print(&format!("Restored {} of {of} owners, of {created}.\n", counts(&restored.sums)))?;
    if restored.lost > 0 {
        super::print(&format!("{} runs were in progress: they end as server_lost.\n", restored.lost))?;
    }
    super::print("Earlier links work if FILE_SECRET is unchanged.\n")
}

/// Writes beside the file and renames: a file of this name is whole.
async fn to_file(backup: &Backup, file: &Path) -> anyhow::Result<Sums> {
    let mut name = file.file_name().context("name a file")?.to_owned();
    // In a container the process number is often that of an earlier backup, of which a part may be left.
    name.push(format!(".{}.part", Uuid::now_v7().simple()));
    let part = file.with_file_name(name);
    let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    let handle = open().with_context(|| part.display().to_string())?;
    let written = async {
        let sums = backup.write(io::BufWriter::new(handle.try_clone()?), &SystemClock).await?;
        handle.sync_all()?;
        fs::rename(&part, file).with_context(|| file.display().to_string())?;
        anyhow::Ok(sums)
    };
    let written = written.await;
    if written.is_err() {
        // What is left of it is no archive.
        drop(fs::remove_file(&part));
    }
    written
}

async fn close(store: Arc<dyn Storage>) -> anyhow::Result<()> {
    let close = move || {
        store.drain();
        store.close();
    };
    Ok(tokio::task::spawn_blocking(close).await?)
}

fn counts(sums: &Sums) -> String {
    let rows: u64 = sums.rows.values().sum();
    format!("{} conversations with {} files ({} bytes), and {rows} rows", sums.conversations, sums.files, sums.bytes)
}

fn remarks(sums: &Sums) -> String {
    let changed = (sums.changed > 0).then(|| format!(" {} files changed while they were read.", sums.changed));
    let kinds: Vec<_> = sums.left_out.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    let left_out = (!kinds.is_empty()).then(|| format!(" Left out: {}.", kinds.join(", ")));
    [changed, left_out].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        adapters::{database::Database, storage::DiskStorage},
        domain::RunnerUsers,
    };

    #[tokio::test]
    async fn a_part_that_a_killed_backup_left_does_not_stop_the_next() {
        let (folder, database) = Database::in_new_folder().await;
        let users = RunnerUsers::one(rustix::process::geteuid().as_raw());
        let store: Arc<dyn Storage> = Arc::new(DiskStorage::at(&folder.path().join("root"), users).expect("a root"));
        let backup = Backup::new(Arc::clone(&store), Arc::new(database.clone()));
        let file = folder.path().join("sandbox.tar");
        fs::write(folder.path().join(format!("sandbox.tar.{}.part", std::process::id())), "left").expect("written");
        to_file(&backup, &file).await.expect("a backup");
        assert!(file.exists());
        close(store).await.expect("closed");
        database.close().await;
    }
}
