//! What pages of other origins may read of an answer beside its body.

use std::collections::BTreeSet;

use reqwest::Method;

use super::call;
use crate::{
    support::FakeServer,
    tidy::{Source, sources},
};

/// Headers of requests.
const OF_REQUESTS: [&str; 20] = [
    "accept",
    "accept-encoding",
    "authorization",
    "cf-access-jwt-assertion",
    "cf-connecting-ip",
    "cookie",
    "e2b-sandbox-id",
    "e2b-traffic-access-token",
    "expect",
    "host",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "if-range",
    "origin",
    "range",
    "sandbox-sent-on",
    "traceparent",
    "x-access-token",
    "x-api-key",
];
/// Those that every page may read (Fetch, "CORS-safelisted response-header name").
const OPEN: [&str; 4] = ["cache-control", "content-length", "content-type", "last-modified"];
/// Those that are for browsers, proxies and search engines.
const NOT_FOR_PAGES: [&str; 12] = [
    "connection",
    "content-encoding",
    "content-security-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "referrer-policy",
    "set-cookie",
    "upgrade",
    "vary",
    "x-content-type-options",
    "x-frame-options",
    "x-robots-tag",
];

/// The headers that the sources name, as `header::X`, by `from_static` or where they are inserted.
fn named() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let serves = |name: &str| name.starts_with("api/http") && !name.contains("/tests");
    for Source { text, .. } in sources().into_iter().filter(|source| serves(&source.name)) {
        let code = text.split("mod tests {").next().unwrap_or_default();
        for rest in code.split("header::").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // `HeaderMap` is in that module too.
            if !name.is_empty() && !name.contains(char::is_lowercase) {
                found.insert(name.to_lowercase().replace('_', "-"));
            }
        }
        for begin in ["HeaderName::from_static(\"", "headers_mut().insert(\""] {
            let names = code.split(begin).skip(1).filter_map(|rest| rest.split_once('"'));
            found.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    found
}

/// A header that the sources name for the first time has to be exposed, or to be listed here.
#[tokio::test(flavor = "multi_thread")]
async fn pages_that_may_use_the_api_may_read_every_header_that_is_for_clients() {
    const PAGE: &str = "https://app.example.org";
    let server = FakeServer::with(&[("SANDBOX_SERVER__CORS_ORIGINS", PAGE)]).await;
    let shown = call(&server, Method::GET, "/v1/runners").header("origin", PAGE).send().await.expect("an answer");
    let exposed = shown.headers()["access-control-expose-headers"].to_str().expect("text");
    let exposed: BTreeSet<_> = exposed.split(',').map(|name| name.trim().to_lowercase()).collect();
    let others = OF_REQUESTS.into_iter().chain(OPEN).chain(NOT_FOR_PAGES);
    let (named, others) = (named(), others.map(str::to_owned).collect::<BTreeSet<_>>());
    let hidden: Vec<_> = named.difference(&others).filter(|name| !exposed.contains(*name)).collect();
    assert!(hidden.is_empty(), "`EXPOSED` in `guard` lacks {hidden:?}");
    let gone: Vec<_> = others.difference(&named).collect();
    assert!(gone.is_empty(), "no source names {gone:?}");
    server.stop().await;
}
