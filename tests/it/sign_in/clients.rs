//! The sign-in of the Python SDKs and the TypeScript SDK, with a person who is a script.

use super::ON;
use crate::{
    mcp_clients::{client, tool},
    support::{FakeServer, server::TOKEN},
};

async fn signs_in(program: &str, script: &str) {
    let program = tool(program);
    let server = FakeServer::with(&[ON]).await;
    let url = format!("http://{}/mcp", server.address);
    client(&program, &[script, &url, TOKEN]).await;
    client(&program, &[script, &format!("{url}?names=dotted"), TOKEN]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_1_signs_in() {
    signs_in("mcp1/bin/python", "signing_in_mcp1.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_sdk_2_signs_in() {
    signs_in("mcp2/bin/python", "signing_in_mcp2.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_sdk_signs_in() {
    signs_in("npm/node_modules/.bin/node", "signing_in.mjs").await;
}
