//! Clients: dynamic registration (RFC 7591), and which redirect addresses are theirs.

use std::net::IpAddr;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Uri;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::{Refusal, SignIn, documents::is_document};
use crate::{
    domain::path::is_misleading,
    ports::{database::in_time, sign_in::RegisteredClient},
    services::tokens::{digest, random_secret},
};

pub(super) const REDIRECTS_MAX: usize = 16;
const REDIRECT_BYTES_MAX: usize = 1000;
/// What is shown of a client's name, in characters.
const NAME_CHARS_MAX: usize = 60;
/// The one address without http that is taken: of Cursor, which registers it beside others.
const CURSOR: &str = "cursor://anysphere.cursor-mcp/oauth/callback";
const SECRET_MARK: &str = "mcpcs_";
/// A client that proves itself in another way must not be taken for one that anyone may be.
const METHODS: &str = "token_endpoint_auth_method must be none or client_secret_post";

/// What a client says of itself.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    pub name: String,
    pub redirects: Vec<String>,
    /// `token_endpoint_auth_method`; empty where it names none.
    pub auth_method: String,
}

impl Registration {
    /// Reads the metadata of a client. What is not known of it is ignored, and what is no text.
    pub fn read(metadata: &Map<String, Value>) -> Self {
        let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let redirects = metadata.get("redirect_uris").and_then(Value::as_array).into_iter().flatten();
        Self {
            name: text("client_name"),
            redirects: redirects.filter_map(Value::as_str).map(str::to_owned).collect(),
            auth_method: text("token_endpoint_auth_method"),
        }
    }
}

/// A client that is registered now.
#[derive(Debug)]
pub struct Registered {
    pub client: RegisteredClient,
    pub secret: Option<SecretString>,
    pub issued_unix_s: i64,
}

impl SignIn {
    /// Registers a client. Of its addresses those that can be used are kept.
    ///
    /// # Errors
    /// [`Refusal::InvalidRedirectUri`] when none can be used, [`Refusal::InvalidClientMetadata`],
    /// [`Refusal::TooMany`], [`Refusal::Unavailable`].
    pub async fn register(&self, wanted: Registration, from: IpAddr) -> Result<Registered, Refusal> {
        self.rates.registrations.take(&from)?;
        let wants_secret = match wanted.auth_method.as_str() {
            "" | "none" => false,
            "client_secret_post" | "client_secret_basic" => true,
            _ => return Err(Refusal::InvalidClientMetadata(METHODS)),
        };
        if wanted.redirects.len() > REDIRECTS_MAX {
            return Err(Refusal::InvalidClientMetadata("redirect_uris has more than 16 addresses"));
        }
        let mut redirects = wanted.redirects;
        redirects.retain(|redirect| is_usable(redirect));
        redirects.sort();
        redirects.dedup();
        if redirects.is_empty() {
            return Err(Refusal::InvalidRedirectUri);
        }
        let name = shown_name(&wanted.name);
        let secret = wants_secret.then(|| random_secret(SECRET_MARK));
        let secret_digest = secret.as_ref().map(|secret| digest(secret.expose_secret().as_bytes()));
        // A second registration that says the same is the same client, unless it gets a secret of its own.
        let said = serde_json::json!([name, redirects]).to_string();
        let fingerprint = secret_digest.unwrap_or_else(|| digest(said.as_bytes()));
        let id = Uuid::new_v4().simple().to_string();
        let mut client = RegisteredClient { id, name, redirects, secret: secret_digest };
        let now = self.now();
        client.id = in_time(self.store.register(&client, &fingerprint, now)).await?;
        self.report("registered", &client.id, None);
        Ok(Registered { client, secret, issued_unix_s: now / 1000 })
    }

