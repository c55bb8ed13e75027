//! Checks `Host` and `Origin`, against DNS rebinding and foreign pages, and which host serves files when these have a
//! separate origin. Also the headers by which browsers keep apart what is answered.
//!
//! The MCP specification demands the `Origin` check (2026-07-28, basic/transports/streamable-http).

use std::{collections::HashSet, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tower_http::cors::{AllowHeaders, CorsLayer};

use super::{Reply, error::ApiError, is_below, single};
use crate::domain::{Code, Failure};

/// What pages of other origins may read of an answer beside its body.
const EXPOSED: [HeaderName; 14] = [
    header::WWW_AUTHENTICATE,
    header::ETAG,
    header::LOCATION,
    header::CONTENT_DISPOSITION,
    header::ACCEPT_RANGES,
    header::CONTENT_RANGE,
    header::RETRY_AFTER,
    header::ALLOW,
    HeaderName::from_static("deprecation"),
    HeaderName::from_static("idempotency-replayed"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("sandbox-truncated"),
    HeaderName::from_static("sandbox-unanswered"),
];

/// Headers of every answer that does not set them itself.
const ALWAYS: [(&str, &str); 6] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The allowed host names, lower case, without ports.
#[derive(Debug, Clone)]
pub struct Names {
    hosts: HashSet<String>,
    /// The host at which only files are served, and what links begin with.
    files: Option<(String, String)>,
    /// Foreign pages that may use the API.
    origins: HashSet<String>,
}

impl Names {
    /// The host of the public address, this machine's loopback names, and more.
    pub fn new(public_base_url: &Uri, more: impl IntoIterator<Item = String>) -> Self {
        let public = public_base_url.host().map(str::to_lowercase);
        let hosts = LOOPBACK.iter().map(|name| (*name).to_owned()).chain(public).chain(more);
        let hosts = hosts.map(|name| name.trim().to_lowercase()).filter(|name| !name.is_empty()).collect();
        Self { hosts, files: None, origins: HashSet::new() }
    }

    /// Serves files only at the host of this address, and nothing else there.
    #[must_use]
    pub fn with_files_at(self, base_url: Option<&Uri>) -> Self {
        let Some((url, host)) = base_url.and_then(|url| Some((url, url.host()?.to_lowercase()))) else { return self };
        let base = url.to_string().trim_end_matches('/').to_lowercase();
        let hosts = self.hosts.into_iter().chain([host.clone()]).collect();
        Self { hosts, files: Some((host, base)), ..self }
    }

    /// Sends a request for a file to the host of files, and refuses any other there.
    fn elsewhere(&self, request: &Request) -> Option<Response> {
        let (_, base) = self.files.as_ref()?;
        let at_files = self.is_of_files(request.headers().get(header::HOST)?.to_str().ok()?);
        let path = request.uri().path();
        let is_file = is_below("/files", path);
        if at_files == is_file {
            return None;
        }
        let moved = || {
            let target = request.uri().path_and_query()?;
            let headers = [(header::LOCATION, format!("{base}{target}")), (header::CACHE_CONTROL, "no-store".into())];
            Some((StatusCode::TEMPORARY_REDIRECT, headers).into_response())
        };
        let redirects = is_file && matches!(*request.method(), Method::GET | Method::HEAD);
        redirects.then(moved).flatten().or_else(|| {
            let why = "At this address only files are served: use the server's own address.";
            Some(ApiError::new(Code::NotFound, why).into_response())
        })
    }

    /// Lets the pages of these origins use the API too.
    #[must_use]
    pub fn with_origins<'a>(self, origins: impl Iterator<Item = &'a str>) -> Self {
        let origins = origins.map(|origin| origin.trim().to_lowercase()).filter(|origin| !origin.is_empty());
        Self { origins: origins.collect(), ..self }
    }

    /// What browsers let the pages of those origins do; `None` when there are none.
    pub fn cors(&self) -> Option<CorsLayer> {
        let origins = self.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect::<Vec<_>>();
        (!origins.is_empty()).then(|| {
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
                .allow_headers(AllowHeaders::mirror_request())
                .expose_headers(EXPOSED)
                .max_age(Duration::from_hours(1))
        })
    }

    fn host_is_ours(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        // An authority may hold `user@`, and its parser lets a port be any text; a Host header may have neither.
        let port = host.strip_prefix(authority.host()).map(|rest| rest.strip_prefix(':').unwrap_or(rest));
        port.is_some_and(|port| port.is_empty() || port.parse::<u16>().is_ok())
            && self.hosts.contains(&authority.host().to_lowercase())
    }

    /// A host of ours may use any port and scheme, since a published port or a proxy may differ from ours. Pages that
    /// programs write need nothing but files, so the origin of files is a foreign one.
    fn origin_is_ours(&self, origin: &str) -> bool {
        let lower = origin.to_lowercase();
        if self.origins.contains(&lower) {
            return true;
        }
        let rest = lower.strip_prefix("http://").or_else(|| lower.strip_prefix("https://"));
        rest.is_some_and(|host| !host.contains('/') && self.host_is_ours(host) && !self.is_of_files(host))
    }

    /// Whether this is the host of files, at any port.
    fn is_of_files(&self, host: &str) -> bool {
        let (Some((files_host, _)), Ok(authority)) = (&self.files, host.parse::<Authority>()) else { return false };
        authority.host().eq_ignore_ascii_case(files_host)
    }

    fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        let one = |name: HeaderName| {
            single(headers, &name).map(|value| value.map(|value| value.to_str().unwrap_or("\u{fffd}")))
        };
        let host = one(header::HOST)?
            .ok_or_else(|| Failure::new(Code::InvalidRequest, "The header `Host` is missing: send it."))?;
        let same = uri.authority().is_none_or(|authority| authority.as_str().eq_ignore_ascii_case(host));
        if !same || !self.host_is_ours(host) {
            return Err(Failure::new(
                Code::Forbidden,
                "This server does not answer to that host name: the operator adds it with PUBLIC_BASE_URL or \
                 SANDBOX_SERVER__ALLOWED_HOSTS.",
            ));
        }
        match one(header::ORIGIN)? {
            Some(origin) if !self.origin_is_ours(origin) => Err(Failure::new(
                Code::Forbidden,
                "Pages of that origin may not use this server: set PUBLIC_BASE_URL to the page's address, or name the \
                 page's origin in SANDBOX_SERVER__CORS_ORIGINS.",
            )),
            _ => Ok(()),
        }
    }
}

