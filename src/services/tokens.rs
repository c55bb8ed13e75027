//! Authentication: maps a bearer token to its principal.

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::owner::Principal;

/// The accepted token, as a digest: a comparison takes the same time for a token of any content and length.
pub struct Tokens([u8; 32]);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(…)")
    }
}

impl Tokens {
    pub fn new(token: &SecretString) -> Self {
        Self(Sha256::digest(token.expose_secret()).into())
    }

    /// The owner of a token; `None` for an unknown token.
    pub fn principal(&self, token: &[u8]) -> Option<Principal> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        bool::from(digest.ct_eq(&self.0)).then(Principal::default)
    }

    /// Parses the value of an `Authorization` header (RFC 6750): the scheme in any case, one or more spaces, the token.
    pub fn authorize(&self, header: &[u8]) -> Option<Principal> {
        let split = header.iter().position(|&b| b == b' ')?;
        let (scheme, rest) = header.split_at(split);
        let token = rest.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then(|| self.principal(token)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorize_accepts_the_token_only() {
        let tokens = Tokens::new(&"0123456789abcdef".to_owned().into());
        for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef", "BEARER   0123456789abcdef "] {
            assert_eq!(tokens.authorize(good.as_bytes()), Some(Principal::default()), "{good}");
        }
        let bad: [&[u8]; 12] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"0123456789abcdef",
            b"Basic 0123456789abcdef",
            b"Bearer 0123456789abcde",
            b"Bearer 0123456789abcdef0",
            b"Bearer 0123456789abcdeF",
            b"Bearer 0123456789abcdef\0",
            b"Bearer\t0123456789abcdef",
            b"Bearer 0123456789abcdef, Bearer 0123456789abcdef",
            b"Bearer \xff\xfe",
        ];
        for header in bad {
            assert_eq!(tokens.authorize(header), None, "{header:?}");
        }
        assert_eq!(format!("{tokens:?}"), "Tokens(…)");
    }
}
