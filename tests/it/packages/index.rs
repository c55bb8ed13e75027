//! An index of Python's packages and a registry of npm's, on this machine, with packages that are made here: good ones,
//! and ones that attack.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::StatusCode,
    response::{Html, IntoResponse, Response},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, Crc, write::DeflateEncoder, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::network::origin::serve_tls;

/// Loopback, and not 127.0.0.1, which clients reach without a proxy.
const ADDRESS: &str = "127.0.0.2:0";
/// Where the files of some packages are, which is not the index.
pub const ELSEWHERE: &str = "https://127.0.0.3:4433";
/// What a bomb unpacks to, in bytes.
pub const BOMB_BYTES: usize = 400 << 20;

/// A source package that needs no other package to be built, and what builds it.
const BUILT: &str = r#"[project]
name = "built"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"#;
const BACKEND: &str = r#"import os, zipfile
FILES = {
    "built.py": "BY = 'its backend'\n",
    "built-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n",
    "built-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, record = "built-1.0-py3-none-any.whl", "built-1.0.dist-info/RECORD"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in FILES.items(): wheel.writestr(path, text)
        wheel.writestr(record, "".join(path + ",,\n" for path in [*FILES, record]))
    return name
"#;

pub struct Index {
    pub address: SocketAddr,
    scheme: &'static str,
    files: Arc<Files>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Files {
    /// By package: file name and the digest that the index tells.
    python: BTreeMap<&'static str, Vec<(String, String)>>,
    npm: BTreeMap<&'static str, Value>,
    bodies: BTreeMap<String, Bytes>,
    served: AtomicUsize,
}

impl Index {
    pub async fn start() -> Self {
        Self::serving(None).await
    }

    /// Over TLS.
    pub async fn over_tls(acceptor: TlsAcceptor) -> Self {
        Self::serving(Some(acceptor)).await
    }

    async fn serving(acceptor: Option<TlsAcceptor>) -> Self {
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind(ADDRESS).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let files = Arc::new(Files::all(&format!("{scheme}://{address}")));
        let router = Router::new()
            .route("/simple/{name}/", get(simple))
            .route("/npm/{name}", get(registry))
            .route("/files/{name}", get(file))
            .with_state(Arc::clone(&files));
        let mut serving = JoinSet::new();
        match acceptor {
            Some(acceptor) => serving.spawn(serve_tls(listener, router, acceptor)),
            None => serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") }),
        };
        Self { address, scheme, files, _serving: serving }
    }

    /// The settings of a server that uses it.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        [
            ("SANDBOX_PACKAGES__PYTHON_INDEX", format!("{}://{}/simple", self.scheme, self.address)),
            ("SANDBOX_PACKAGES__NPM_REGISTRY", format!("{}://{}/npm", self.scheme, self.address)),
        ]
    }

    /// The files of some of Python's packages, for another index.
    pub fn wheels(&self, packages: &[&str]) -> Vec<(String, Bytes)> {
        let files = packages.iter().flat_map(|name| &self.files.python[name]);
        files.map(|(file, _)| (file.clone(), self.files.bodies[file].clone())).collect()
    }

    /// What the registry tells of a package, and its file.
    pub fn tarball(&self, name: &str) -> (Value, String, Bytes) {
        let file = format!("{name}-1.0.0.tgz");
        (self.files.npm[name].clone(), file.clone(), self.files.bodies[&file].clone())
    }

    /// Files that were sent so far.
    pub fn served(&self) -> usize {
        self.files.served.load(Ordering::Relaxed)
    }
}

async fn simple(State(files): State<Arc<Files>>, Path(name): Path<String>) -> Response {
    if name == "endless" {
        let pieces = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 4096])));
        return Body::from_stream(pieces).into_response();
    }
    if name == "silent" {
        return std::future::pending().await;
    }
    if name == "elsewhere" {
        let file = "elsewhere-1.0-py3-none-any.whl";
        let link = format!("<a href=\"{ELSEWHERE}/{file}#sha256={}\">{file}</a>", "0".repeat(64));
        return Html(format!("<!DOCTYPE html><html><body>{link}</body></html>")).into_response();
    }
    let Some(all) = files.python.get(name.as_str()) else { return StatusCode::NOT_FOUND.into_response() };
    let link = |(file, digest): &(String, String)| format!("<a href=\"/files/{file}#sha256={digest}\">{file}</a>\n");
    Html(format!("<!DOCTYPE html><html><body>{}</body></html>", all.iter().map(link).collect::<String>()))
        .into_response()
}

async fn registry(State(files): State<Arc<Files>>, Path(name): Path<String>) -> Response {
    files.npm.get(name.as_str()).map_or_else(|| StatusCode::NOT_FOUND.into_response(), |one| Json(one).into_response())
}

async fn file(State(files): State<Arc<Files>>, Path(name): Path<String>) -> Response {
    files.served.fetch_add(1, Ordering::Relaxed);
    files.bodies.get(&name).map_or_else(|| StatusCode::NOT_FOUND.into_response(), |bytes| bytes.clone().into_response())
}

