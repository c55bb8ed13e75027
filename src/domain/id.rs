//! Identifiers. Each is parsed once, where it enters, and is valid from then on.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
};

use serde_with::{DeserializeFromStr, SerializeDisplay};
use uuid::Uuid;

use super::text::sha256;

/// The longest conversation id, in characters.
pub const CONVERSATION_ID_CHARS_MAX: usize = 128;
/// The longest language name, in characters.
pub const LANGUAGE_CHARS_MAX: usize = 32;

/// Why a text is not an identifier. The message states the violated rule and never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("must have 1 to {max} characters, and is empty")]
    Empty { max: usize },
    #[error("must not be longer than {max} characters")]
    TooLong { max: usize },
    #[error("the first character must be one of A-Z a-z 0-9")]
    FirstCharacter,
    #[error("must contain only {allowed}")]
    Character { allowed: &'static str },
    /// A name that the server uses itself.
    #[error("is reserved; use another one")]
    Reserved,
}

/// The owner of files across runs: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, the first a letter or digit.
///
/// Such a name is never `.` or `..`, never hidden and holds no separator, so it is one plain folder name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationId(String, IgnoredInComparison<bool>);

impl ConversationId {
    /// A new, unused id.
    pub fn fresh() -> Self {
        Self(format!("c-{}", Uuid::now_v7().simple()), IgnoredInComparison(true))
    }

    /// A new id that does not contain the time. It is the same each time for the run id that is stored for a request's
    /// key. `prefix` begins with a letter.
    pub fn of_run(prefix: &str, run: RunId) -> Self {
        Self(format!("{prefix}{}", &sha256(run.to_string().as_bytes())[..32]), IgnoredInComparison(true))
    }

    /// Whether it was made by this process and not named by a client: no other server knows it.
    pub fn is_made_here(&self) -> bool {
        self.1.0
    }
}

/// What makes no difference when two values are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct IgnoredInComparison<T>(pub T);

impl<T> PartialEq for IgnoredInComparison<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for IgnoredInComparison<T> {}

impl<T> Hash for IgnoredInComparison<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T> PartialOrd for IgnoredInComparison<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for IgnoredInComparison<T> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

/// A name shows as its text.
macro_rules! shows_its_text {
    ($($name:ident),+) => {
        $(
            impl $name {
                pub fn as_str(&self) -> &str {
                    &self.0
                }
            }

            impl std::fmt::Display for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str(&self.0)
                }
            }
        )+
    };
}
pub(super) use shows_its_text;
shows_its_text!(ConversationId, Language);

impl FromStr for ConversationId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        check_folder_name(text, CONVERSATION_ID_CHARS_MAX)?;
        Ok(Self(text.to_owned(), IgnoredInComparison(false)))
    }
}

/// The name of a language or an alias of it, in lower case: 1 to 32 characters of `a-z 0-9 . _ + # -`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, SerializeDisplay, DeserializeFromStr)]
pub struct Language(String);

impl Default for Language {
    /// That of sessions, where a request names none.
    fn default() -> Self {
        Self("python".to_owned())
    }
}

impl FromStr for Language {
    type Err = IdError;

    /// Letters are folded to lower case, so `Python` finds `python`.
    fn from_str(text: &str) -> Result<Self, IdError> {
        check(text, LANGUAGE_CHARS_MAX, "A-Z a-z 0-9 . _ + # -", |b| {
            b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'+' | b'#' | b'-')
        })?;
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// Checks a name that is one plain folder name: never `.` or `..`, never hidden, and without a separator.
pub(super) fn check_folder_name(text: &str, max: usize) -> Result<(), IdError> {
    check(text, max, "A-Z a-z 0-9 . _ -", |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn check(text: &str, max: usize, allowed: &'static str, fits: impl Fn(u8) -> bool) -> Result<(), IdError> {
    let bytes = text.as_bytes();
    let first = *bytes.first().ok_or(IdError::Empty { max })?;
    // The alphabets are ASCII, so a text that passes has as many characters as bytes.
    if text.chars().nth(max).is_some() {
        return Err(IdError::TooLong { max });
    }
    if !first.is_ascii_alphanumeric() {
        return Err(IdError::FirstCharacter);
    }
    if bytes.iter().all(|&b| fits(b)) { Ok(()) } else { Err(IdError::Character { allowed }) }
}

/// Makes the ids of a kind: a prefix, and a UUID that holds the time.
macro_rules! uuid_ids {
    ($($(#[$doc:meta])+ $name:ident = $prefix:literal,)+) => {$(
        $(#[$doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id. Ids sort by creation time.
            #[expect(clippy::new_without_default, reason = "each call returns another id")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id as 16 bytes; the last eight are random except for two bits.
            pub fn to_bytes(&self) -> [u8; 16] {
                self.0.into_bytes()
            }

            /// When it was made, in unix milliseconds (RFC 9562, 5.7).
            pub fn unix_ms(&self) -> i64 {
                self.0.as_bytes()[..6].iter().fold(0, |ms, byte| ms << 8 | i64::from(*byte))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0.simple())
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                const ALLOWED: &str = concat!("the form ", $prefix, "<32 hexadecimal digits>");
                let digits = text.strip_prefix($prefix).filter(|digits| digits.len() == 32);
                let id = digits.and_then(|digits| Uuid::try_parse(digits).ok());
                id.map(Self).ok_or(IdError::Character { allowed: ALLOWED })
            }
        }
    )+};
}

uuid_ids! {
    /// One execution of one program.
    RunId = "run-",
    /// One session: a sandbox that keeps an interpreter between the cells of a conversation.
    SessionId = "session-",
    /// One sandbox. Chosen before the sandbox exists, so that it can be destroyed while it is being started.
    SandboxId = "sandbox-",
    /// One request, in log lines and in error answers.
    RequestId = "req-",
    /// One token. It names the token and is not secret.
    TokenId = "token-",
    /// One server. Stored in its root folder and on the labels of its sandboxes, so that it survives a restart.
    InstanceId = "instance-",
    /// One question whether a tool may be called. It is no secret: who may answer is checked.
    ApprovalId = "",
}

impl TokenId {
    /// The id that stands for a digest (RFC 9562, version 8).
    pub fn of_digest(digest: [u8; 16]) -> Self {
        Self(uuid::Builder::from_custom_bytes(digest).into_uuid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversation_id_accepts_plain_folder_names_only() {
        for good in ["a", "0", "A.b_c-d", &"x".repeat(128), "CON", "a..b"] {
            assert!(good.parse::<ConversationId>().is_ok(), "{good}");
        }
        let long = "x".repeat(129);
        for bad in ["", ".", "..", "-a", "_a", ".a", "a/b", "a\\b", "a\0", "a b", "ä", "a\n", "%2e", &long] {
            assert!(bad.parse::<ConversationId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn language_is_parsed_to_lower_case() {
        assert_eq!("Python".parse::<Language>().map(|l| l.to_string()), Ok("python".to_owned()));
        assert_eq!("c++".parse::<Language>().map(|l| l.to_string()), Ok("c++".to_owned()));
        assert!("../x".parse::<Language>().is_err());
        assert!("python@sha256:0".parse::<Language>().is_err());
    }

    #[test]
    fn id_parses_its_own_text_and_no_other_prefix() {
        let id = SandboxId::new();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("sandbox-".parse::<SandboxId>().is_err());
        assert!(RunId::new().to_string().parse::<SandboxId>().is_err());
    }
}
