//! Clients that are named by the address of a document about them (client id metadata documents,
//! draft-ietf-oauth-client-id-metadata-document). What was read is remembered for a while; nothing is stored.

use std::{collections::HashMap, net::IpAddr, ops::Range, time::Duration};

use serde_json::{Map, Value};
use tracing::info;
use url::{Host, Url};

use super::{
    Refusal, SignIn,
    clients::{REDIRECTS_MAX, Registration, is_usable, shown_name},
};
use crate::{
    domain::text::{ms, whole},
    ports::{
        sign_in::RegisteredClient,
        web::{NamedBy, WebError},
    },
};

/// The longest address of a document, in bytes.
const ADDRESS_BYTES_MAX: usize = 500;
/// Documents that are remembered.
const KNOWN_MAX: usize = 1000;
/// How long a document is remembered: what its server says, within these.
const KEPT_MIN: Duration = Duration::from_mins(5);
const KEPT_MAX: Duration = Duration::from_hours(24);
/// The same for a document that could not be read, so that its server is not asked again and again.
const FAILURE_KEPT: Duration = Duration::from_mins(1);

/// A client, or why its document is none, and while that holds, in unix milliseconds: not before the document was read,
/// as a clock that was ahead then may have been set.
pub(super) type Documents = HashMap<String, (Range<i64>, Result<RegisteredClient, &'static str>)>;

/// Whether an id is the address of a document.
pub(super) fn is_document(id: &str) -> bool {
    id.starts_with("https://")
}

impl SignIn {
    /// The client that a document describes.
    ///
    /// # Errors
    /// [`Refusal::ClientDocument`]; [`Refusal::TooMany`].
    pub(super) async fn client_of_document(&self, id: &str, from: IpAddr) -> Result<RegisteredClient, Refusal> {
        check_address(id).map_err(Refusal::ClientDocument)?;
        let known = self.documents.lock().get(id).filter(|(holds, _)| holds.contains(&self.now())).cloned();
        if let Some((_, found)) = known {
            return found.map_err(Refusal::ClientDocument);
        }
        self.rates.outgoing.take(&from)?;
        self.fetch(id).await
    }

    async fn fetch(&self, id: &str) -> Result<RegisteredClient, Refusal> {
        let request = http::Request::get(id).header(http::header::ACCEPT, "application/json").body(Vec::new());
        let request = request.map_err(|_| Refusal::ClientDocument("its address is none"))?;
        let read = match self.web.send(NamedBy::Client, request).await {
            Ok(answer) => read(id, &answer).map(|client| (client, kept(answer.headers()))),
            // It was not asked for: that says nothing of the document, and is not remembered of it.
            Err(WebError::Busy) => return Err(Refusal::TooMany),
            Err(error) => {
                info!(client = id, %error, "sign-in: the document of a client was not read");
                Err("it could not be fetched")
            }
        };
        let kept = read.as_ref().map_or(FAILURE_KEPT, |(_, kept)| *kept);
        let found = read.map(|(client, _)| client);
        let (now, mut known) = (self.now(), self.documents.lock());
        known.retain(|_, (holds, _)| holds.contains(&now));
        if known.len() >= KNOWN_MAX {
            let first = known.iter().min_by_key(|(_, (holds, _))| holds.end).map(|(id, _)| id.clone());
            first.map(|first| known.remove(&first));
        }
        let until = now.saturating_add(whole(ms(kept)));
        known.insert(id.to_owned(), (now..until, found.clone()));
        found.map_err(Refusal::ClientDocument)
    }
}

/// An address has one spelling: that of a browser, without a user, a part, steps upwards or a port, and with a path.
fn check_address(id: &str) -> Result<(), &'static str> {
    let url = Url::parse(id).ok().filter(|url| url.as_str() == id && id.len() <= ADDRESS_BYTES_MAX);
    let url = url.ok_or("its address is not written as browsers write it")?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    if !is_plain || url.port().is_some() || !matches!(url.host(), Some(Host::Domain(_))) {
        return Err("its address must be https with a host name, and without a user, a port or a part");
    }
    if url.path() == "/" { Err("its address has no path") } else { Ok(()) }
}

fn read(id: &str, answer: &http::Response<Vec<u8>>) -> Result<RegisteredClient, &'static str> {
    if answer.status() != http::StatusCode::OK {
        return Err("its server does not have it");
    }
    if !is_json(answer.headers()) {
        return Err("its server does not call it JSON");
    }
    let document: Map<String, Value> = serde_json::from_slice(answer.body()).map_err(|_| "it is no JSON object")?;
    if document.get("client_id").and_then(Value::as_str) != Some(id) {
        return Err("its client_id is not its address");
    }
    let said = Registration::read(&document);
    // Anyone can read the document, so a secret in it is none.
    if document.contains_key("client_secret") || said.auth_method.starts_with("client_secret") {
        return Err("it asks for a secret, which such a client cannot have");
    }
    // A client that proves itself in another way only must not be taken for one that anyone may be.
    let methods = document.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
    let lists_none = methods.is_some_and(|methods| methods.iter().any(|one| one == "none"));
    if !matches!(said.auth_method.as_str(), "" | "none") && !lists_none {
        return Err("its token_endpoint_auth_method is not `none`, which is all that is offered here");
    }
    let usable = said.redirects.into_iter().filter(|redirect| is_usable(redirect));
    let redirects: Vec<_> = usable.take(REDIRECTS_MAX).collect();
    if redirects.is_empty() {
        return Err("it has no redirect address that can be used");
    }
    Ok(RegisteredClient { id: id.to_owned(), name: shown_name(&said.name), redirects, secret: None })
}

/// Whether an answer has a media type of JSON. Hosts that serve what anyone uploads call most of it text.
fn is_json(headers: &http::HeaderMap) -> bool {
    let media = headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
}

/// How long a server says that its answer holds.
fn kept(headers: &http::HeaderMap) -> Duration {
    let directives = headers.get(http::header::CACHE_CONTROL).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let max_age = directives.split(',').find_map(|directive| directive.trim().strip_prefix("max-age="));
    let seconds = max_age.and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    Duration::from_secs(seconds).clamp(KEPT_MIN, KEPT_MAX)
}
