//! What goes into a sandbox, in order: the request, then what the program is sent while it runs, and a word to process 1.
//!
//! Lives as long as the run and never ends by itself: dropping the handle early could close the output on some engines.

use std::pin::Pin;

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::input::{Piece, StdinReceiver};
use crate::services::frames;

/// Writes the request, and whatever is to follow. A program that does not read its input is no error.
pub(super) async fn write_stdin(
    mut stdin: Pin<Box<dyn AsyncWrite + Send>>,
    request: Bytes,
    close: bool,
    mut words: mpsc::Receiver<Bytes>,
    mut input: Option<StdinReceiver>,
) {
    let mut written = write(&mut stdin, &request).await;
    if written && close {
        drop(stdin.shutdown().await);
    }
    while written {
        // A piece gives its room back once it is written, and not before.
        let (bytes, _piece) = tokio::select! {
            biased;
            Some(word) = words.recv() => (word, None),
            piece = next(&mut input) => framed(piece),
        };
        written = write(&mut stdin, &bytes).await;
    }
    // Nobody takes anything any more, and whoever waits to send something learns of it.
    drop(input);
    std::future::pending::<()>().await;
}

async fn write(stdin: &mut Pin<Box<dyn AsyncWrite + Send>>, bytes: &Bytes) -> bool {
    stdin.write_all(bytes).await.is_ok() && stdin.flush().await.is_ok()
}

/// The next piece, or once that there is none; then never anything.
async fn next(input: &mut Option<StdinReceiver>) -> Option<Piece> {
    match input {
        Some(fed) => {
            let piece = fed.next().await;
            if piece.is_none() {
                *input = None;
            }
            piece
        }
        None => std::future::pending().await,
    }
}

fn framed(piece: Option<Piece>) -> (Bytes, Option<Piece>) {
    match piece {
        Some(piece) => (frames::stdin(&piece.bytes), Some(piece)),
        None => (frames::stdin_end(), None),
    }
}
