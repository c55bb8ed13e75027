//! Another `MCP_API_TOKEN` ends what was signed in with the one before, at each server of the database.

use serde_json::{Value, json};

use super::{ON, Visitor};
use crate::support::{
    FakeServer,
    postgres::Postgres,
    server::{FILE_SECRET, TOKEN},
    until::until,
};

const NEW: (&str, &str) = ("MCP_API_TOKEN", "7c1e5b0f9d3a4e68b2f70c5d91ae3846");

/// A client that is signed in, on another start of its server.
struct Client(String, Value);

impl Client {
    async fn sign_in(visitor: &Visitor, token: &str) -> Self {
        let (client, tokens) = visitor.signed_in(token).await;
        Self(client, tokens)
    }

    /// Whether its access token, and its refresh token, still serve.
    async fn goes_on(&mut self, visitor: &Visitor) -> (bool, bool) {
        let access = visitor.call(&self.1["access_token"]).await == 200;
        let refresh = self.1["refresh_token"].as_str().expect("a token");
        let (status, tokens) = visitor.refresh(&self.0, refresh, &[]).await;
        if status == 200 {
            self.1 = tokens;
        } else {
            assert_eq!((status, &tokens["error"]), (400, &json!("invalid_grant")), "{tokens}");
        }
        (access, status == 200)
    }
}

async fn owners(visitor: &Visitor, token: &str) -> Vec<Value> {
    let request = visitor.http.get(format!("{}/v1/connections", visitor.base)).bearer_auth(token);
    let list: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    list["connections"].as_array().expect("a list").iter().map(|one| one["owner"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_of_the_configured_token_ends_when_it_is_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = async |more: &[(&str, &str)]| {
        let server = FakeServer::again(&folder.path().join("root"), &[&[ON][..], more].concat()).await;
        let visitor = Visitor::of(&server).await;
        (server, visitor)
    };
    let (server, visitor) = start(&[]).await;
    let wanted = json!({"owner": "other", "name": "laptop", "scopes": ["run", "files"]});
    let made = visitor.http.post(format!("{}/v1/tokens", visitor.base)).bearer_auth(TOKEN).json(&wanted).send().await;
    let made: Value = made.expect("an answer").json().await.expect("JSON");
    let mut configured = Client::sign_in(&visitor, TOKEN).await;
    let mut other = Client::sign_in(&visitor, made["token"].as_str().expect("a token")).await;
    let request = visitor.http.get(format!("{}/v1/connections", visitor.base)).bearer_auth(TOKEN);
    let list: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    for one in list["connections"].as_array().expect("a list") {
        assert_eq!(one.get("tokenId").is_some(), one["owner"] == "other", "{one}");
    }
    server.stop().await;

    // The same token goes on, also while the key of links changes in two steps.
    let other_key = "another-key-of-links-53d1c0";
    let both = format!("{other_key},{FILE_SECRET}");
    for key in [FILE_SECRET, &both, other_key] {
        let (server, visitor) = start(&[("FILE_SECRET", key)]).await;
        assert_eq!(configured.goes_on(&visitor).await, (true, true), "{key}");
        assert_eq!(other.goes_on(&visitor).await, (true, true), "{key}");
        server.stop().await;
    }
    let (server, visitor) = start(&[("FILE_SECRET", other_key), NEW]).await;
    assert_eq!(configured.goes_on(&visitor).await, (false, false));
    assert_eq!(other.goes_on(&visitor).await, (true, true), "that of another token goes on");
    assert_eq!(owners(&visitor, NEW.1).await, [json!("other")]);
    let mut next = Client::sign_in(&visitor, NEW.1).await;
    server.stop().await;

    let (server, visitor) = start(&[("FILE_SECRET", other_key), NEW]).await;
    assert_eq!(next.goes_on(&visitor).await, (true, true));
    assert_eq!(configured.goes_on(&visitor).await, (false, false));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_ends_at_every_server_and_those_of_before_are_bound() {
    let cluster = Postgres::start().await;
    let url = cluster.url();
    let here = [ON, ("DATABASE_URL", &*url)];
    let first = FakeServer::with(&here).await;
    let at_first = Visitor::of(&first).await;
    let mut client = Client::sign_in(&at_first, TOKEN).await;
    // As an earlier version stored it.
    assert!(cluster.sql("UPDATE tokens SET parent = NULL"));
    let second = FakeServer::with(&here).await;
    assert_eq!(client.goes_on(&Visitor::of(&second).await).await, (true, true), "it stays");
    second.stop().await;

    until("the first server knows the newest token", async || at_first.call(&client.1["access_token"]).await == 200)
        .await;
    let third = FakeServer::with(&[&here[..], &[NEW]].concat()).await;
    let at_third = Visitor::of(&third).await;
    assert_eq!(client.goes_on(&at_third).await, (false, false));
    until("the server with the earlier token ends it too", async || {
        at_first.call(&client.1["access_token"]).await == 401
    })
    .await;
    third.stop().await;
    first.stop().await;
}
