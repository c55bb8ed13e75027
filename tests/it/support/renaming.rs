//! A socket in front of the engine that forwards everything and replaces some words: it simulates an engine with other
//! features than the real one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};
use tokio_util::task::AbortOnDropHandle;

use super::engines::docker_host;

/// Words and what they become, of the same length.
type Words = &'static [(&'static str, &'static str)];

pub struct Renaming {
    pub host: String,
    changed: Arc<AtomicUsize>,
    _listening: AbortOnDropHandle<()>,
    _folder: TempDir,
}

impl Renaming {
    /// Changes words in what is asked, and others in what is answered.
    pub fn new(asked: Words, answered: Words) -> Self {
        assert!(asked.iter().chain(answered).all(|(from, to)| from.len() == to.len()), "lengths are told beforehand");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("engine.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let changed = Arc::new(AtomicUsize::new(0));
        let listening = tokio::spawn(listen(listener, asked, answered, Arc::clone(&changed)));
        Self {
            host: format!("unix://{}", path.display()),
            changed,
            _listening: AbortOnDropHandle::new(listening),
            _folder: folder,
        }
    }

    /// How many words of what was asked were changed so far.
    pub fn changed(&self) -> usize {
        self.changed.load(Ordering::SeqCst)
    }
}

async fn listen(listener: UnixListener, asked: Words, answered: Words, changed: Arc<AtomicUsize>) {
    while let Ok((ours, _)) = listener.accept().await {
        let changed = Arc::clone(&changed);
        tokio::spawn(async move {
            let real = docker_host().trim_start_matches("unix://").to_owned();
            let (answers, asks) = UnixStream::connect(real).await.expect("the engine").into_split();
            let (from, to) = ours.into_split();
            tokio::join!(carry(from, asks, asked, Some(&changed)), carry(answers, to, answered, None));
        });
    }
}

/// Until either end closes; then the other is closed too.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    words: Words,
    count: Option<&AtomicUsize>,
) {
    let mut held = Vec::new();
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        held.extend_from_slice(&bytes[..read]);
        let found = rename(&mut held, words);
        count.map(|count| count.fetch_add(found, Ordering::SeqCst));
        let sure = held.len() - unsure(&held, words);
        if to.write_all(&held[..sure]).await.is_err() {
            return;
        }
        held.drain(..sure);
    }
    let _ = to.write_all(&held).await;
    let _ = to.shutdown().await;
}

/// Changes every word; how many there were.
fn rename(bytes: &mut [u8], words: Words) -> usize {
    let mut found = 0;
    for (from, to) in words {
        for at in 0..(bytes.len() + 1).saturating_sub(from.len()) {
            if bytes[at..].starts_with(from.as_bytes()) {
                bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
                found += 1;
            }
        }
    }
    found
}

/// How many bytes at the end may be the beginning of a word.
fn unsure(bytes: &[u8], words: Words) -> usize {
    let begun = |word: &str| (1..word.len()).rev().find(|&length| bytes.ends_with(&word.as_bytes()[..length]));
    words.iter().filter_map(|(from, _)| begun(from)).max().unwrap_or(0)
}
