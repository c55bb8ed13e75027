//! Downloads by signed link: the rule from a link to bytes. A link that is not good touches no disk.

use std::{io, os::unix::fs::FileExt as _, sync::Arc};

use bytes::Bytes;
use tracing::{debug, info};

use super::{Files, media::media_type};
use crate::{
    domain::{
        error::{Code, Failure},
        owner::ConversationKey,
        path::SafePath,
    },
    ports::storage::{OpenFile, StorageError},
    services::links::{Rejected, SignedLink},
};

/// Read from disk in one step, in bytes.
const CHUNK_BYTES: u64 = 128 << 10;

impl Files {
    /// Opens the file that a link leads to.
    ///
    /// # Errors
    /// [`Code::Forbidden`], always with the same sentence and before the disk is touched, for a link that is not good (or
    /// is none: `None`); [`Code::FileNotFound`] when a good link leads to nothing or to no plain file.
    pub async fn open_signed(&self, link: Option<SignedLink>) -> Result<Download, Failure> {
        let good = link.ok_or(Rejected::Malformed).and_then(|link| self.signer.verify(&link, self.clock.unix_s()));
        let (conversation, path) = good.map_err(|rejected| {
            info!(%rejected, "a link was refused");
            Failure::new(Code::Forbidden, "This link is not valid or no longer valid: ask for a new one.")
        })?;
        let name = path.name().to_vec();
        let opened = self.blocking(move |store| {
            let read = store.open(&conversation)?.ok_or(StorageError::NotFound)?.read(&path);
            Ok(read.map_err(|error| match error {
                StorageError::NotAFile | StorageError::Denied { .. } => StorageError::NotFound,
                other => other,
            })?)
        });
        Ok(Download::new(name, opened.await?))
    }

    /// Opens a whole file, however long it is.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::NotAFile`], [`Code::Forbidden`].
    pub async fn open(&self, conversation: &ConversationKey, path: &SafePath) -> Result<Download, Failure> {
        debug!(%conversation, "open a file");
        let (path, name) = (path.clone(), path.name().to_vec());
        let opened = self.existing(conversation, move |there| there.read(&path)).await?;
        Ok(Download::new(name, opened))
    }
}

/// A file that may be sent.
#[derive(Debug)]
pub struct Download {
    /// Its own name, without folders: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// What its name claims it to be.
    pub media_type: &'static str,
    /// How long it was when it was opened, in bytes. Exactly so much may be sent.
    pub size: u64,
    /// When its bytes were last changed, in seconds since the Unix epoch.
    pub modified_unix_s: i64,
    /// A strong validator with its quotes.
    pub etag: String,
    /// Its bytes.
    pub content: Content,
}

impl Download {
    fn new(name: Vec<u8>, opened: OpenFile) -> Self {
        let OpenFile { file, size, modified_unix_s, etag } = opened;
        let media_type = media_type(&name);
        Self { name, media_type, size, modified_unix_s, etag, content: Content { file: Arc::new(file) } }
    }
}

/// The bytes of an opened file.
#[derive(Debug, Clone)]
pub struct Content {
    file: Arc<std::fs::File>,
}

impl Content {
    /// The next bytes from `at`: at least one, at most `left`, which is not 0. Off the async threads, since a disk may be
    /// slow; the file is a plain one, so it does not wait for anybody.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file became shorter than it was, and whatever the disk says.
    pub async fn chunk(&self, at: u64, left: u64) -> io::Result<Bytes> {
        let file = Arc::clone(&self.file);
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; usize::try_from(left.min(CHUNK_BYTES)).unwrap_or(0)];
            let read = file.read_at(&mut bytes, at)?;
            bytes.truncate(read);
            if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.into()) }
        });
        read.await.map_err(io::Error::other)?
    }
}
