//! A message of a client, read as far as the server decides by it.

use serde_json::value::RawValue;

use super::{ID_BYTES_MAX, MessageRefused};
use crate::{
    domain::owner::Principal,
    services::sessions::message::{Channel, Header, KernelMessage, MESSAGE_BYTES_MAX},
};

/// What a message may take beside its parts on its way to the kernel, in bytes, and its buffers.
const HEAD_BYTES: usize = 16 << 10;
const BUFFERS_MAX: usize = 1000;

pub(super) struct Order {
    /// The name of the client that sent it.
    pub(super) client: String,
    /// Who has connected, with the token: what is executed is that token's.
    pub(super) who: Principal,
    pub(super) header: Header,
    /// What is to be executed.
    pub(super) code: Option<String>,
    pub(super) message: KernelMessage,
}

impl Order {
    /// A kernel does not answer what it cannot read, so that is refused here.
    pub(super) fn parse(client: &str, who: &Principal, message: KernelMessage) -> Result<Self, MessageRefused> {
        if !matches!(message.channel, Channel::Shell | Channel::Control | Channel::Stdin) {
            return Err(MessageRefused::Channel);
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
            let code = message.read_content()["code"].as_str().map(str::to_owned);
            Some(code.ok_or(MessageRefused::NoCode)?)
        } else {
            None
        };
        Ok(Self { client: client.to_owned(), who: who.clone(), header, code, message })
    }
}
