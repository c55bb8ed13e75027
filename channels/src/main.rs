//! `sandbox-channels`: between programs in a sandbox and the server. Standard input is a listening socket, standard
//! output a stream socket whose bytes process 1 relays in frames. Each connection that is accepted becomes one channel:
//! a stream of a multiplexer (yamux) on that socket.
//!
//! It does not interpret the bytes: the server speaks HTTP and SOCKS with the program, decides and connects. It runs as
//! the program's user and is not trusted.
//!
//! When the server ends the channels, each connection is reset, and each later one is answered with the reason.
//!
//! **Who opens a channel.** The server does, so that it controls their number. It opens the first one, on which this
//! process writes one byte for each connection that waits, and one more channel for each such byte.

mod channel;
mod refusal;

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream as Socket},
    process::ExitCode,
    time::Duration,
};

use futures_util::AsyncWriteExt;
use tokio::{
    io::{AsyncReadExt as _, copy_bidirectional_with_sizes},
    net::{TcpListener, TcpStream, UnixStream},
    sync::mpsc,
    task::{JoinSet, LocalSet},
    time::sleep,
};
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, DEFAULT_CREDIT, Mode, Stream};

use self::channel::Channel;

/// Channels at once, and connections that wait for one; more wait to be accepted. The server may allow fewer.
const CHANNELS_MAX: usize = 64;
/// When a connection that could not be accepted is tried again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// A piece of a stream: with its header it fits into one frame of process 1.
const PIECE_BYTES: usize = (64 << 10) - 64;
/// What waits here for programs that do not read takes memory of the sandbox. The windows of all channels together grow
/// by this beyond those that they begin with: one alone then carries 80 MiB/s to a sandbox that is 50 ms away.
const WINDOWS_GROW_BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = async {
        let (listener, server) = sockets()?;
        serve(listener, server).await
    };
    match runtime.and_then(|runtime| LocalSet::new().block_on(&runtime, served)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox-channels: {error}");
            ExitCode::FAILURE
        }
    }
}

fn sockets() -> io::Result<(TcpListener, Socket)> {
    let listener = std::net::TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let server = Socket::from(io::stdout().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    server.set_nonblocking(true)?;
    Ok((TcpListener::from_std(listener)?, server))
}

/// Serves until the sandbox ends.
async fn serve(listener: TcpListener, server: Socket) -> io::Result<()> {
    let waiting = carry_all(&listener, UnixStream::from_std(server.try_clone()?)?).await;
    // By this the server learns of the end where it is not what ended them.
    let _ = server.shutdown(Shutdown::Both);
    refusal::serve(&listener, waiting).await;
    Ok(())
}

/// The next connection. What keeps one from being accepted, such as too many open files, passes when others end.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((client, _)) => return client,
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// Carries connections until the channels end; those that wait for one then.
async fn carry_all(listener: &TcpListener, server: UnixStream) -> VecDeque<TcpStream> {
    let mut config = Config::default();
    // The server opens the first one besides. One that has ended counts until the multiplexer can write, which may be
    // after another one was asked for in its place.
    let streams_max = 2 * CHANNELS_MAX + 1;
    let windows = streams_max * DEFAULT_CREDIT as usize + WINDOWS_GROW_BYTES;
    config.set_max_num_streams(streams_max).set_max_connection_receive_window(Some(windows));
    config.set_split_send_size(PIECE_BYTES);
    let mut connection = Connection::new(server.compat(), config, Mode::Server);
    let (asked, asks) = mpsc::unbounded_channel();
    let mut asks = Some(asks);
    let mut waiting = VecDeque::new();
    // Its tasks end before they see the end of the multiplexer, which would look like that of an answer.
    let mut channels = JoinSet::new();
    loop {
        let can_accept = channels.len() + waiting.len() < CHANNELS_MAX;
        tokio::select! {
            opened = poll_fn(|cx| connection.poll_next_inbound(cx)) => match (opened, asks.take()) {
                (None | Some(Err(_)), _) => return waiting,
                (Some(Ok(first)), Some(asks)) => drop(tokio::task::spawn_local(ask(first, asks))),
                (Some(Ok(channel)), None) => {
                    if let Some(client) = waiting.pop_front() {
                        channels.spawn_local(carry(client, channel));
                    }
                }
            },
            client = accept(listener), if can_accept => {
                // One that was reset already is found to be where it is read.
                let _ = client.set_nodelay(true);
                waiting.push_back(client);
                // Its receiver lives as long as this loop.
                let _ = asked.send(());
            }
            Some(_) = channels.join_next() => {}
        }
    }
}

/// Asks for one channel for each connection that waits.
async fn ask(mut first: Stream, mut asks: mpsc::UnboundedReceiver<()>) {
    while let Some(()) = asks.recv().await {
        if first.write_all(&[1]).await.is_err() || first.flush().await.is_err() {
            return;
        }
    }
}

/// A connection of a program. It is reset unless both of its directions have ended.
struct Client {
    stream: TcpStream,
    has_ended: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.stream.set_zero_linger();
        }
    }
}

/// Carries both directions to their ends; each end is passed on by itself.
async fn carry(stream: TcpStream, channel: Stream) {
    let mut client = Client { stream, has_ended: false };
    let mut channel = Channel::new(channel.compat());
    // The server's first byte opens the channel.
    if channel.read_u8().await.is_err() {
        return;
    }
    // An error ends both: the connection is reset, and so is the channel.
    let copied = copy_bidirectional_with_sizes(&mut client.stream, &mut channel, PIECE_BYTES, PIECE_BYTES).await;
    client.has_ended = copied.is_ok();
}

#[cfg(test)]
mod tests;
