//! The server's end, as a test has it.

use std::pin::pin;

use tokio::{io::AsyncWriteExt as _, task::spawn_local};
use tokio_util::compat::Compat;

use super::*;

/// Does something while the multiplexer moves its bytes.
async fn driven<T>(connection: &mut Connection<Compat<UnixStream>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let done = work.as_mut().poll(cx);
        let moved = connection.poll_next_inbound(cx);
        assert!(moved.is_pending(), "the sandbox opens no channel");
        done
    })
    .await
}

#[tokio::test]
async fn connection_is_reset_and_a_later_one_answered_when_the_channels_end() {
    let tested = async {
        let (far, near) = Socket::pair().expect("a socket");
        for end in [&far, &near] {
            end.set_nonblocking(true).expect("it is one");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address");
        let serving = spawn_local(serve(listener, near));
        let mut program = TcpStream::connect(port).await.expect("a connection");
        let far = UnixStream::from_std(far).expect("a socket");
        let mut connection = Connection::new(far.compat(), Config::default(), Mode::Client);
        let mut first = poll_fn(|cx| connection.poll_new_outbound(cx)).await.expect("a channel");
        let asked = async {
            first.write_all(&[0]).await?;
            first.flush().await?;
            futures_util::AsyncReadExt::read_exact(&mut first, &mut [0; 1]).await
        };
        driven(&mut connection, asked).await.expect("one is asked for");
        let mut channel = poll_fn(|cx| connection.poll_new_outbound(cx)).await.expect("a channel");
        let answered = async {
            channel.write_all(b"\0x").await?;
            channel.flush().await?;
            program.read_u8().await
        };
        assert_eq!(driven(&mut connection, answered).await.expect("a byte"), b'x');
        drop(connection);
        let error = program.read_u8().await.expect_err("an end would be that of an answer");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        let mut later = TcpStream::connect(port).await.expect("a connection");
        later.write_all(b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n").await.expect("written");
        later.shutdown().await.expect("ended");
        let mut answer = String::new();
        later.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 503 the server has ended the connections"), "{answer}");
        assert!(!serving.is_finished());
    };
    LocalSet::new().run_until(tested).await;
}
