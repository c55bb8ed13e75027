//! Answers to connections after the channels have ended: the reason, if their protocol can carry one. Many clients show
//! only the reason phrase.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, sink},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::accept;

const ANSWER: &[u8] = b"HTTP/1.1 503 the server has ended the connections of this sandbox: restart it\r\n\
    x-sandbox-refusal: channels_ended\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// The first byte of SOCKS 5, and its answer that no way to authenticate is accepted.
const SOCKS_5: u8 = 5;
const SOCKS_ANSWER: &[u8] = &[SOCKS_5, 0xff];
/// The first bytes of what is for the server itself, to which an end is an answer.
const OF_THE_SERVER: [u8; 2] = [1, 2];

/// Connections that are answered at once; more wait to be accepted.
const CLIENTS_MAX: usize = 64;
/// How long one may take.
const CLIENT_MAX: Duration = Duration::from_secs(10);

/// Answers those that wait, and each that comes.
pub async fn serve(listener: &TcpListener, waiting: VecDeque<TcpStream>) {
    let mut clients = JoinSet::new();
    for client in waiting {
        clients.spawn_local(answer(client));
    }
    loop {
        let can_accept = clients.len() < CLIENTS_MAX;
        tokio::select! {
            client = accept(listener), if can_accept => {
                clients.spawn_local(answer(client));
            }
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn answer(mut client: impl AsyncRead + AsyncWrite + Unpin) {
    let answered = async {
        match client.read_u8().await? {
            SOCKS_5 => client.write_all(SOCKS_ANSWER).await?,
            first if OF_THE_SERVER.contains(&first) => {}
            _ => client.write_all(ANSWER).await?,
        }
        client.shutdown().await?;
        // What is left unread resets a connection, and its answer with it.
        copy(&mut client, &mut sink()).await
    };
    let _ = timeout(CLIENT_MAX, answered).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_protocol_gets_its_answer_and_silence_an_end() {
        for (said, answered) in [
            (&b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"[..], ANSWER),
            (b"\x05\x01\0", SOCKS_ANSWER),
            (b"\x01install this\n", b""),
            (b"\x02\0\0\0\x02{}", b""),
            (b"", b""),
        ] {
            let (near, mut program) = duplex(1024);
            let answering = async {
                program.write_all(said).await.expect("written");
                let mut got = Vec::new();
                program.read_to_end(&mut got).await.expect("its end");
                assert_eq!(got.escape_ascii().to_string(), answered.escape_ascii().to_string());
            };
            tokio::join!(answer(near), answering);
        }
    }
}
