//! Downloads by signed link: the rule from a link to bytes. A link that is not good touches no disk.

use std::{io, os::unix::fs::FileExt as _, sync::Arc};

use bytes::Bytes;
use tracing::{debug, info};

use super::{Files, media::media_type};
use crate::{
    adapters::storage::{OpenFile, StoreError},
    domain::{
        error::{Code, Failure},
        owner::ConversationKey,
        path::SafePath,
    },
    services::links::Rejected,
};

/// Read from disk in one step, in bytes.
const CHUNK_BYTES: u64 = 128 << 10;

/// A link as it was sent: every name decoded exactly once, nothing else about it is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedLink {
    /// Whose file it claims to be.
    pub conversation: Vec<u8>,
    /// The names of its path.
    pub components: Vec<Vec<u8>>,
    /// Until when.
    pub expires: String,
    /// The signature.
    pub signature: String,
}

impl Files {
    /// Opens the file that a link leads to.
    ///
    /// # Errors
    /// [`Code::Forbidden`], always with the same sentence and before the disk is touched, for a link that is not good (or
    /// is none: `None`); [`Code::FileNotFound`] when a good link leads to nothing or to no plain file.
    pub async fn open_signed(&self, link: Option<SignedLink>) -> Result<Download, Failure> {
        let (conversation, path) = self.verify(link).map_err(|rejected| {
            info!(%rejected, "a link was refused");
            Failure::new(Code::Forbidden, "This link is not valid or no longer valid: ask for a new one.")
        })?;
        let name = path.name().to_vec();
        let opened = self.blocking(move |store| {
            store.open_conversation(&conversation)?.map_or(Err(StoreError::NotFound), |c| c.read(&path))
        });
        let missing = |failure: Failure| match failure.code {
            Code::NotAFile | Code::Forbidden => StoreError::NotFound.failure(),
            _ => failure,
        };
        Ok(Download::new(name, opened.await.map_err(missing)?))
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

    fn verify(&self, link: Option<SignedLink>) -> Result<(ConversationKey, SafePath), Rejected> {
        let link = link.ok_or(Rejected::Malformed)?;
        let now = self.clock.unix_s();
        self.signer.verify(&link.conversation, &link.components, &link.expires, &link.signature, now)?;
        // What was signed was well formed, so these cannot fail; were they to, the link is refused.
        let conversation = std::str::from_utf8(&link.conversation).ok().and_then(|id| id.parse().ok());
        let path = SafePath::from_components(&link.components).ok();
        conversation.zip(path).ok_or(Rejected::Malformed)
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
