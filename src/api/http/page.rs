//! The web page, embedded in the binary, and the headers that keep it what it is.

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD};
use include_dir::{Dir, include_dir};
use sha2::{Digest, Sha256};

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/static");

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Headers of every answer that does not set them itself.
const ALWAYS: [(&str, &str); 6] = [
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// `/`, `/docs` and what the pages are made of: one route for each embedded file, so nothing is looked up by what a
/// client typed.
pub fn router() -> Router {
    let mut router = Router::new();
    for file in files(&FILES) {
        let Some((path, kind)) = file.path().to_str().and_then(|path| Some((path, media_type(path)?))) else {
            continue;
        };
        let bytes = file.contents();
        let tag = etag(bytes);
        let handler = move |headers: HeaderMap| async move { answer(bytes, kind, &tag, &headers) };
        router = match path {
            "index.html" => router.route("/", get(handler.clone())).route("/index.html", get(handler)),
            "docs.html" => router.route("/docs", get(handler)),
            _ => router.route(&format!("/{path}"), get(handler)),
        };
    }
    router
}

fn files(folder: &'static Dir<'static>) -> Vec<&'static include_dir::File<'static>> {
    folder.files().chain(folder.dirs().flat_map(files)).collect()
}

/// Only what a browser asks for is served; how the vendored editor was built is not.
fn media_type(path: &str) -> Option<&'static str> {
    Some(match path.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

fn etag(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..12]))
}

fn answer(bytes: &'static [u8], kind: &'static str, tag: &str, request: &HeaderMap) -> Response {
    // A 304 carries them too: a browser takes its headers over into the answer that it kept (RFC 9111, 3.2).
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::ETAG, tag),
    ];
    let known = request.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    if known { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, bytes).into_response() }
}

/// Adds the headers that every answer carries.
pub async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in ALWAYS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
