//! A request of a program to the server itself: one line, which the gate answers in pieces.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::channel::Client;
use crate::ports::network::Gate;

/// The first byte of a request, which is not part of its line.
pub(super) const FIRST: u8 = 1;
/// The longest line, and how long it may take.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINE_MAX: Duration = Duration::from_secs(10);

pub(super) async fn serve(mut client: Client, gate: &Arc<dyn Gate>) {
    let mut line = Vec::new();
    let mut bounded = (&mut client).take(LINE_BYTES_MAX);
    if !matches!(timeout(LINE_MAX, bounded.read_until(b'\n', &mut line)).await, Ok(Ok(_))) || line.pop() != Some(b'\n')
    {
        return;
    }
    line.drain(..1);
    let mut answer = gate.request(line.into());
    while let Some(piece) = answer.next().await {
        if client.write_all(&piece).await.is_err() || client.flush().await.is_err() {
            return;
        }
    }
    // The program has closed its end already, or sees this one.
    let _ = client.shutdown().await;
}
