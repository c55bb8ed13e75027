//! Changes within a text file. The whole file is replaced in one step, unless it is another one by then.

use std::io::Read as _;

use tracing::debug;

use super::{Files, Step, write::space};
use crate::{
    domain::{Code, ConversationKey, Failure, FileEntry, SafePath},
    ports::storage::{OpenFile, StorageError},
    services::quota::Writer,
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
    /// The length is checked before the text is made, which may be a million times as long as the request.
    fn apply(self, mut text: String, bytes_max: u64) -> Result<String, Failure> {
        let (old, new, all) = match self {
            Self::Replace { old, new, all } => (old, new, all),
            Self::Append(more) => {
                check_length(text.len() + more.len(), bytes_max)?;
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
            many => {
                let kept = text.len() - many * old.len();
                check_length(many.saturating_mul(new.len()).saturating_add(kept), bytes_max)?;
                Ok(text.replace(&old, &new))
            }
        }
    }
}

fn check_length(bytes: usize, bytes_max: u64) -> Result<(), Failure> {
    let why = || format!("The file is longer than {bytes_max} bytes: use a program.");
    if bytes as u64 <= bytes_max { Ok(()) } else { Err(Failure::new(Code::TooLarge, why())) }
}

impl Files {
    /// Changes a text file. Other clients that write wait meanwhile. A change by a program after the file was read is
    /// not overwritten: the file is compared right before it is replaced.
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
        let bytes = match &change {
            TextChange::Replace { old, new, .. } => old.len() + new.len(),
            TextChange::Append(more) => more.len(),
        };
        let _held = self.hold(&conversation.owner, bytes)?;
        debug!(%conversation, "edit a file");
        let bytes_max = self.options.write_bytes_max;
        let path = path.clone();
        // One step, so that no text is in memory while it waits for a second one.
        let step = move |at: &Step<'_>, writer: &Writer| {
            let OpenFile { file, etag, .. } = at.existing()?.read(&path)?;
            let mut bytes = Vec::new();
            let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
            read.map_err(|source| StorageError::Io { act: "read", source })?;
            check_length(bytes.len(), bytes_max)?;
            let text = String::from_utf8(bytes)
                .map_err(|_| Failure::argument("path", "the file is not text in UTF-8: change it with a program"))?;
            let text = change.apply(text, bytes_max)?;
            writer.reserve(&space(&path, Some(text.len() as u64)))?;
            let entry = at.write(|there| match there.read(&path) {
                Ok(now) if now.etag == etag => {
                    there.write(&path, text.as_bytes()).inspect(|_| at.announce(Some(&path))).map(Some)
                }
                Ok(_) | Err(StorageError::NotFound) => Ok(None),
                Err(error) => Err(error),
            })?;
            let changed = || Failure::argument("path", "the file changed while it was edited: read it again");
            entry.ok_or_else(changed)
        };
        let entry = self.write_step(conversation, step).await?;
        Ok(self.entry(conversation, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_would_be_too_long_is_refused_before_it_is_made() {
        let replace = |old: &str, new: &str| {
            let (old, new) = (old.to_owned(), new.to_owned());
            TextChange::Replace { old, new, all: true }
        };
        let apply = |change: TextChange, text: &str, bytes_max| {
            change.apply(text.to_owned(), bytes_max).map_err(|failure| failure.code)
        };
        // A terabyte.
        let (short, long) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
        assert_eq!(apply(replace("a", &long), &short, 8 << 20), Err(Code::TooLarge));
        assert_eq!(apply(replace("aa", "bbb"), "aaaaa", 7), Ok("bbbbbba".to_owned()));
        assert_eq!(apply(replace("aa", "bbb"), "aaaaa", 6), Err(Code::TooLarge));
        assert_eq!(apply(replace("aa", ""), "aaaaa", 1), Ok("a".to_owned()));
        let append = || TextChange::Append("bc".to_owned());
        assert_eq!(apply(append(), "a", 3), Ok("abc".to_owned()));
        assert_eq!(apply(append(), "a", 2), Err(Code::TooLarge));
    }
}
