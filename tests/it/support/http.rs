//! HTTP clients of tests.

use reqwest::{Client, ClientBuilder, IntoUrl, Response};

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