/// Lets requests pass that are addressed to us and come from no foreign page.
pub(super) async fn check(State(names): State<Arc<Names>>, request: Request, next: Next) -> Reply {
    names.check(request.uri(), request.headers())?;
    match names.elsewhere(&request) {
        Some(answer) => Ok(answer),
        None => Ok(next.run(request).await),
    }
}

/// Adds the headers that every answer carries.
pub(super) async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in ALWAYS {
        response.headers_mut().entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new(&Uri::from_static("https://Sandbox.Example.com:8443"), ["extra.test".to_owned(), " ".to_owned()])
    }

    #[test]
    fn hosts() {
        let names = names();
        for good in ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:9", "sandbox.example.com", "extra.test:80"] {
            assert!(names.host_is_ours(good), "{good}");
        }
        for bad in [
            "",
            "evil.test",
            "localhost.evil.test",
            "127.0.0.2",
            "a@localhost",
            "localhost:80.evil.test",
            "local host",
            "localhost:x y",
        ] {
            assert!(!names.host_is_ours(bad), "{bad}");
        }
    }

    #[test]
    fn origins() {
        let names = names();
        for good in ["https://sandbox.example.com:8443", "http://localhost:3000", "http://[::1]", "https://extra.test"]
        {
            assert!(names.origin_is_ours(good), "{good}");
        }
        for bad in [
            "null",
            "",
            "https://sandbox.example.com.evil.test",
            "https://evil.test",
            "file://localhost",
            "http://localhost/x",
            "http://a@localhost",
            "localhost",
        ] {
            assert!(!names.origin_is_ours(bad), "{bad}");
        }
    }

    #[test]
    fn the_host_of_files_serves_files_and_no_other_host_does() {
        let files = Uri::from_static("https://Files.example.com");
        let request = |method: Method, host: &str, path: &str| {
            let request = axum::http::Request::builder().method(method).uri(path).header("host", host);
            request.body(axum::body::Body::empty()).expect("a request")
        };
        let answer = |names: &Names, method, host, path| {
            let request = request(method, host, path);
            names.check(request.uri(), request.headers()).expect("our host");
            names.elsewhere(&request).map(|response| {
                let to = response.headers().get("location").map(|to| to.to_str().expect("text").to_owned());
                (response.status().as_u16(), to)
            })
        };
        let names = names().with_files_at(Some(&files));
        let get = Method::GET;
        assert_eq!(answer(&names, get.clone(), "files.example.com", "/files/c/a?sig=x"), None);
        assert_eq!(answer(&names, get.clone(), "localhost", "/filesystem"), None);
        for path in ["/", "/mcp", "/v1/runs", "/filesystem", "/openapi.json"] {
            assert_eq!(answer(&names, get.clone(), "FILES.example.com:443", path), Some((404, None)), "{path}");
        }
        let moved = Some((307, Some("https://files.example.com/files/c/a?sig=x".to_owned())));
        for host in ["sandbox.example.com", "localhost:8080"] {
            assert_eq!(answer(&names, get.clone(), host, "/files/c/a?sig=x"), moved, "{host}");
            assert_eq!(answer(&names, Method::POST, host, "/files/c/a?sig=x"), Some((404, None)), "{host}");
        }
        let same = self::names().with_files_at(None);
        assert_eq!(answer(&same, get.clone(), "localhost", "/files/c/a"), None);
        assert_eq!(answer(&same, get, "localhost", "/mcp"), None);
    }

    /// A browser shows files there as pages, and leaves out the default port of an origin.
    #[test]
    fn the_origin_of_files_is_foreign_in_every_spelling() {
        for base in ["https://Files.example.com", "https://files.example.com:443", "http://files.example.com:8080/"] {
            let names = names().with_files_at(Some(&base.parse().expect("an address")));
            for origin in [
                "https://files.example.com",
                "https://FILES.example.com:443",
                "http://files.example.com",
                "http://files.example.com:80",
                "https://files.example.com:8080",
                "https://files.example.com:",
            ] {
                assert!(!names.origin_is_ours(origin), "{origin} with {base}");
            }
            assert!(names.origin_is_ours("https://sandbox.example.com:8443"));
            let allowing = names.with_origins(["https://files.example.com"].into_iter());
            assert!(allowing.origin_is_ours("https://files.example.com"), "the operator names it");
        }
    }

    #[test]
    fn requests() {
        let names = names();
        let with = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            headers
        };
        let check = |uri: &'static str, pairs: &[(&'static str, &'static str)]| {
            names.check(&Uri::from_static(uri), &with(pairs)).map_err(|failure| failure.code)
        };
        assert_eq!(check("/", &[("host", "localhost:8080")]), Ok(()));
        assert_eq!(check("http://localhost:8080/", &[("host", "localhost:8080")]), Ok(()));
        assert_eq!(check("/", &[]), Err(Code::InvalidRequest));
        assert_eq!(check("/", &[("host", "localhost"), ("host", "localhost")]), Err(Code::InvalidRequest));
        assert_eq!(check("http://evil.test/", &[("host", "localhost")]), Err(Code::Forbidden));
        assert_eq!(check("/", &[("host", "evil.test")]), Err(Code::Forbidden));
        assert_eq!(check("/", &[("host", "localhost"), ("origin", "http://evil.test")]), Err(Code::Forbidden));
        let twice = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://localhost")];
        assert_eq!(check("/", &twice), Err(Code::InvalidRequest));
    }
}
