//! Messages between a program and the server: each a length (four bytes, big endian) and so many bytes, both ways, on
//! one connection. The gate interprets their content.

use std::{io, sync::Arc, time::Duration};

use bytes::BytesMut;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};
use tokio_util::codec::LengthDelimitedCodec;

use super::channel::Client;
use crate::ports::network::Gate;

/// The first byte of such a connection.
pub(super) const FIRST: u8 = 2;
/// The longest message of a program, and of the server, in bytes.
const FROM_PROGRAM_MAX: usize = 1 << 20;
const TO_PROGRAM_MAX: usize = 4 << 20;
/// How long a program may take to read a message.
const WRITE_MAX: Duration = Duration::from_mins(5);

pub(super) async fn serve(mut client: Client, gate: &Arc<dyn Gate>) {
    if client.read_u8().await.is_err() {
        return;
    }
    let codec = |bytes_max| LengthDelimitedCodec::builder().max_frame_length(bytes_max).new_codec();
    let (reading, writing) = tokio::io::split(client);
    let messages = tokio_util::codec::FramedRead::new(reading, codec(FROM_PROGRAM_MAX));
    let mut answers = tokio_util::codec::FramedWrite::new(writing, codec(TO_PROGRAM_MAX));
    // A message that is too long, or half of one, ends them.
    let messages = messages.take_while(|message: &io::Result<_>| std::future::ready(message.is_ok()));
    let messages = messages.filter_map(|message| std::future::ready(message.ok())).map(BytesMut::freeze);
    let mut answering = gate.messages(messages.boxed());
    while let Some(answer) = answering.next().await {
        if !matches!(timeout(WRITE_MAX, answers.send(answer)).await, Ok(Ok(()))) {
            return;
        }
    }
    let _ = answers.into_inner().shutdown().await;
}
