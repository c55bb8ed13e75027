//! What people, clients and proxies share, and must not share more of.

use serde_json::{Value, json};

use super::{ON, REDIRECT, Visitor};
use crate::support::{FakeServer, server::TOKEN};

/// A native client has one id for all people: the id alone opens nothing.
#[tokio::test(flavor = "multi_thread")]
async fn people_who_share_a_client_share_nothing_else() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let wanted = json!({"owner": "other", "name": "laptop", "scopes": ["run", "files"]});
    let made = visitor.http.post(format!("{}/v1/tokens", visitor.base)).bearer_auth(TOKEN).json(&wanted).send().await;
    let made: Value = made.expect("an answer").json().await.expect("JSON");
    let of_other = made["token"].as_str().expect("a token").to_owned();
    let client = visitor.client(&[REDIRECT]).await;
    let (first, second) = (
        visitor.code(&visitor.request(&client, &[]), TOKEN).await,
        visitor.code(&visitor.request(&client, &[]), &of_other).await,
    );
    let (_, first) = visitor.redeem(&client, &first, &[]).await;
    let (_, second) = visitor.redeem(&client, &second, &[]).await;
    let run = json!({"conversationId": "shared", "language": "python", "code": "write mine.txt x"});
    let text = |tokens: &Value, name: &str| tokens[name].as_str().expect("a token").to_owned();
    let ran = visitor.http.post(format!("{}/v1/runs", visitor.base)).bearer_auth(text(&first, "access_token"));
    assert!(ran.json(&run).send().await.expect("an answer").status().is_success());
    let files = async |tokens: &Value| {
        let url = format!("{}/v1/conversations/shared/files", visitor.base);
        let request = visitor.http.get(url).bearer_auth(text(tokens, "access_token"));
        request.send().await.expect("an answer").text().await.expect("text")
    };
    let (_, first_again) = visitor.refresh(&client, &text(&first, "refresh_token"), &[]).await;
    let (_, second_again) = visitor.refresh(&client, &text(&second, "refresh_token"), &[]).await;
    assert!(files(&first).await.contains("mine.txt") && files(&first_again).await.contains("mine.txt"));
    assert!(!files(&second).await.contains("mine.txt") && !files(&second_again).await.contains("mine.txt"));
    // One signs out; the other does not.
    let ended = visitor.form("/revoke", &[("token", &text(&first, "refresh_token")), ("client_id", &client)]).await;
    assert_eq!(ended.status(), 200);
    assert_eq!((visitor.call(&first["access_token"]).await, visitor.call(&second["access_token"]).await), (401, 200));
    // Nor is a request ever answered without a person, whatever it asks for.
    for silent in ["none", "login", "consent"] {
        let asked = visitor.get(&visitor.request(&client, &[("prompt", silent)])).await;
        assert_eq!(asked.status(), 200, "{silent}");
        assert!(asked.text().await.expect("a page").contains("data-testid=\"allow\""), "{silent}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_behind_a_trusted_proxy_have_rates_of_their_own() {
    const PROXIES: &str = "SANDBOX_SERVER__TRUSTED_PROXIES";
    for (trusted, others) in [("127.0.0.0/8", 201), ("192.0.2.0/24", 429), ("", 429)] {
        let server = FakeServer::with(&[ON, (PROXIES, trusted)]).await;
        let visitor = Visitor::of(&server).await;
        let register = async |from: &[&str]| {
            let body = json!({"redirect_uris": [REDIRECT]});
            let mut request = visitor.http.post(format!("{}/register", visitor.base)).json(&body);
            for address in from {
                request = request.header("cf-connecting-ip", *address);
            }
            request.send().await.expect("an answer").status().as_u16()
        };
        let mut last = 0;
        for _ in 0..200 {
            last = register(&["198.51.100.1"]).await;
            if last == 429 {
                break;
            }
        }
        assert_eq!(last, 429, "one address is limited");
        assert_eq!(register(&["198.51.100.2"]).await, others, "{trusted}");
        assert_eq!(register(&["2001:db8::1"]).await, others, "{trusted}");
        if others == 201 {
            // The proxy itself has a rate too, and two addresses are none.
            for none in [&["x"][..], &["198.51.100.3", "198.51.100.4"], &[]] {
                assert_eq!(register(none).await, 201, "{none:?}");
            }
        }
        server.stop().await;
    }
}
