//! A file of a conversation, as services and observers see it, and its media type, which is derived from the extension
//! alone. A program may choose any extension, so the HTTP layer decides what a browser may do with a file.

use super::{path::SafePath, text::json_bytes, words::words};

/// The media type of a name without a known extension.
pub const OCTET_STREAM: &str = "application/octet-stream";

/// Extensions that mean something else here than in the general table, which was made for web servers.
const OVERRIDES: [(&str, &str); 8] = [
    ("ts", "text/typescript"),
    ("tsx", "text/typescript"),
    ("mts", "text/typescript"),
    ("cts", "text/typescript"),
    ("py", "text/x-python"),
    ("ipynb", "application/x-ipynb+json"),
    ("jsonl", "application/jsonl"),
    ("feather", "application/vnd.apache.arrow.file"),
];

words! {
    /// How a file changed since a mark in the file system's time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Change: word {
        Created = "created",
        /// Its bytes, its name or its mode changed.
        Changed = "changed",
        /// Also without a mark.
        Unchanged = "unchanged",
    }
}

/// A file with a link that downloads it without a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub path: SafePath,
    pub size: u64,
    /// [`Change::Unchanged`] in a plain listing.
    pub change: Change,
    pub modified_unix_s: i64,
    pub url: String,
    pub url_expires_unix_s: i64,
}

impl FileEntry {
    /// The percent-encoded path, when the displayed path does not lead back to the file.
    pub fn path_encoded(&self) -> Option<String> {
        self.path.needs_encoding().then(|| self.path.to_encoded())
    }

    pub fn media_type(&self) -> &'static str {
        media_type(self.path.name())
    }

    /// An upper bound of its length in an answer (JSON), and of the memory that it takes, in bytes.
    pub fn wire_bytes(&self) -> usize {
        /// The names of the members, two times and a number.
        const REST_BYTES: usize = 260;
        let encoded = self.path_encoded().map_or(0, |encoded| encoded.len());
        json_bytes(&self.path.display()) + encoded + self.media_type().len() + json_bytes(&self.url) + REST_BYTES
    }
}

/// The media type of a file's name, without parameters.
pub fn media_type(name: &[u8]) -> &'static str {
    let extension = || {
        let dot = name.iter().rposition(|&b| b == b'.').filter(|&at| at > 0)?;
        Some(std::str::from_utf8(&name[dot + 1..]).ok()?.to_ascii_lowercase())
    };
    let Some(extension) = extension() else { return OCTET_STREAM };
    let overridden = OVERRIDES.iter().find(|(known, _)| *known == extension).map(|(_, media)| *media);
    overridden.or_else(|| mime_guess::from_ext(&extension).first_raw()).unwrap_or(OCTET_STREAM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_follows_the_extension() {
        let table: [(&[u8], &str); 14] = [
            (b"a.csv", "text/csv"),
            (b"A.CSV", "text/csv"),
            (b"a.b.png", "image/png"),
            (b"plot.svg", "image/svg+xml"),
            (b"x.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
            (b"main.ts", "text/typescript"),
            (b"main.py", "text/x-python"),
            (b"a", OCTET_STREAM),
            (b".png", OCTET_STREAM),
            (b"a.", OCTET_STREAM),
            (b"", OCTET_STREAM),
            (b"a.\xff", OCTET_STREAM),
            (b"a.png\n", OCTET_STREAM),
            (b"a.nosuchextension", OCTET_STREAM),
        ];
        for (name, media) in table {
            assert_eq!(media_type(name), media, "{}", String::from_utf8_lossy(name));
        }
    }
}
