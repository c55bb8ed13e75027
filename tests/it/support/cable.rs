//! A connection that can be pulled out: a port in front of a server, whose connections break when the test says so.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{copy_bidirectional, join},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::{io::InspectReader, task::AbortOnDropHandle};

pub struct Cable {
    pub address: SocketAddr,
    plugged: watch::Sender<bool>,
    sent: Arc<Mutex<Vec<u8>>>,
    _listening: AbortOnDropHandle<()>,
}

impl Cable {
    /// A port that leads to this one.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (plugged, state) = watch::channel(true);
        let sent = Arc::default();
        let listening = AbortOnDropHandle::new(tokio::spawn(listen(listener, server, state, Arc::clone(&sent))));
        Self { address, plugged, sent, _listening: listening }
    }

    /// All that clients have sent.
    pub fn sent(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock().expect("no panic")).into_owned()
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
async fn listen(listener: TcpListener, server: SocketAddr, state: watch::Receiver<bool>, sent: Arc<Mutex<Vec<u8>>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(carry(client, server, state.clone(), Arc::clone(&sent)));
        while connections.try_join_next().is_some() {}
    }
}

async fn carry(client: TcpStream, server: SocketAddr, mut state: watch::Receiver<bool>, sent: Arc<Mutex<Vec<u8>>>) {
    let Ok(mut to_server) = TcpStream::connect(server).await else { return };
    let (from_client, to_client) = client.into_split();
    let note = |bytes: &[u8]| sent.lock().expect("no panic").extend_from_slice(bytes);
    let mut client = join(InspectReader::new(from_client, note), to_client);
    tokio::select! {
        // While unplugged no byte passes: a first poll of the copy can carry a whole request and its answer.
        biased;
        _ = state.wait_for(|plugged| !plugged) => {}
        _ = copy_bidirectional(&mut client, &mut to_server) => {}
    }
}
