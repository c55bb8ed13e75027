//! Paths of files in a conversation, as bytes: parsed once and valid from then on.
//!
//! Owns which paths are valid, how they are displayed and how a link encodes them. Knows nothing of disks: a valid path
//! may still name a symbolic link or nothing, which only opening it shows.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// The longest name between two slashes, in bytes: what Linux file systems allow.
pub const COMPONENT_BYTES_MAX: usize = 255;
/// The longest path, in bytes: what one system call takes, without its closing zero.
pub const PATH_BYTES_MAX: usize = 4095;
/// The deepest path, in names.
pub const COMPONENTS_MAX: usize = 32;

/// The longest displayed path, in bytes; of a longer one the middle is left out.
pub const SHOWN_BYTES_MAX: usize = 512;

/// Everything but the unreserved characters of RFC 3986, so that no proxy rewrites a path.
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The same for several names with slashes between them.
pub const RESERVED_IN_PATH: &AsciiSet = &RESERVED.remove(b'/');

/// Why a text is not the path of a file in a conversation. The message states the rule and never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("it names no file: give a path below /data, such as out/report.csv")]
    Empty,
    #[error("it starts with a slash: give a path relative to /data, such as out/report.csv")]
    Absolute,
    /// Two slashes in a row, or one at the end.
    #[error("it holds an empty name: give single slashes between names and none at the end")]
    EmptyComponent,
    #[error("it holds `.` or `..` as a name: give the plain path from /data downwards")]
    Dots,
    #[error("it holds a zero byte, which no file name can hold")]
    Nul,
    #[error("it holds an encoded slash inside a name, which no file name can hold")]
    Slash,
    #[error("it holds a name longer than {COMPONENT_BYTES_MAX} bytes")]
    ComponentTooLong,
    #[error("it is longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
    #[error("it is more than {COMPONENTS_MAX} folders deep")]
    TooDeep,
    /// A percent sign without two hexadecimal digits.
    #[error("it holds a percent sign that two hexadecimal digits do not follow: write %25 for the sign itself")]
    BadPercent,
}

/// A path below a conversation's `files` folder: one to [`COMPONENTS_MAX`] names of any bytes but `/` and NUL, none
/// empty, none `.` or `..`. Bytes are compared as they are; twins that only look alike are two paths.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SafePath(Vec<u8>);

impl SafePath {
    /// Parses text from a person or a model. A leading `/data/` or `./` is dropped, since `/data` is what programs call
    /// the folder; everything else is taken literally, the percent sign too.
    ///
    /// # Errors
    /// When a rule of [`SafePath`] is broken.
    pub fn from_text(text: &str) -> Result<Self, PathError> {
        let inside = text.strip_prefix("/data/").or_else(|| text.strip_prefix("./")).unwrap_or(text);
        match inside {
            "" | "." | "/data" | "/" => Err(PathError::Empty),
            _ if inside.starts_with('/') => Err(PathError::Absolute),
            _ => Self::from_components(inside.split('/')),
        }
    }

    /// Parses a percent-encoded path, the form of [`SafePath::to_encoded`]: split at slashes first, each name decoded
    /// exactly once.
    ///
    /// # Errors
    /// When a rule of [`SafePath`] is broken, or the encoding.
    pub fn from_encoded(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        let names = text.split('/').map(decode_component).collect::<Result<Vec<_>, _>>()?;
        Self::from_components(names)
    }

    /// Whether it is this file or folder, or is below it.
    pub fn is_within(&self, other: &Self) -> bool {
        let rest = self.as_bytes().strip_prefix(other.as_bytes());
        rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    }

    /// Builds a path from its names.
    ///
    /// # Errors
    /// When a rule of [`SafePath`] is broken.
    pub fn from_components(names: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Self, PathError> {
        let mut path = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            if index == COMPONENTS_MAX {
                return Err(PathError::TooDeep);
            }
            if index > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(check_component(name.as_ref())?);
            if path.len() > PATH_BYTES_MAX {
                return Err(PathError::TooLong);
            }
        }
        if path.is_empty() { Err(PathError::Empty) } else { Ok(Self(path)) }
    }

    /// The names, from the top down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/')
    }

    /// The folders that it is in, from the top down, as bytes.
    pub fn above(&self) -> impl Iterator<Item = &[u8]> {
        let slashes = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(move |(at, _)| &self.0[..at])
    }

    /// The same as paths.
    pub fn folders(&self) -> impl Iterator<Item = Self> {
        self.above().map(|folder| Self(folder.to_vec()))
    }

    /// The names joined by slashes, without one at the beginning or the end.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The last name.
    pub fn name(&self) -> &[u8] {
        self.split_last().1
    }

    /// The folder that holds it, as bytes (empty for the top), and its name.
    pub(crate) fn split_last(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|&b| b == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (&[], &self.0),
        }
    }

    /// The path for display: unchanged when it is plain UTF-8; control characters, characters that are invisible or
    /// turn the direction of writing, and bytes that are not UTF-8 are escaped as in Rust (`\u{202e}`, `\xff`). The
    /// middle of a path longer than [`SHOWN_BYTES_MAX`] is left out.
    pub fn display(&self) -> String {
        show(&self.0)
    }

    /// The path for a client that names the file by it again: unchanged where it is UTF-8.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The path for a link: percent-encoded bytes, slashes kept.
    pub fn to_encoded(&self) -> String {
        percent_encode(&self.0, RESERVED_IN_PATH).to_string()
    }

    /// Whether [`SafePath::display`] had to escape something, so that only [`SafePath::to_encoded`] leads back here.
    pub fn needs_encoding(&self) -> bool {
        self.display().as_bytes() != self.0
    }
}

impl fmt::Display for SafePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display())
    }
}