impl Files {
    /// With addresses that begin with this one.
    fn all(base: &str) -> Self {
        let mut files = Self::default();
        for version in ["1.0", "2.0"] {
            let code = format!("VALUE = '{version}'\ndef say():\n    print('tiny says', VALUE)\n");
            files.wheel("tiny", version, &[], &[("tiny.py", code.as_bytes())]);
        }
        // That of the API's example.
        files.wheel("humanize", "1.0", &[], &[("humanize.py", b"")]);
        files.wheel("needs-tiny", "1.0", &["tiny<2"], &[("needs_tiny.py", b"import tiny\nVALUE = tiny.VALUE\n")]);
        files.wheel("pins-numpy", "1.0", &["numpy==1.0"], &[("pins_numpy.py", b"")]);
        files.wheel("bomb", "1.0", &[], &[("bomb.bin", &vec![0; BOMB_BYTES])]);
        files.wheel("climb", "1.0", &[], &[("climb.py", b""), ("../../../escaped.py", b"print('escaped')")]);
        let many: Vec<_> = (0..800).map(|n| (format!("many/m{n}.py"), format!("V = {n}\n").repeat(200))).collect();
        let many: Vec<_> = many.iter().map(|(name, code)| (name.as_str(), code.as_bytes())).collect();
        files.wheel("many", "1.0", &[], &many);
        files.wheel("liar", "1.0", &[], &[("liar.py", b"")]);
        for (_, digest) in files.python.get_mut("liar").expect("it is there") {
            *digest = "0".repeat(64);
        }
        let source = tgz(&[(
            "source-1.0/setup.py",
            "open('/data/built', 'w')\nfrom setuptools import setup\nsetup(name='source', version='1.0')\n",
        )]);
        files.add("source", "source-1.0.tar.gz".to_owned(), source.into());
        let built = tgz(&[("built-1.0/pyproject.toml", BUILT), ("built-1.0/backend.py", BACKEND)]);
        files.add("built", "built-1.0.tar.gz".to_owned(), built.into());
        files.npm(base, "left", "1.0.0", &json!({}), "module.exports = 'left';");
        files.npm(
            base,
            "uses-left",
            "1.0.0",
            &json!({"dependencies": {"left": "^1.0.0"}}),
            "module.exports = require('left') + ' used';",
        );
        let script = json!({"scripts": {"postinstall": "node -e \"require('fs').writeFileSync('ran', '')\""}});
        files.npm(base, "scripted", "1.0.0", &script, "module.exports = require('fs').existsSync(__dirname + '/ran');");
        files.npm(base, "npm-liar", "1.0.0", &json!({}), "");
        files.npm(ELSEWHERE, "npm-elsewhere", "1.0.0", &json!({}), "");
        files.npm.get_mut("npm-liar").expect("it is there")["versions"]["1.0.0"]["dist"]["integrity"] =
            format!("sha512-{}", STANDARD.encode([0; 64])).into();
        files
    }

    fn wheel(&mut self, name: &'static str, version: &str, requires: &[&str], files: &[(&str, &[u8])]) {
        let plain = name.replace('-', "_");
        let info = format!("{plain}-{version}.dist-info");
        let requires = requires.iter().map(|one| format!("Requires-Dist: {one}\n")).collect::<Vec<_>>().concat();
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}");
        let about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        let scripts = format!("[console_scripts]\n{name}-say = {plain}:say\n");
        let mut all: Vec<(String, &[u8])> = files.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        all.push((format!("{info}/METADATA"), metadata.as_bytes()));
        all.push((format!("{info}/WHEEL"), about.as_bytes()));
        all.push((format!("{info}/entry_points.txt"), scripts.as_bytes()));
        let record = all.iter().map(|(name, _)| format!("{name},,\n")).collect::<Vec<_>>().concat();
        let record = format!("{record}{info}/RECORD,,\n");
        all.push((format!("{info}/RECORD"), record.as_bytes()));
        self.add(name, format!("{plain}-{version}-py3-none-any.whl"), zip(&all).into());
    }

    fn add(&mut self, name: &'static str, file: String, bytes: Bytes) {
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        self.python.entry(name).or_default().push((file.clone(), digest));
        self.bodies.insert(file, bytes);
    }

    fn npm(&mut self, base: &str, name: &'static str, version: &str, more: &Value, code: &str) {
        let mut about = json!({"name": name, "version": version, "main": "index.js"});
        about.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let bytes = tgz(&[("package/package.json", &about.to_string()), ("package/index.js", code)]);
        let file = format!("{name}-{version}.tgz");
        about["dist"] = json!({
            "tarball": format!("{base}/files/{file}"),
            "integrity": format!("sha512-{}", STANDARD.encode(Sha512::digest(&bytes))),
        });
        self.npm.insert(name, json!({"name": name, "dist-tags": {"latest": version}, "versions": {version: about}}));
        self.bodies.insert(file, bytes.into());
    }
}

fn tgz(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, text.as_bytes()).expect("an entry");
    }
    archive.into_inner().expect("an archive").finish().expect("compressed")
}

fn le(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("it is small").to_le_bytes()
}

/// By hand, since no writer of archives makes one with `..` in it.
fn zip(files: &[(String, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let mut crc = Crc::new();
        crc.update(bytes);
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflated.write_all(bytes).expect("deflated");
        let deflated = deflated.finish().expect("deflated");
        let length = u16::try_from(name.len()).expect("a short name").to_le_bytes();
        let (at, mut common) = (out.len(), Vec::new());
        common.extend([20, 0, 0, 0, 8, 0, 0, 0, 0x21, 0x50]);
        common.extend(crc.sum().to_le_bytes());
        common.extend(le(deflated.len()));
        common.extend(le(bytes.len()));
        common.extend(length);
        common.extend([0, 0]);
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(name.as_bytes());
        out.extend(deflated);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        // No comment, disk 0, no internal attributes; a plain file of mode 0644.
        directory.extend([0; 6]);
        directory.extend((0o100_644_u32 << 16).to_le_bytes());
        directory.extend(le(at));
        directory.extend(name.as_bytes());
    }
    let count = u16::try_from(files.len()).expect("few files").to_le_bytes();
    let at = out.len();
    let length = directory.len();
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.repeat(2));
    out.extend(le(length));
    out.extend(le(at));
    out.extend([0, 0]);
    out
}
