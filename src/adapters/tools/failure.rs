//! Errors of rmcp and of servers as errors of the port, without secrets: the values of headers and variables, and
//! credentials in an address. The texts are untrusted, so they are bounded and escaped.

use std::{error::Error, io};

use rmcp::{
    model::ErrorData,
    service::{ClientInitializeError, ServiceError},
    transport::{DynamicTransportError, streamable_http_client::StreamableHttpError},
};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use crate::{
    domain::{path::is_misleading, text::chain, tools::secret_lines},
    ports::tools::{Transport, UpstreamError},
};

/// How much of an untrusted text is repeated, in characters.
const TEXT_CHARS_MAX: usize = 500;
/// How much of it is looked through, in characters: half of a secret must not remain at the cut, and one out of a file
/// has up to 64 KiB.
const SEEN_CHARS_MAX: usize = 128 << 10;

/// The texts that no message may contain.
pub(super) struct Secrets(Vec<SecretString>);

impl Secrets {
    pub(super) fn of(transport: &Transport) -> Self {
        let mut secrets: Vec<String> = match transport {
            Transport::Http { url, headers } => of_address(url).chain(exposed(headers)).collect(),
            Transport::Command { env, .. } => exposed(env).collect(),
            Transport::Streams { secrets, .. } => secrets.iter().map(|text| text.expose_secret().to_owned()).collect(),
        };
        // After `Bearer` or `Basic`.
        let parts: Vec<_> = secrets.iter().filter_map(|text| Some(text.split_once(' ')?.1.trim().to_owned())).collect();
        let lines: Vec<_> = secrets.iter().flat_map(|text| secret_lines(text)).map(str::to_owned).collect();
        secrets.extend(parts.into_iter().chain(lines));
        secrets.retain(|text| !text.is_empty());
        // A longer one may hold a shorter one.
        secrets.sort_by_key(|text| std::cmp::Reverse(text.len()));
        Self(secrets.into_iter().map(SecretString::from).collect())
    }

    /// An untrusted text for one line, without secrets.
    pub(super) fn clean(&self, text: &str) -> String {
        let mut text: String = text.chars().take(SEEN_CHARS_MAX).collect();
        for secret in &self.0 {
            text = text.replace(secret.expose_secret(), "…");
        }
        let shown = text.trim().chars().take(TEXT_CHARS_MAX);
        shown.map(|c| if is_misleading(c) { ' ' } else { c }).collect()
    }

    pub(super) fn unavailable(&self, error: &io::Error) -> UpstreamError {
        UpstreamError::Away(self.clean(&error.to_string()))
    }

    pub(super) fn not_begun(&self, error: ClientInitializeError) -> UpstreamError {
        use ClientInitializeError as E;
        match error {
            E::JsonRpcError(error) => self.refused(&error),
            E::TransportError { error, .. } => self.not_sent(&error),
            E::ConnectionClosed(_) => UpstreamError::Away("it ended the connection before the handshake".to_owned()),
            E::Cancelled => UpstreamError::Away("the connection ended".to_owned()),
            E::LegacyFallbackFailed { fallback, .. } => self.not_begun(*fallback),
            E::NoCompatibleProtocolVersion { .. } => {
                UpstreamError::Unusable("it speaks no revision of MCP that this server speaks".to_owned())
            }
            // Their texts hold the whole answer.
            _ => UpstreamError::Unusable("its answer to the handshake is not MCP's".to_owned()),
        }
    }

    pub(super) fn failed(&self, error: &ServiceError) -> UpstreamError {
        match error {
            ServiceError::McpError(error) => self.refused(error),
            ServiceError::TransportSend(error) => self.not_sent(error),
            ServiceError::UnexpectedResponse => UpstreamError::Unusable("it is no such answer".to_owned()),
            ServiceError::TransportClosed => UpstreamError::Away("the connection ended".to_owned()),
            other => UpstreamError::Away(self.clean(&other.to_string())),
        }
    }

    fn refused(&self, error: &ErrorData) -> UpstreamError {
        UpstreamError::Refused(self.clean(&error.message))
    }

    fn not_sent(&self, error: &DynamicTransportError) -> UpstreamError {
        use StreamableHttpError as E;
        let error: &(dyn Error + 'static) = error.error.as_ref();
        let text = self.clean(&chain(error));
        match error.downcast_ref::<E<reqwest::Error>>() {
            Some(
                E::ResponseBodyTooLarge { .. }
                | E::UnexpectedContentType(_)
                | E::UnexpectedServerResponse(_)
                | E::Deserialize(_),
            ) => UpstreamError::Unusable(text),
            Some(E::AuthRequired(_)) => UpstreamError::Away("it asks for a sign-in: HTTP 401".to_owned()),
            Some(E::InsufficientScope(_)) => UpstreamError::Away("its sign-in is not enough: HTTP 403".to_owned()),
            _ => UpstreamError::Away(text),
        }
    }
}

fn exposed(pairs: &[(String, SecretString)]) -> impl Iterator<Item = String> {
    pairs.iter().map(|(_, value)| value.expose_secret().trim().to_owned())
}

/// The parts of an address that may hold a key.
fn of_address(url: &Url) -> impl Iterator<Item = String> {
    let values = url.query_pairs().map(|(_, value)| value.into_owned());
    let texts = [url.password(), url.query()].into_iter().flatten().map(str::to_owned);
    texts.chain(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_clean_and_bounded() {
        let url = Url::parse("https://u:pass-word@example.com/mcp?key=hidden-1").expect("a URL");
        let headers = vec![("Authorization".to_owned(), SecretString::from("Bearer token-1"))];
        let secrets = Secrets::of(&Transport::Http { url, headers });
        let text = "bad token-1, Bearer token-1, hidden-1, pass-word\n\u{202e}\u{200b}end";
        assert_eq!(secrets.clean(text), "bad …, …, …, …   end");
        assert_eq!(secrets.clean(&"x".repeat(100_000)).len(), TEXT_CHARS_MAX);
    }

    #[test]
    fn no_line_of_a_secret_and_no_part_of_a_long_one_is_left() {
        let secrets = |value: &str| {
            let env = vec![("KEY".to_owned(), SecretString::from(value))];
            Secrets::of(&Transport::Command { program: "p".to_owned(), arguments: Vec::new(), env })
        };
        let key = secrets("{\n  \"private_key\": \"MIIEvQIBADAN\",\n  \"id\": 1\n}\n");
        assert_eq!(key.clean("line 2:   \"private_key\": \"MIIEvQIBADAN\",\n"), "line 2:   …");
        assert_eq!(key.clean("{\"code\": 1}"), "{\"code\": 1}");
        let long = "k".repeat(64 << 10);
        assert_eq!(secrets(&long).clean(&format!("KEY={long} is wrong")), "KEY=… is wrong");
    }
}
