//! Signed links: the holder of a link may read its one file until it expires, without a token; or all files of a
//! conversation as an archive, where the link names none: `/files/{id}`.
//!
//! Owns the form of a link and the signed text. Knows nothing of disks or HTTP. A link names a path, not a version of
//! the file. Its path is `/files/{id}/{path}`, or `/files/@{owner}/{id}/{path}` for an owner other than `default`.

use std::{fmt, os::unix::ffi::OsStrExt as _, path::Path};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::percent_encode;
use secrecy::{ExposeSecret as _, SecretString};
use subtle::{Choice, ConstantTimeEq as _};

use crate::domain::{ConversationKey, SafePath, path::RESERVED, text::mac};

/// The longest lifetime of a link: seven days.
pub const URL_TTL_S_MAX: i64 = 7 * 24 * 60 * 60;

const KEY_LABEL: &[u8] = b"mcp-sandbox/key/file-url/v1";
const TEXT_LABEL: &[u8] = b"mcp-sandbox/file-url/v1\0";
const UPLOAD_LABEL: &[u8] = b"mcp-sandbox/upload-url/v1\0";

/// Why a link is refused. For the log only: the client gets one message for all reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error("the link is malformed")]
    Malformed,
    /// One for an upload where a file is read, for example.
    #[error("the link is for something else")]
    Purpose,
    #[error("the signature is invalid")]
    Signature,
    #[error("the link has expired")]
    Expired,
    /// Later than [`URL_TTL_S_MAX`] allows.
    #[error("the link expires too far in the future")]
    TooFarAhead,
}

/// An unverified link; every name is decoded exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedLink {
    /// The key of a conversation: `id`, or `@owner/id` for an owner other than `default`.
    pub conversation: Vec<u8>,
    pub components: Vec<Vec<u8>>,
    pub expires: String,
    pub signature: String,
    /// For a link for an upload: the most bytes that it takes. Such a link reads nothing.
    pub bytes_max: Option<String>,
}

/// What a valid link is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkTarget {
    File(ConversationKey, SafePath),
    /// All files of a conversation.
    Archive(ConversationKey),
    /// A file of at most so many bytes is sent there. Nothing is read.
    Upload(ConversationKey, SafePath, u64),
}

/// Mints and verifies links, with keys derived from the secrets for this purpose alone.
pub struct UrlSigner {
    /// The first signs, all verify. Never empty.
    keys: Vec<[u8; 32]>,
    base_url: String,
    /// Links are paths below this folder, in place of `base_url`.
    folder: Option<String>,
}

impl fmt::Debug for UrlSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UrlSigner").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

impl UrlSigner {
    /// Signs with the first secret and accepts signatures of all. Without a secret it uses a random one, and links
    /// become invalid with this value. `base_url` is the beginning of links, such as `https://sandbox.example.org`.
    pub fn new(secrets: &[SecretString], base_url: &str) -> Self {
        let derive = |secret: &[u8]| mac(secret, &[KEY_LABEL]);
        let mut keys: Vec<_> = secrets.iter().map(|secret| derive(secret.expose_secret().as_bytes())).collect();
        if keys.is_empty() {
            let random = || uuid::Uuid::new_v4().into_bytes();
            keys.push(derive(&[random(), random()].concat()));
        }
        Self { keys, base_url: base_url.trim_end_matches('/').to_owned(), folder: None }
    }

    /// The same, but with links to the files on this machine, for a client that shares it: no server has to answer.
    #[must_use]
    pub fn in_folder(self, root: &Path) -> Self {
        let names = root.iter().skip(1).map(|name| percent_encode(name.as_bytes(), RESERVED).to_string());
        let folder = names.fold("file://".to_owned(), |folder, name| folder + "/" + name.as_str());
        Self { folder: Some(folder), ..self }
    }

    /// A link to a file, valid until `expires_unix_s` and not earlier than [`URL_TTL_S_MAX`] before it.
    pub fn mint(&self, conversation: &ConversationKey, path: &SafePath, expires_unix_s: i64) -> String {
        if let Some(folder) = &self.folder {
            return format!("{folder}/{conversation}/files/{}", path.to_encoded());
        }
        self.signed(conversation, Some(path), expires_unix_s, None)
    }

    /// A link that takes a file of at most so many bytes; `None` where links are paths, which no server takes it at.
    pub fn mint_upload(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        expires_unix_s: i64,
        bytes_max: u64,
    ) -> Option<String> {
        let signed = || self.signed(conversation, Some(path), expires_unix_s, Some(bytes_max));
        self.folder.is_none().then(signed)
    }

    /// A link to all files of a conversation as an archive.
    pub fn mint_archive(&self, conversation: &ConversationKey, expires_unix_s: i64) -> String {
        self.signed(conversation, None, expires_unix_s, None)
    }

