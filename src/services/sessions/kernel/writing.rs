//! Writes to a kernel's sandbox: its request, then messages, and between them bytes of its channels and frames of its
//! files.

use bytes::Bytes;
use tokio::{io::AsyncWriteExt, sync::mpsc};

use super::super::message::{KernelMessage, with_length};
use crate::{
    ports::engine::Stdin,
    services::{frames, network::next_of, sandbox::send},
};

/// Writes the request, then messages. Ends when the sandbox does not take them any more; keeps the stream open, since
/// closing it early closes the output on some engines.
pub(super) async fn write(
    mut stdin: Stdin,
    request: Bytes,
    mut outgoing: mpsc::Receiver<KernelMessage>,
    mut channels: Option<mpsc::Receiver<Bytes>>,
    mut files: mpsc::Receiver<Bytes>,
) {
    let mut written = send(&mut stdin, &request).await;
    while written {
        let frame = tokio::select! {
            message = outgoing.recv() => Err(message),
            Some(frame) = files.recv() => Ok(frame),
            piece = next_of(&mut channels) => Ok(frames::channels(&piece)),
        };
        let message = match frame {
            Err(message) => message,
            Ok(frame) => {
                written = send(&mut stdin, &frame).await;
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
