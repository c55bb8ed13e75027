//! HTTP clients and small servers of tests.

use std::net::SocketAddr;

use axum::Router;
use reqwest::{Client, ClientBuilder, IntoUrl, Response};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// Makes TLS of `reqwest` possible in this process, which needs a provider even where it speaks plain HTTP.
pub fn provide_tls() {
    // An error says that there is one already.
    drop(rustls::crypto::ring::default_provider().install_default());
}

pub fn builder() -> ClientBuilder {
    provide_tls();
    Client::builder()
}

pub fn client() -> Client {
    builder().build().expect("a client")
}

pub async fn get(url: impl IntoUrl) -> reqwest::Result<Response> {
    client().get(url).send().await
}

/// Serves on a port of its own, until the handle is dropped.
pub async fn serve(router: Router) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    (address, AbortOnDropHandle::new(serving))
}
