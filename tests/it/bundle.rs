//! The page's bundle: made from the sources that are here, served compressed and kept by browsers.

use std::{fmt::Write as _, path::Path};

use reqwest::{StatusCode, header};
use sha2::{Digest, Sha256};

use crate::support::FakeServer;

/// The names below `static/` in a folder, with one of these endings.
fn listed(root: &Path, folder: &str, endings: &[&str]) -> Vec<String> {
    let entries = std::fs::read_dir(root.join(folder)).expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .filter(|name| endings.is_empty() || endings.iter().any(|ending| name.ends_with(ending)))
        .map(|name| if folder == "." { name } else { format!("{folder}/{name}") })
        .collect()
}

/// As in `static/bundle.mjs`.
fn digest(root: &Path, mut names: Vec<String>) -> String {
    names.sort();
    let sum = names.iter().fold(Sha256::new(), |sum, name| {
        let content = std::fs::read(root.join(name)).expect("a file");
        sum.chain_update(name).chain_update([0]).chain_update(Sha256::digest(content))
    });
    let mut text = String::new();
    for byte in sum.finalize() {
        write!(text, "{byte:02x}").expect("a string");
    }
    text
}

#[test]
fn bundle_is_made_from_these_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
    let mut sources = listed(&root, ".", &[".js", ".css"]);
    sources.extend(["js", "js/admin", "js/parts"].into_iter().flat_map(|folder| listed(&root, folder, &[".js"])));
    sources.extend(listed(&root, "css", &[".css"]));
    sources.extend(["bundle.mjs".to_owned(), "package-lock.json".to_owned()]);
    let expected = format!("{}\n{}\n", digest(&root, sources), digest(&root, listed(&root, "dist", &[])));
    let written = std::fs::read_to_string(root.join("dist.digest")).expect("a digest");
    assert_eq!(written, expected, "static/dist is not what these sources make: run static/build.sh");
}

#[tokio::test]
async fn page_is_compressed_and_its_parts_are_immutable() {
    let server = FakeServer::start().await;
    let get = async |path: &str, encoding: &str| {
        let request = server.http.get(format!("http://{}{path}", server.address));
        request.header(header::ACCEPT_ENCODING, encoding).send().await.expect("an answer")
    };
    let index = get("/", "identity").await;
    assert_eq!(index.headers()[header::CACHE_CONTROL], "no-cache");
    let policy = index.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("text").to_owned();
    assert!(!policy.contains("unsafe"), "{policy}");
    let tag = index.headers()[header::ETAG].clone();
    let html = index.text().await.expect("text");
    let script = html.split('"').find(|part| part.ends_with("/app.js")).expect("a script").to_owned();
    assert!(script.starts_with("assets/") && !html.contains("@assets"), "{script}");
    let script = format!("/{script}");
    for page in ["/", "/admin"] {
        let html = get(page, "identity").await.text().await.expect("text");
        let shared = [" id=\"i-close\"", " id=\"confirm-dialog\""].map(|part| html.matches(part).count());
        assert!(shared == [1, 1] && !html.contains("\n  @"), "{page}: {shared:?}");
    }

    let plain = get(&script, "identity").await;
    assert_eq!(plain.headers()[header::CACHE_CONTROL], "public, max-age=31536000, immutable");
    assert_eq!(plain.headers()[header::VARY], "accept-encoding");
    let plain = plain.bytes().await.expect("bytes");
    for (accepted, sent) in [("gzip, deflate", "gzip"), ("gzip, deflate, br", "br"), ("br;q=0, gzip;q=0.5", "gzip")] {
        let answer = get(&script, accepted).await;
        assert_eq!(answer.headers()[header::CONTENT_ENCODING], sent, "{accepted}");
        let body = answer.bytes().await.expect("bytes");
        let mut back = Vec::new();
        if sent == "br" {
            brotli::BrotliDecompress(&mut &body[..], &mut back).expect("brotli");
        } else {
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&body[..]), &mut back).expect("gzip");
        }
        assert_eq!(back, plain, "{accepted}");
        assert!(body.len() * 2 < plain.len(), "{accepted}: {} of {}", body.len(), plain.len());
    }
    for refused in ["", "deflate", "br;q=0", "*;q=0"] {
        assert!(!get(&script, refused).await.headers().contains_key(header::CONTENT_ENCODING), "{refused}");
    }

    // An entity tag names one encoding of the page.
    let again = |encoding: &str| {
        let request = server.http.get(format!("http://{}/", server.address)).header(header::IF_NONE_MATCH, tag.clone());
        request.header(header::ACCEPT_ENCODING, encoding).send()
    };
    assert_eq!(again("identity").await.expect("an answer").status(), StatusCode::NOT_MODIFIED);
    assert_eq!(again("gzip").await.expect("an answer").status(), StatusCode::OK);
    assert_eq!(get("/assets/other/app.js", "identity").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(get("/vendor/codemirror.js", "identity").await.status(), StatusCode::NOT_FOUND);

    // Only the page itself may hold the frame, and what is inside has another origin.
    let frame = get("/frame", "identity").await;
    assert_eq!(frame.headers()["x-frame-options"], "SAMEORIGIN");
    let policy = frame.headers()[header::CONTENT_SECURITY_POLICY].to_str().expect("text");
    for rule in ["sandbox allow-scripts;", "default-src 'none'", "frame-ancestors 'self'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("allow-same-origin") && !policy.contains("connect-src"), "{policy}");
    server.stop().await;
}