    /// Without a path, all files.
    fn signed(
        &self,
        conversation: &ConversationKey,
        path: Option<&SafePath>,
        expires_unix_s: i64,
        bytes_max: Option<u64>,
    ) -> String {
        let expires = u64::try_from(expires_unix_s).unwrap_or(0);
        let bytes = path.map(SafePath::as_bytes).unwrap_or_default();
        let signature = sign(&self.keys[0], conversation.to_string().as_bytes(), bytes, expires, bytes_max);
        let path = path.map(|path| format!("/{}", path.to_encoded())).unwrap_or_default();
        let bytes_max = bytes_max.map(|bytes_max| format!("&max={bytes_max}")).unwrap_or_default();
        format!(
            "{}/files/{conversation}{path}?expires={expires}{bytes_max}&sig={}",
            self.base_url,
            URL_SAFE_NO_PAD.encode(signature),
        )
    }

    /// The file that a link names, valid or not: for a caller who needs no link to it.
    pub fn named_by(&self, url: &str) -> Option<(ConversationKey, SafePath)> {
        let url = url.split_once('?').map_or(url, |(path, _)| path);
        let (key, path) = if let Some(folder) = &self.folder {
            url.strip_prefix(folder)?.strip_prefix('/')?.split_once("/files/")?
        } else {
            let rest = url.strip_prefix(&self.base_url)?.strip_prefix("/files/")?;
            let owner = if rest.starts_with('@') { rest.find('/')? + 1 } else { 0 };
            let slash = owner + rest[owner..].find('/')?;
            (&rest[..slash], &rest[slash + 1..])
        };
        Some((key.parse().ok()?, SafePath::from_encoded(path).ok()?))
    }

    /// What a valid link is for. Every key is tried, and each comparison takes constant time.
    ///
    /// # Errors
    /// [`Rejected`]: form first, then signature, then time.
    pub fn verify(&self, link: &SignedLink, now_unix_s: i64) -> Result<LinkTarget, Rejected> {
        let SignedLink { conversation, components, expires, signature, bytes_max } = link;
        let number = |text: &String| parse_number(text).ok_or(Rejected::Malformed);
        let bytes_max = bytes_max.as_ref().map(number).transpose()?.map(i64::unsigned_abs);
        // Without names it is of all files: no path is empty, so no other link has this text.
        let path = (!components.is_empty()).then(|| SafePath::from_components(components)).transpose();
        let path = path.map_err(|_| Rejected::Malformed)?;
        let path_bytes = path.as_ref().map(SafePath::as_bytes).unwrap_or_default();
        let expires = number(expires)?;
        let signature = parse_signature(signature).ok_or(Rejected::Malformed)?;
        let good = self.keys.iter().fold(Choice::from(0), |good, key| {
            good | sign(key, conversation, path_bytes, expires.unsigned_abs(), bytes_max).ct_eq(&signature)
        });
        if !bool::from(good) {
            return Err(Rejected::Signature);
        }
        match expires.checked_sub(now_unix_s) {
            Some(left_s) if left_s <= 0 => return Err(Rejected::Expired),
            Some(left_s) if left_s <= URL_TTL_S_MAX => {}
            _ => return Err(Rejected::TooFarAhead),
        }
        // A signed text was well formed, so this does not fail.
        let conversation = std::str::from_utf8(conversation).ok().and_then(|key| key.parse().ok());
        let conversation = conversation.ok_or(Rejected::Malformed)?;
        match (path, bytes_max) {
            (Some(path), None) => Ok(LinkTarget::File(conversation, path)),
            (Some(path), Some(bytes_max)) => Ok(LinkTarget::Upload(conversation, path, bytes_max)),
            (None, None) => Ok(LinkTarget::Archive(conversation)),
            // None is minted.
            (None, Some(_)) => Err(Rejected::Malformed),
        }
    }
}

/// The signature over fields that carry their lengths, so that no two different links have the same text. A link for an
/// upload has another label, so that neither kind can stand for the other.
fn sign(key: &[u8; 32], conversation: &[u8], path: &[u8], expires: u64, bytes_max: Option<u64>) -> [u8; 32] {
    // Both are far shorter than four gigabytes; saturating keeps even that impossible case from wrapping around.
    let length = |field: &[u8]| u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes();
    let label = if bytes_max.is_some() { UPLOAD_LABEL } else { TEXT_LABEL };
    let bytes_max = bytes_max.map(u64::to_be_bytes);
    let bytes_max = bytes_max.as_ref().map_or(&[][..], |bytes| bytes);
    let expires = expires.to_be_bytes();
    mac(key, &[label, &length(conversation), conversation, &length(path), path, &expires, bytes_max])
}

/// Parses a number in the one form that is minted: digits without a sign or leading zeros.
fn parse_number(text: &str) -> Option<i64> {
    let canonical = matches!(text.as_bytes(), [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    canonical.then(|| text.parse().ok()).flatten()
}

fn parse_signature(text: &str) -> Option<[u8; 32]> {
    // The decoder refuses padding and leftover bits, so a signature has one text form.
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
