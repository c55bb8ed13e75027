//! A connection that can be pulled out: a port in front of a server, whose connections break when the test says so.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

pub struct Cable {
    pub address: SocketAddr,
    plugged: watch::Sender<bool>,
    _listening: AbortOnDropHandle<()>,
}

impl Cable {
    /// A port that leads to this one.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (plugged, state) = watch::channel(true);
        let listening = AbortOnDropHandle::new(tokio::spawn(listen(listener, server, state)));
        Self { address, plugged, _listening: listening }
    }

    /// Breaks every connection, and each new one until it is plugged in again.
    pub fn pull(&self) {
        self.plugged.send_replace(false);
    }

    pub fn plug(&self) {
        self.plugged.send_replace(true);
    }
}

/// Its connections end with it.
async fn listen(listener: TcpListener, server: SocketAddr, state: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(carry(client, server, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, mut state: watch::Receiver<bool>) {
    let Ok(mut to_server) = TcpStream::connect(server).await else { return };
    tokio::select! {
        // While unplugged no byte passes: a first poll of the copy can carry a whole request and its answer.
        biased;
        _ = state.wait_for(|plugged| !plugged) => {}
        _ = copy_bidirectional(&mut client, &mut to_server) => {}
    }
}
