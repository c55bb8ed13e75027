//! The chain of the audit log: each line has a number and the SHA-256 of the line before it, so that a line that was
//! changed, removed, added or moved is found. Pure.

use std::fmt;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::domain::text::hex;

/// Hexadecimal digits of a hash.
const HASH_CHARS: usize = 64;

/// The end of a chain: the number and the hash of its last line. As text it always has the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub seq: u64,
    pub hash: String,
}

/// What a line says of its place in the chain.
#[derive(Debug, Deserialize)]
pub(super) struct Link {
    pub seq: u64,
    pub prev: String,
}

impl Default for Head {
    /// The chain without a line.
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(HASH_CHARS) }
    }
}

impl Head {
    /// The end of a chain whose last line is this one, without its line feed.
    pub(super) fn at(seq: u64, line: &[u8]) -> Self {
        Self { seq, hash: hex(&Sha256::digest(line)) }
    }

    /// A JSON object as the next line, without a line feed, and the end of the chain with it.
    pub(super) fn next(&self, object: &str) -> (String, Self) {
        let seq = self.seq.saturating_add(1);
        let fields = object.strip_prefix('{').unwrap_or(object);
        let line = format!("{{\"seq\":{seq},\"prev\":\"{}\",{fields}", self.hash);
        let head = Self::at(seq, line.as_bytes());
        (line, head)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (seq, hash) = text.trim_end().split_once(' ')?;
        let is_hash = hash.len() == HASH_CHARS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Self { seq: seq.parse().ok()?, hash: hash.to_owned() }).filter(|_| is_hash)
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:020} {}", self.seq, self.hash)
    }
}

/// The place of a line in the chain; `None` for a line that is not of a chain.
pub(super) fn link(line: &[u8]) -> Option<Link> {
    serde_json::from_slice(line).ok()
}