    /// The id of the client that a request names, if it proves to be it: a public one by its id. The document of one
    /// that is named by its document is not read again: what it shows was given to that name.
    ///
    /// # Errors
    /// [`Refusal::InvalidClient`], [`Refusal::Unavailable`].
    pub(super) async fn authenticated(&self, id: &str, secret: Option<&str>) -> Result<String, Refusal> {
        if is_document(id) {
            return Ok(id.to_owned());
        }
        let client = in_time(self.store.client(id)).await?.ok_or(Refusal::InvalidClient)?;
        let Some(wanted) = client.secret else { return Ok(client.id) };
        let sent = digest(secret.unwrap_or_default().as_bytes());
        if bool::from(sent.ct_eq(&wanted)) { Ok(client.id) } else { Err(Refusal::InvalidClient) }
    }
}

/// Whether an address is one that a client registered: the same text, except that the port of a loopback address is
/// free (RFC 8252, 7.3).
pub(super) fn is_registered(client: &RegisteredClient, redirect: &str) -> bool {
    let same_but_for_port = |registered: &str| match (loopback(registered), loopback(redirect)) {
        (Some(registered), Some(sent)) => {
            registered.host() == sent.host() && registered.path_and_query() == sent.path_and_query()
        }
        _ => false,
    };
    is_usable(redirect) && client.redirects.iter().any(|one| one == redirect || same_but_for_port(one))
}

/// The host of a redirect address, for people; `None` for a program on their own machine.
pub fn redirect_host(redirect: &str) -> Option<String> {
    if loopback(redirect).is_some() {
        return None;
    }
    redirect.parse::<Uri>().ok()?.authority().map(ToString::to_string)
}

pub(super) fn is_usable(redirect: &str) -> bool {
    let is_plain = redirect.bytes().all(|byte| byte.is_ascii_graphic() && !b"#\\\"'<>`{}|^".contains(&byte));
    if !is_plain || redirect.len() > REDIRECT_BYTES_MAX {
        return false;
    }
    redirect == CURSOR || loopback(redirect).is_some() || plain(redirect, "https://").is_some()
}

fn loopback(redirect: &str) -> Option<Uri> {
    plain(redirect, "http://").filter(|uri| matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]")))
}

/// An address of this scheme without a user, with a port that is one, and without steps upwards.
fn plain(redirect: &str, scheme: &str) -> Option<Uri> {
    let rest = redirect.strip_prefix(scheme)?;
    let authority = rest.split(['/', '?']).next()?;
    let uri: Uri = redirect.parse().ok()?;
    let port = authority.strip_prefix(uri.host()?)?;
    let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let path = uri.path().to_ascii_lowercase().replace("%2e", ".");
    let climbs = path.split('/').any(|part| part == "." || part == "..");
    (has_port && !climbs && !uri.host()?.is_empty()).then_some(uri)
}

pub(super) fn shown_name(name: &str) -> String {
    // Joiners are part of file names, and here they could make one name look like another.
    let is_shown = |c: &char| !is_misleading(*c) && !matches!(c, '\u{200c}' | '\u{200d}');
    let name: String = name.trim().chars().filter(is_shown).take(NAME_CHARS_MAX).collect();
    if name.is_empty() { "A client without a name".to_owned() } else { name }
}

/// The S256 challenge of a verifier (RFC 7636), `None` for a text that is none.
pub(super) fn challenge(verifier: &str) -> Option<String> {
    let is_one = (43..=128).contains(&verifier.len())
        && verifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
    is_one.then(|| BASE64_URL_SAFE_NO_PAD.encode(digest(verifier.as_bytes())))
}

pub(super) fn is_challenge(text: &str) -> bool {
    text.len() == 43 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifier_has_43_to_128_characters_of_its_alphabet() {
        for length in [43, 128] {
            assert!(challenge(&"a".repeat(length)).is_some_and(|text| is_challenge(&text)), "{length}");
        }
        for length in [0, 42, 129] {
            assert_eq!(challenge(&"a".repeat(length)), None, "{length}");
        }
        for other in [" ", "+", "/", "=", "\0", "\u{e4}"] {
            assert_eq!(challenge(&format!("{}{other}", "a".repeat(43))), None, "{other:?}");
        }
        // RFC 7636, appendix B.
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier).as_deref(), Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"));
    }
}
