//! Downloads by signed link. An invalid link touches no disk.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tracing::{debug, info};

use super::{Archive, Files};
use crate::{
    domain::{Code, ConversationKey, Failure, SafePath},
    ports::storage::{OpenFile, StorageError},
    services::links::{LinkTarget, Rejected, SignedLink},
};

/// Read from disk in one step, in bytes.
const CHUNK_BYTES: u64 = 128 << 10;

impl Files {
    /// Opens the file that a link leads to.
    ///
    /// # Errors
    /// [`Code::Forbidden`], always with the same message and before the disk is touched, for an invalid link (`None`
    /// when it is malformed); [`Code::FileNotFound`] when a valid link names nothing or no plain file.
    pub async fn open_signed(&self, link: Option<SignedLink>) -> Result<Download, Failure> {
        let LinkTarget::File(conversation, path) = self.target(link)? else { return Err(refused(Rejected::Purpose)) };
        let name = path.name().to_vec();
        let opened = self.step(&conversation, move |at| {
            let read = at.open()?.ok_or(StorageError::NotFound)?.read(&path);
            Ok(read.map_err(|error| match error {
                StorageError::NotAFile | StorageError::Denied { .. } => StorageError::NotFound,
                other => other,
            })?)
        });
        Ok(Download::new(name, opened.await?))
    }

    /// A link to the conversation's archive, and until when it works.
    ///
    /// # Errors
    /// As [`Files::archive`]: what cannot be packed is refused here, where the client reads why.
    pub async fn archive_url(self: &Arc<Self>, conversation: &ConversationKey) -> Result<(String, i64), Failure> {
        drop(self.archive(conversation).await?);
        let expires_unix_s = self.url_expires_unix_s().min(self.clock.unix_s().saturating_add(ARCHIVE_TTL_S_MAX));
        Ok((self.signer.mint_archive(conversation, expires_unix_s), expires_unix_s))
    }

    /// The archive that a link leads to, and whose it is.
    ///
    /// # Errors
    /// [`Code::Forbidden`], as for [`Self::open_signed`], and those of [`Files::archive`].
    pub async fn open_archive(self: &Arc<Self>, link: SignedLink) -> Result<(ConversationKey, Archive), Failure> {
        let LinkTarget::Archive(conversation) = self.target(Some(link))? else {
            return Err(refused(Rejected::Purpose));
        };
        let archive = self.archive(&conversation).await?;
        Ok((conversation, archive))
    }

    /// Where a link for an upload leads to, and how many bytes it takes.
    ///
    /// # Errors
    /// [`Code::Forbidden`], as for [`Self::open_signed`].
    pub fn open_upload(&self, link: Option<SignedLink>) -> Result<(ConversationKey, SafePath, u64), Failure> {
        match self.target(link)? {
            LinkTarget::Upload(conversation, path, bytes_max) => Ok((conversation, path, bytes_max)),
            _ => Err(refused(Rejected::Purpose)),
        }
    }

    fn target(&self, link: Option<SignedLink>) -> Result<LinkTarget, Failure> {
        let link = link.ok_or(Rejected::Malformed);
        link.and_then(|link| self.signer.verify(&link, self.clock.unix_s())).map_err(refused)
    }

    /// The file that a link names, valid or not: for a caller who may read it without.
    pub fn named_by(&self, url: &str) -> Option<(ConversationKey, SafePath)> {
        self.signer.named_by(url)
    }

    /// A link to a file, which need not be there.
    pub fn url(&self, conversation: &ConversationKey, path: &SafePath) -> String {
        self.signer.mint(conversation, path, self.url_expires_unix_s())
    }

    /// A link that takes a file by PUT, until when it does, and how many bytes; `None` where links are paths.
    pub fn upload_url(&self, conversation: &ConversationKey, path: &SafePath) -> Option<(String, i64, u64)> {
        let expires_unix_s = self.url_expires_unix_s().min(self.clock.unix_s().saturating_add(UPLOAD_TTL_S_MAX));
        let bytes_max = self.quota.ceiling().bytes;
        let url = self.signer.mint_upload(conversation, path, expires_unix_s, bytes_max)?;
        Some((url, expires_unix_s, bytes_max))
    }

    /// Opens a whole file, however long it is.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::NotAFile`], [`Code::Forbidden`].
    pub async fn open(&self, conversation: &ConversationKey, path: &SafePath) -> Result<Download, Failure> {
        debug!(%conversation, "open a file");
        let (path, name) = (path.clone(), path.name().to_vec());
        let opened = self.step(conversation, move |at| Ok(at.existing()?.read(&path)?)).await?;
        Ok(Download::new(name, opened))
    }
}

fn refused(rejected: Rejected) -> Failure {
    info!(%rejected, "a link was refused");
    Failure::new(Code::Forbidden, "This link is invalid or has expired: request a new one.")
}

/// How long a link takes an upload at most, in seconds.
const UPLOAD_TTL_S_MAX: i64 = 60 * 60;
/// How long one begins the download of an archive. It ends when it ends.
const ARCHIVE_TTL_S_MAX: i64 = 5 * 60;

/// A file to send.
#[derive(Debug)]
pub struct Download {
    /// Its own name, without folders: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// The length when it was opened. Exactly this many bytes are sent.
    pub size: u64,
    pub modified_unix_s: i64,
    /// A strong validator with its quotes.
    pub etag: String,
    file: Arc<File>,
}

impl Download {
    fn new(name: Vec<u8>, opened: OpenFile) -> Self {
        let OpenFile { file, size, modified_unix_s, etag } = opened;
        Self { name, size, modified_unix_s, etag, file: Arc::new(file) }
    }

    /// Exactly `length` bytes from `at` on. An item is an error when the file became shorter, or the disk fails.
    pub fn pieces(&self, at: u64, length: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        stream::try_unfold((Arc::clone(&self.file), at, length), |(file, at, left)| async move {
            if left == 0 {
                return Ok::<_, io::Error>(None);
            }
            let piece = chunk(Arc::clone(&file), at, left).await?;
            let read = piece.len() as u64;
            Ok(Some((piece, (file, at + read, left - read))))
        })
    }
}

/// The next bytes from `at`: at least one, at most `left`, which is not 0. Runs on a blocking thread.
async fn chunk(file: Arc<File>, at: u64, left: u64) -> io::Result<Bytes> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; usize::try_from(left.min(CHUNK_BYTES)).unwrap_or(0)];
        let read = file.read_at(&mut bytes, at)?;
        bytes.truncate(read);
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes.into()) }
    });
    read.await.map_err(io::Error::other)?
}
