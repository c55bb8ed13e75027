//! One channel: a connection of a program. Its first byte shows whether it speaks SOCKS 5 or HTTP, or is a request to
//! the server itself, or messages with it.

use std::{sync::Arc, time::Duration};

use futures_util::{AsyncWriteExt as _, FutureExt as _};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::timeout,
};
use yamux::Stream;

use super::{
    READ_BYTES, Sandbox, http, messages, request, socks,
    stream::{ChannelStream, read_rest},
};
use crate::domain::network::Refusal;

/// A program's end of a channel. What was read ahead is in the buffer.
pub(super) type Client = BufReader<ChannelStream>;

/// How long a program may take until its first byte.
const FIRST_BYTE_MAX: Duration = Duration::from_mins(5);
/// The first byte of SOCKS 5.
const SOCKS_5: u8 = 5;

/// Serves a connection; with `is_full` it gets the answer that there is no room for it.
pub(super) async fn serve(mut channel: Stream, sandbox: Arc<Sandbox>, is_full: bool) {
    // Nothing of a channel is sent before its first byte; the sandbox drops this one.
    if channel.write_all(&[0]).await.is_err() || channel.flush().await.is_err() {
        return;
    }
    let (stream, returned) = ChannelStream::new(channel);
    let mut client = BufReader::with_capacity(READ_BYTES, stream);
    let first = match timeout(FIRST_BYTE_MAX, client.fill_buf()).await {
        Ok(Ok([first, ..])) => *first,
        _ => return,
    };
    match first {
        SOCKS_5 => socks::serve(client, &sandbox, is_full).boxed().await,
        messages::FIRST | request::FIRST if is_full => {
            sandbox.refused(String::new(), Refusal::TooMany);
            return;
        }
        messages::FIRST => messages::serve(client, &sandbox).await,
        request::FIRST => request::serve(client, &sandbox.gate).await,
        _ => http::serve(client, sandbox, is_full).boxed().await,
    }
    if let Ok(stream) = returned.await {
        read_rest(stream).await;
    }
}
