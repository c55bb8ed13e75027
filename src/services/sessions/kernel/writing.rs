//! Writes to a kernel's sandbox: its request, then messages, and between them bytes of its channels and frames of its
//! files.

use std::pin::Pin;

use bytes::Bytes;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::super::message::{KernelMessage, with_length};
use crate::services::{frames, network::next_of};

/// Writes the request, then messages. Ends when the sandbox does not take them any more; keeps the stream open, since
/// closing it early closes the output on some engines.
pub(super) async fn write(
    mut stdin: Pin<Box<dyn AsyncWrite + Send>>,
    request: Bytes,
    mut outgoing: mpsc::Receiver<KernelMessage>,
    mut channels: Option<mpsc::Receiver<Bytes>>,
    mut files: mpsc::Receiver<Bytes>,
) {
    let mut written = stdin.write_all(&request).await.is_ok() && stdin.flush().await.is_ok();
    while written {
        let frame = tokio::select! {
            message = outgoing.recv() => Err(message),
            Some(frame) = files.recv() => Ok(frame),
            piece = next_of(&mut channels) => Ok(frames::channels(&piece)),
        };
        let message = match frame {
            Err(message) => message,
            Ok(frame) => {
                written &= stdin.write_all(&frame).await.is_ok() && stdin.flush().await.is_ok();
                continue;
            }
        };
        let Some(message) = message else { return };
        let bytes = with_length(&message);
        for piece in bytes.chunks(frames::PAYLOAD_BYTES_MAX) {
            written &= stdin.write_all(&frames::stdin(piece)).await.is_ok();
        }
        written &= stdin.flush().await.is_ok();
    }
    files.close();
    outgoing.close();
    while outgoing.recv().await.is_some() {}
    std::future::pending::<()>().await;
}
