//! A socket to the kernel, with a bound on what waits there to be written: a kernel that does not read blocks neither
//! this program nor messages to its other sockets.

use std::{mem, sync::Arc};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zeromq::{DealerSocket, SocketRecv, SocketSend, ZmqMessage, ZmqResult};

use crate::message::MESSAGE_BYTES_MAX;

/// What may wait for one socket.
const WAITING_MAX_BYTES: usize = 2 * MESSAGE_BYTES_MAX;

/// What a message takes beside its frames. With it, far fewer messages wait than the 100 000 from which on the crate's
/// `send` waits for the kernel.
const MESSAGE_BYTES: usize = 512;

/// The socket, and the room for messages that are not written yet.
pub struct KernelSocket {
    socket: DealerSocket,
    room: Arc<Semaphore>,
}

/// A frame that takes room until it is dropped, which the crate does once the message is written.
struct WaitingFrame {
    frame: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for WaitingFrame {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}

impl KernelSocket {
    pub fn new(socket: DealerSocket) -> Self {
        Self { socket, room: Arc::new(Semaphore::new(WAITING_MAX_BYTES)) }
    }

    /// The next message.
    pub async fn recv(&mut self) -> ZmqResult<ZmqMessage> {
        self.socket.recv().await
    }

    /// Queues a message; false when there is no room for it. Never waits for the kernel.
    pub async fn send(&mut self, message: ZmqMessage) -> bool {
        let bytes = MESSAGE_BYTES + message.iter().map(Bytes::len).sum::<usize>();
        let cost = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(cost) else { return false };
        let mut frames = message.into_vecdeque();
        if let Some(first) = frames.front_mut() {
            *first = Bytes::from_owner(WaitingFrame { frame: mem::take(first), _room: room });
        }
        if let Ok(message) = ZmqMessage::try_from(frames) {
            // A connection that is gone shows when the kernel ends, or in the socket's next event.
            let _ = self.socket.send(message).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use zeromq::{RouterSocket, Socket};

    use super::*;

    /// Two connected sockets: one of this program, and a kernel's.
    async fn connected(folder: &tempfile::TempDir, name: &str) -> (KernelSocket, RouterSocket) {
        let address = format!("ipc://{}", folder.path().join(name).display());
        let (mut kernel, mut dealer) = (RouterSocket::new(), DealerSocket::new());
        kernel.bind(&address).await.expect("bound");
        dealer.connect(&address).await.expect("connected");
        (KernelSocket::new(dealer), kernel)
    }

    /// Sends until there is no room; how many messages were taken. Nothing is written meanwhile, since nothing waits.
    async fn fill(socket: &mut KernelSocket, message: &ZmqMessage) -> usize {
        let mut taken = 0;
        while taken < 100_000 && socket.send(message.clone()).await {
            taken += 1;
        }
        taken
    }

    #[tokio::test]
    async fn full_socket_refuses_while_others_take_messages_until_its_own_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut shell, mut kernel_shell) = connected(&folder, "shell").await;
        let (mut control, mut kernel_control) = connected(&folder, "control").await;
        let large = ZmqMessage::from(vec![0; 1 << 20]);
        let all = async {
            assert_eq!(fill(&mut shell, &large).await, 7);
            assert!(control.send(ZmqMessage::from("interrupt")).await);
            assert!(kernel_control.recv().await.is_ok());
            for _ in 0..7 {
                assert!(kernel_shell.recv().await.is_ok());
            }
            assert_eq!(shell.room.available_permits(), WAITING_MAX_BYTES, "written messages take no room");
            assert!(shell.send(large).await);
        };
        timeout(Duration::from_mins(1), all).await.expect("no wait for a kernel that does not read");
    }

    #[tokio::test]
    async fn short_messages_are_bounded_below_the_queue_of_the_crate() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut shell, _kernel) = connected(&folder, "shell").await;
        let taken = fill(&mut shell, &ZmqMessage::from("x")).await;
        assert_eq!(taken, WAITING_MAX_BYTES / (MESSAGE_BYTES + 1));
    }
}