impl fmt::Debug for SafePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SafePath({})", self.display())
    }
}

/// Decodes one percent-encoded name, exactly once.
///
/// # Errors
/// [`PathError::BadPercent`], or the violated rule of a name.
pub fn decode_component(text: &str) -> Result<Vec<u8>, PathError> {
    let is_byte = |rest: &str| matches!(rest.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_byte) {
        return Err(PathError::BadPercent);
    }
    let name: Vec<u8> = percent_decode_str(text).collect();
    check_component(&name)?;
    Ok(name)
}

/// A path or a name for display: see [`SafePath::display`].
pub(crate) fn show(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_misleading(c) {
                text.extend(c.escape_unicode());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    if text.len() > SHOWN_BYTES_MAX {
        const MARK: char = '…';
        // The end holds the name, so it gets half.
        let half = (SHOWN_BYTES_MAX - MARK.len_utf8()) / 2;
        let end = text.ceil_char_boundary(text.len() - half);
        text.replace_range(text.floor_char_boundary(half)..end, MARK.encode_utf8(&mut [0; 4]));
    }
    text
}

/// Whether a character makes the displayed name differ from the real one: controls, line ends, invisible characters,
/// and those that change the direction of writing.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn check_component(name: &[u8]) -> Result<&[u8], PathError> {
    match name {
        b"" => Err(PathError::EmptyComponent),
        b"." | b".." => Err(PathError::Dots),
        _ if name.contains(&0) => Err(PathError::Nul),
        _ if name.contains(&b'/') => Err(PathError::Slash),
        _ if name.len() > COMPONENT_BYTES_MAX => Err(PathError::ComponentTooLong),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_text_accepts_the_forms_that_models_write() {
        for text in ["a/b.txt", "/data/a/b.txt", "./a/b.txt"] {
            assert_eq!(SafePath::from_text(text).map(|p| p.display()), Ok("a/b.txt".to_owned()), "{text}");
        }
        for literal in
            ["%2e%2e%2fx", "..\\..\\x", "...", " ", "-rf", "data/x", "C:x", "~", "*", "a\nb", "é", "e\u{301}"]
        {
            assert_eq!(SafePath::from_text(literal).map(|p| p.0), Ok(literal.as_bytes().to_vec()));
        }
    }

    #[test]
    fn from_text_refuses_with_the_reason() {
        let (name, path) = ("n".repeat(256), vec!["n".repeat(255); 17].join("/"));
        let deep = vec!["d"; 33].join("/");
        let table = [
            ("", PathError::Empty),
            (".", PathError::Empty),
            ("/", PathError::Empty),
            ("/data", PathError::Empty),
            ("/data/", PathError::Empty),
            ("./", PathError::Empty),
            ("/etc/passwd", PathError::Absolute),
            ("//data/x", PathError::Absolute),
            ("/data//x", PathError::Absolute),
            ("a//b", PathError::EmptyComponent),
            ("a/", PathError::EmptyComponent),
            ("..", PathError::Dots),
            ("../x", PathError::Dots),
            ("a/../b", PathError::Dots),
            ("a/.", PathError::Dots),
            ("a/./b", PathError::Dots),
            ("/data/../x", PathError::Dots),
            ("././x", PathError::Dots),
            ("a\0b", PathError::Nul),
            (&name, PathError::ComponentTooLong),
            (&path, PathError::TooLong),
            (&deep, PathError::TooDeep),
        ];
        for (text, error) in table {
            assert_eq!(SafePath::from_text(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn folders_are_those_above_from_the_top_down() {
        let folders = |text: &str| -> Vec<String> {
            let path = SafePath::from_text(text).expect(text);
            assert!(path.folders().all(|folder| path.is_within(&folder) && folder != path), "{text}");
            path.folders().map(|folder| folder.display()).collect()
        };
        assert_eq!(folders("a/b/c.txt"), ["a", "a/b"]);
        assert_eq!(folders("c.txt"), [""; 0]);
    }

    #[test]
    fn from_encoded_decodes_once() {
        let table: [(&str, Result<&[u8], PathError>); 12] = [
            ("a%20b", Ok(b"a b")),
            ("a+b", Ok(b"a+b")),
            ("%252e%252e", Ok(b"%2e%2e")),
            ("%ff%C0%af", Ok(b"\xff\xc0\xaf")),
            ("d/%2D", Ok(b"d/-")),
            ("%2e%2e", Err(PathError::Dots)),
            (".%2E/x", Err(PathError::Dots)),
            ("a%2fb", Err(PathError::Slash)),
            ("a%00", Err(PathError::Nul)),
            ("a%", Err(PathError::BadPercent)),
            ("a%4", Err(PathError::BadPercent)),
            ("%+1%zz", Err(PathError::BadPercent)),
        ];
        for (text, expected) in table {
            assert_eq!(SafePath::from_encoded(text).map(|p| p.0), expected.map(<[u8]>::to_vec), "{text:?}");
        }
    }

    #[test]
    fn display_escapes_misleading_characters() {
        let table: [(&[u8], &str); 7] = [
            (b"a\x1b[31m", "a\\u{1b}[31m"),
            (b"a\r\nb", "a\\u{d}\\u{a}b"),
            (b"\xff\xfe", "\\xff\\xfe"),
            ("gpj.\u{202e}exe".as_bytes(), "gpj.\\u{202e}exe"),
            ("\u{e0041}".as_bytes(), "\\u{e0041}"),
            ("naïve 日本.txt".as_bytes(), "naïve 日本.txt"),
            (b"\\xff", "\\xff"),
        ];
        for (bytes, shown) in table {
            let path = SafePath::from_components([bytes]).expect("a path");
            assert_eq!((path.display().as_str(), path.needs_encoding()), (shown, bytes != shown.as_bytes()));
        }
    }
}
