//! Writes to a kernel's sandbox: its request, then messages, and between them bytes of its channels and frames of its
//! files.

use std::time::Duration;

use bytes::Bytes;
use tokio::{io::AsyncWriteExt, sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

use super::super::message::{KernelMessage, with_length};
use crate::{
    ports::engine::Stdin,
    services::{frames, network::next_of, sandbox::send},
};

/// How long a sandbox that takes nothing any more may take to be seen to end. Its end says how the kernel ended.
const END_MAX: Duration = Duration::from_secs(10);

/// Writes the request, then messages. When the sandbox does not take them any more and does not end, it is `stuck`.
/// Keeps the stream open, since closing it early closes the output on some engines.
pub(super) async fn write(
    mut stdin: Stdin,
    request: Bytes,
    mut outgoing: mpsc::Receiver<KernelMessage>,
    mut channels: Option<mpsc::Receiver<Bytes>>,
    mut files: mpsc::Receiver<Bytes>,
    stuck: CancellationToken,
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
    sleep(END_MAX).await;
    stuck.cancel();
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::stream;
    use tokio::{io::duplex, time::timeout};
    use tokio_util::task::TaskTracker;

    use super::{
        super::{super::SessionEnd, Kernel},
        *,
    };
    use crate::{
        domain::{Environment, SandboxId},
        ports::engine::Sandbox,
        services::sandbox::Started,
    };

    #[tokio::test(start_paused = true)]
    async fn kernel_whose_sandbox_takes_nothing_and_does_not_end_is_ended() {
        let (stdin, closed) = duplex(1);
        drop(closed);
        let sandbox = Sandbox {
            id: SandboxId::new(),
            stdin: Box::pin(stdin),
            output: Box::pin(stream::pending()),
            exit: Box::pin(pending()),
        };
        let (started, tasks) = (Started { sandbox, decoder: None }, TaskTracker::new());
        let kernel = Kernel::begin(started, "fake", &Environment::default(), END_MAX, None, &tasks);
        let end = timeout(END_MAX * 2, kernel.ended()).await.expect("it is ended");
        assert_eq!(end, SessionEnd::Unresponsive);
    }
}
