//! The web page, embedded in the binary, and its security headers.
//!
//! What `static/dist` holds is served below an address that contains its digest, so a browser may keep it without
//! limit; the few addresses that stay the same are checked again each time. A file is compressed when it is first
//! asked for.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD};
use bytes::Bytes;
use include_dir::{Dir, include_dir};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

static BUNDLE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/static/dist");
/// The digests of the sources and of the bundle. By this file a build notices that the bundle has changed.
const DIGEST: &str = include_str!("../../../static/dist.digest");
/// In a page: the folder of the bundle.
const ASSETS: &str = "@assets";
/// In a page: the mark of what several pages have, and what replaces it.
const SHARED: [(&str, &str); 2] = [
    ("@symbols", include_str!("../../../static/shared/symbols.html")),
    ("@dialogs", include_str!("../../../static/shared/dialogs.html")),
];

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data: blob:; font-src 'self'; frame-src 'self' blob:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// The policy of the frame that shows a program's HTML: an origin of its own, scripts, and no way out.
const FRAME_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' data: \
                            blob:; style-src 'unsafe-inline' data: blob:; img-src data: blob:; font-src data: blob:; \
                            media-src data: blob:; worker-src data: blob:; base-uri 'none'; form-action 'none'; \
                            frame-ancestors 'self'";

const CHECKED: &str = "no-cache";
const IMMUTABLE: &str = "public, max-age=31536000, immutable";

type Compress = fn(&[u8]) -> io::Result<Vec<u8>>;

/// The best first.
const ENCODINGS: [(&str, Compress); 2] = [("br", brotli), ("gzip", gzip)];

/// `/`, `/docs`, `/admin` and what the pages are made of: one route for each embedded file, so nothing is looked up by
/// what a client typed.
pub fn router() -> Router {
    let folder = format!("assets/{}", short(DIGEST.as_bytes()));
    let page = |source: &str| {
        let whole = SHARED.into_iter().fold(source.to_owned(), |text, (mark, shared)| text.replace(mark, shared));
        Asset::new(whole.replace(ASSETS, &folder), "text/html; charset=utf-8", CHECKED)
    };
    let icon = Asset::new(include_str!("../../../static/favicon.svg"), "image/svg+xml", CHECKED);
    let index = page(include_str!("../../../static/index.html"));
    let frame = page(include_str!("../../../static/frame.html"));
    let frame = Asset { policy: FRAME_POLICY, frames: "SAMEORIGIN", ..frame };
    let docs = page(include_str!("../../../static/docs.html"));
    let admin = page(include_str!("../../../static/admin.html"));
    let pages = [("/", index.clone()), ("/index.html", index), ("/frame", frame), ("/docs", docs), ("/admin", admin)];
    let pages = pages.into_iter().chain([("/favicon.svg", icon)]);
    let router = pages.fold(Router::new(), |router, (path, asset)| asset.at(path, router));
    BUNDLE.files().fold(router, |router, file| match file.path().to_str() {
        Some(path) => Asset::new(file.contents(), media_type(path), IMMUTABLE).at(&format!("/{folder}/{path}"), router),
        None => router,
    })
}

/// One file, and its compressed forms once they were asked for.
#[derive(Clone)]
struct Asset {
    plain: Bytes,
    kind: &'static str,
    cache: &'static str,
    policy: &'static str,
    frames: &'static str,
    tag: String,
    /// By the index of the encoding in [`ENCODINGS`].
    compressed: Arc<[OnceCell<Bytes>; 2]>,
}

impl Asset {
    fn new(plain: impl Into<Bytes>, kind: &'static str, cache: &'static str) -> Self {
        let plain = plain.into();
        let tag = short(&plain);
        Self { plain, kind, cache, policy: POLICY, frames: "DENY", tag, compressed: Arc::default() }
    }

    fn at(self, path: &str, router: Router) -> Router {
        router.route(path, get(async move |headers: HeaderMap| self.answer(&headers).await))
    }

    async fn answer(&self, request: &HeaderMap) -> Response {
        let encoding = encoding(request);
        let tag = format!("\"{}{}\"", self.tag, encoding.map_or("", |at| ENCODINGS[at].0));
        // A 304 carries them too: a browser takes its headers over into the answer that it kept (RFC 9111, 3.2).
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            (header::CACHE_CONTROL, self.cache),
            (header::VARY, "accept-encoding"),
            (header::CONTENT_SECURITY_POLICY, self.policy),
            (header::X_FRAME_OPTIONS, self.frames),
            (header::ETAG, &tag),
        ];
        let known = request.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
        if known {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        let Some(at) = encoding else { return (headers, self.plain.clone()).into_response() };
        let ((name, compress), plain) = (ENCODINGS[at], self.plain.clone());
        let make = || async { tokio::task::spawn_blocking(move || compress(&plain)).await.map_err(io::Error::other)? };
        match self.compressed[at].get_or_try_init(async || make().await.map(Bytes::from)).await {
            Ok(body) => (headers, [(header::CONTENT_ENCODING, name)], body.clone()).into_response(),
            Err(error) => {
                tracing::warn!(%error, "a file of the page could not be compressed");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// The best encoding that the client accepts. Browsers send no weights except to forbid one.
fn encoding(request: &HeaderMap) -> Option<usize> {
    let accepted = request.get(header::ACCEPT_ENCODING)?.to_str().ok()?;
    let takes = |name: &str| {
        accepted.split(',').any(|item| {
            let (item, weight) = item.split_once(';').unwrap_or((item, ""));
            let refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
            item.trim().eq_ignore_ascii_case(name) && !refused
        })
    };
    ENCODINGS.iter().position(|(name, _)| takes(name))
}

fn brotli(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressed = Vec::new();
    let parameters = brotli::enc::BrotliEncoderParams { quality: 9, lgwin: 20, ..Default::default() };
    brotli::BrotliCompress(&mut &plain[..], &mut compressed, &parameters)?;
    Ok(compressed)
}

fn gzip(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(plain)?;
    encoder.finish()
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}

fn short(content: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(content)[..12])
}
