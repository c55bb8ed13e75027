//! A message of a client, read as far as the server decides by it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::{ID_BYTES_MAX, MessageRefused};
use crate::{
    domain::{Principal, text},
    services::sessions::message::{Channel, Header, KernelMessage, MESSAGE_BYTES_MAX},
};

/// What a message may take beside its parts on its way to the kernel, in bytes, and its buffers.
const HEAD_BYTES: usize = 16 << 10;
const BUFFERS_MAX: usize = 1000;
/// The longest header, in bytes. It comes back in each answer, up to six times as long where a kernel escapes it; the
/// bridge passes on no answer whose header has more than 64 KiB.
const HEADER_BYTES_MAX: usize = 8 << 10;
/// Messages of clients that a hub did not take yet, on the shell channel and on the others.
const ORDERS_MAX: usize = 16;

pub(super) struct Order {
    /// The name of the client that sent it.
    pub(super) client: String,
    /// Who has connected, with the token: what is executed is that token's.
    pub(super) who: Principal,
    pub(super) header: Header,
    /// What is to be executed.
    pub(super) code: Option<CellCode>,
    pub(super) message: KernelMessage,
    /// How many kernels of its session had ended when it came.
    kernel: u64,
}

/// The code of a cell.
pub(super) struct CellCode {
    pub(super) text: String,
    /// Of the client session, the message's id and the code: the same when a client that has lost its connection sends
    /// it again, under whatever name it has connected.
    pub(super) request: String,
}

/// Where the messages of a hub's clients go. Those of the control and stdin channels do not wait behind those of the
/// shell channel: an interrupt or an answer is for the code that runs, and what waits may wait for just that.
#[derive(Clone)]
pub(super) struct OrderSender {
    shell: mpsc::Sender<Order>,
    urgent: mpsc::Sender<Order>,
    ended: Arc<AtomicU64>,
}

pub(super) struct OrderReceiver {
    shell: mpsc::Receiver<Order>,
    urgent: mpsc::Receiver<Order>,
    ended: Arc<AtomicU64>,
}

/// The channels for which there is room for more.
#[derive(Clone, Copy)]
pub(super) struct Capacity {
    pub(super) shell: bool,
    pub(super) urgent: bool,
}

pub(super) fn orders() -> (OrderSender, OrderReceiver) {
    let ((shell, new_shell), (urgent, new_urgent)) = (mpsc::channel(ORDERS_MAX), mpsc::channel(ORDERS_MAX));
    let ended = Arc::<AtomicU64>::default();
    let sender = OrderSender { shell, urgent, ended: Arc::clone(&ended) };
    (sender, OrderReceiver { shell: new_shell, urgent: new_urgent, ended })
}

impl OrderSender {
    /// A kernel does not answer what it cannot read, so that is refused here.
    ///
    /// # Errors
    /// Why the message is refused.
    pub(super) fn parse(&self, client: &str, who: &Principal, message: KernelMessage) -> Result<Order, MessageRefused> {
        let kernel = self.ended.load(Ordering::Relaxed);
        if !matches!(message.channel, Channel::Shell | Channel::Control | Channel::Stdin) {
            return Err(MessageRefused::Channel);
        }
        if message.header.len() > HEADER_BYTES_MAX {
            return Err(MessageRefused::Header);
        }
        if message.bytes() > MESSAGE_BYTES_MAX - HEAD_BYTES {
            return Err(MessageRefused::TooLong);
        }
        if message.buffers.len() > BUFFERS_MAX {
            return Err(MessageRefused::Buffers);
        }
        let parts = [&message.header, &message.parent_header, &message.metadata, &message.content];
        if parts.into_iter().any(|part| serde_json::from_slice::<&RawValue>(part).is_err()) {
            return Err(MessageRefused::NotJson);
        }
        let header = message.read_header();
        let fits = |text: &str| !text.is_empty() && text.len() <= ID_BYTES_MAX;
        if !fits(&header.msg_id) || !fits(&header.msg_type) {
            return Err(MessageRefused::Header);
        }
        let code = if message.channel == Channel::Shell && header.msg_type == "execute_request" {
            let text = message.read_content()["code"].as_str().map(str::to_owned).ok_or(MessageRefused::NoCode)?;
            let from = if header.session.is_empty() { client } else { header.session.as_str() };
            let request = text::sha256(format!("{from}\0{}\0{text}", header.msg_id).as_bytes());
            Some(CellCode { text, request })
        } else {
            None
        };
        // It may wait for long, and the frame that it came in may be longer than its parts.
        let message = message.detached();
        Ok(Order { client: client.to_owned(), who: who.clone(), header, code, message, kernel })
    }

    pub(super) async fn send(&self, order: Order) -> Result<(), MessageRefused> {
        let queue = if order.message.channel == Channel::Shell { &self.shell } else { &self.urgent };
        queue.send(order).await.map_err(|_| MessageRefused::Over)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shell.is_closed()
    }
}

impl OrderReceiver {
    /// The kernel has ended.
    pub(super) fn ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it came when the kernel was there that is there now, or while that one was started.
    pub(super) fn is_for_this_kernel(&self, order: &Order) -> bool {
        order.kernel == self.ended.load(Ordering::Relaxed)
    }

    /// The next one for which there is room; nothing where there is none.
    pub(super) async fn next(&mut self, capacity: Capacity) -> Option<Order> {
        tokio::select! {
            biased;
            Some(order) = self.urgent.recv(), if capacity.urgent => Some(order),
            Some(order) = self.shell.recv(), if capacity.shell => Some(order),
            else => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_order_keeps_nothing_of_its_frame() {
        let header = json!({"msg_id": "1", "msg_type": "execute_request"});
        let frame = KernelMessage::new(Channel::Shell, &header, &json!({"code": "1"})).encode();
        let message = KernelMessage::decode(&frame).expect("a message");
        let order = orders().0.parse("a", &Principal::default(), message.clone()).expect("an order");
        assert_eq!(order.message, message);
        drop(message);
        assert!(frame.is_unique());
    }
}
