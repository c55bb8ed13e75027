//! Requests to the proxy, with a gate that allows every host.

use std::{net::SocketAddr, sync::Mutex, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, stream::BoxStream};
use tokio::{net::TcpListener, time::timeout};

use super::{
    super::{Multiplexer, tests::sandbox_of},
    *,
};
use crate::{
    domain::network::{NetworkUse, RequestLine, SandboxSecret},
    ports::network::{Gate, Pace},
};

const LONG: Duration = Duration::from_secs(20);

/// Every name has this address.
struct Allows {
    address: SocketAddr,
    used: Mutex<Vec<NetworkUse>>,
}

#[async_trait]
impl Gate for Allows {
    async fn decide(&self, _target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        Ok(vec![self.address])
    }

    fn opens(&self, _target: &Target) -> bool {
        false
    }

    fn admit(&self, _target: &Target, _request: Option<&RequestLine<'_>>) -> Result<(), Refusal> {
        Ok(())
    }

    fn secrets(&self, _target: &Target) -> Vec<SandboxSecret> {
        Vec::new()
    }

    fn pace(&self, _target: &Target) -> Option<Arc<dyn Pace>> {
        None
    }

    fn request(&self, _request: Bytes) -> BoxStream<'static, Bytes> {
        unreachable!("none is made")
    }

    fn messages(&self, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
        messages
    }

    fn over(&self, used: NetworkUse) {
        self.used.lock().expect("a lock").push(used);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_host_does_not_answer_or_that_are_not_made_are_recorded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // Takes each connection, and ends it.
    let host = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let gate = Arc::new(Allows { address, used: Mutex::default() });
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate.clone()).channels().await;
    first.write_all(&[1; 2]).await.expect("written");
    first.flush().await.expect("flushed");
    for (target, status, why, word) in [
        ("a.example:80", "502 ", "a.example:80 does not answer", "unreachable"),
        ("a.example:443", "403 ", "a.example:443 takes TLS alone", "no_tls"),
    ] {
        let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
        let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        channel.write_all(request.as_bytes()).await.expect("written");
        channel.flush().await.expect("flushed");
        let mut answer = Vec::new();
        drop(timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends"));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains(status) && answer.contains(why), "{answer}");
        let used = gate.used.lock().expect("a lock").clone();
        let is_it = |used: &NetworkUse| used.target == target && used.refusal.as_ref().map(Refusal::word) == Some(word);
        assert!(used.iter().any(is_it), "{word}: {used:?}");
    }
    host.abort();
}
