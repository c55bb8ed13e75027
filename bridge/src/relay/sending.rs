//! Writes to the server, which may be slow or gone.

use std::{io::ErrorKind, time::Duration};

use serde_json::json;
use tokio::net::unix::pipe::{Receiver, Sender};

use super::Relay;
use crate::{
    message::Channel,
    outbox::{Outbox, Weight, bridge_message},
};

/// How long the server may take to read what is left.
const SEND_LIMIT: Duration = Duration::from_secs(30);

/// The pipes to process 1.
#[derive(Debug)]
pub struct Server {
    pub input: Receiver,
    pub output: Sender,
}

impl Relay {
    /// Writes as much as the server takes; returns whether the server is gone.
    pub(super) fn write(&mut self) -> bool {
        match self.server.output.try_write(self.outbox.front()) {
            Ok(count) => self.outbox.wrote(count),
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
        false
    }
}

/// Reports why there is no session.
pub async fn refuse(output: &mut Sender, message: &str) {
    let mut outbox = Outbox::default();
    outbox.push(Channel::Bridge, &bridge_message("failed", &json!({"message": message})), Weight::Own);
    finish(output, &mut outbox).await;
}

/// Writes the rest.
pub(super) async fn finish(output: &mut Sender, outbox: &mut Outbox) {
    let write = async {
        while !outbox.is_empty() && output.writable().await.is_ok() {
            match output.try_write(outbox.front()) {
                Ok(count) => outbox.wrote(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    // A reader that takes nothing is not waited for without end.
    let _ = tokio::time::timeout(SEND_LIMIT, write).await;
}
