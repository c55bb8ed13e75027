//! Changes within a text file. The whole file is replaced in one step, unless it is another one by then.

use std::io::Read as _;

use bytes::Bytes;
use tracing::debug;

use super::{Files, write::space};
use crate::{
    domain::{
        error::{Code, Failure},
        file::FileEntry,
        owner::ConversationKey,
        path::SafePath,
    },
    ports::storage::{OpenFile, StorageError},
};

/// How a text changes.
#[derive(Debug, Clone)]
pub enum TextChange {
    Replace {
        /// Not empty. It must occur once, unless each occurrence is to change.
        old: String,
        new: String,
        all: bool,
    },
    /// At the end.
    Append(String),
}

impl TextChange {
    fn apply(self, mut text: String) -> Result<String, Failure> {
        let (old, new, all) = match self {
            Self::Replace { old, new, all } => (old, new, all),
            Self::Append(more) => {
                text.push_str(&more);
                return Ok(text);
            }
        };
        match text.matches(&old).count() {
            0 => Err(Failure::argument("oldText", "the file does not hold it: read the file again")),
            many if many > 1 && !all => {
                let why = format!("the file holds it {many} times: give more of the text around it, or replaceAll");
                Err(Failure::argument("oldText", why))
            }
            _ => Ok(text.replace(&old, &new)),
        }
    }
}

impl Files {
    /// Changes a text file. A change by a program or another client after the file was read is not overwritten: the
    /// file is compared right before it is replaced, under the lock that other writers take.
    ///
    /// # Errors
    /// Those of [`Files::read`] and [`Files::write`]; [`Code::InvalidArgument`] for a text that does not occur as it
    /// should, for a file that is not text and for one that changed meanwhile.
    pub async fn edit(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        change: TextChange,
    ) -> Result<FileEntry, Failure> {
        debug!(%conversation, "edit a file");
        let bytes_max = self.options.write_bytes_max;
        let wanted = path.clone();
        let read = self.existing(conversation, move |there| {
            let OpenFile { file, etag, .. } = there.read(&wanted)?;
            let mut bytes = Vec::new();
            let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
            read.map(|_| (bytes, etag)).map_err(|source| StorageError::Io { act: "read", source })
        });
        let fits = |bytes: Vec<u8>| {
            let why = || format!("The file is longer than {bytes_max} bytes: use a program.");
            if bytes.len() as u64 <= bytes_max { Ok(bytes) } else { Err(Failure::new(Code::TooLarge, why())) }
        };
        let (bytes, etag) = read.await?;
        let text = String::from_utf8(fits(bytes)?)
            .map_err(|_| Failure::argument("path", "the file is not text in UTF-8: change it with a program"))?;
        let bytes = Bytes::from(fits(change.apply(text)?.into_bytes())?);
        let more = space(path, Some(bytes.len() as u64));
        let (wanted, announcer) = (path.clone(), self.announcer(conversation));
        let entry = self.writing(conversation, more, move |there| match there.read(&wanted) {
            Ok(now) if now.etag == etag => {
                there.write(&wanted, &bytes).inspect(|_| announcer.changed(Some(&wanted))).map(Some)
            }
            Ok(_) | Err(StorageError::NotFound) => Ok(None),
            Err(error) => Err(error),
        });
        let changed = || Failure::argument("path", "the file changed while it was edited: read it again");
        Ok(self.entry(conversation, entry.await?.ok_or_else(changed)?, self.url_expires_unix_s()))
    }
}
