//! Requests of clients that lack a parameter, or have one twice.

use serde_json::json;

use super::{ON, Visitor, read};
use crate::support::{FakeServer, server::TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_that_is_missing_or_there_twice_is_an_invalid_request() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let (client, tokens) = visitor.signed_in(TOKEN).await;
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    let id = ("client_id", client.as_str());
    let (by_code, by_refresh) = (("grant_type", "authorization_code"), ("grant_type", "refresh_token"));
    for (path, pairs) in [
        ("/token", vec![id, ("refresh_token", refresh)]),
        ("/token", vec![id, by_code]),
        ("/token", vec![id, by_refresh]),
        ("/token", vec![id, by_refresh, ("refresh_token", refresh), ("scope", "run"), ("scope", "admin")]),
        ("/revoke", vec![id]),
        ("/revoke", vec![id, ("token", "")]),
        ("/revoke", vec![id, ("token", refresh), ("token", refresh)]),
    ] {
        let (status, refused) = read(visitor.form(path, &pairs).await).await;
        assert_eq!((status, &refused["error"]), (400, &json!("invalid_request")), "{path} {pairs:?}");
    }
    assert_eq!(visitor.call(&tokens["access_token"]).await, 200, "nothing was ended");
    let ended = visitor.form("/revoke", &[id, ("token", refresh)]).await;
    assert_eq!(ended.status(), 200);
    assert_eq!(visitor.call(&tokens["access_token"]).await, 401);
    server.stop().await;
}
