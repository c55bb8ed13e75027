//! What clients on a person's machine are reported to send: how they register, where they wait, how they refresh.

use serde_json::json;

use super::{ON, Visitor};
use crate::support::{FakeServer, server::TOKEN};

/// A client's name, what it registers, where it waits for the code, and what it adds to a refresh.
type Case<'a> = (&'a str, &'a [&'a str], &'a str, &'a [(&'a str, &'a str)]);

#[tokio::test(flavor = "multi_thread")]
async fn editors_and_command_lines_are_served() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let resource = format!("{}/mcp", visitor.base);
    let vscode = [
        "https://insiders.vscode.dev/redirect",
        "https://vscode.dev/redirect",
        "http://127.0.0.1/",
        "http://127.0.0.1:33418/",
    ];
    let codex = "http://127.0.0.1:51001/callback/a1b2c3";
    let (gemini, remote) = ("http://localhost:7777/oauth/callback", "http://localhost:3334/oauth/callback");
    let (with_resource, with_scope) = ([("resource", &*resource)], [("scope", "run files offline_access")]);
    let cases: [Case<'_>; 6] = [
        // Another port than the one it registered, and its own page where no port can be had.
        ("Visual Studio Code", &vscode, "http://127.0.0.1:51789/", &with_resource),
        ("Visual Studio Code", &vscode, "https://vscode.dev/redirect", &with_resource),
        ("Claude Code (sandbox)", &["http://localhost:3118/callback"], "http://localhost:54321/callback", &[]),
        ("Gemini CLI", &[gemini], gemini, &[]),
        // It leaves out the resource.
        ("Codex", &[codex], codex, &[]),
        ("mcp-remote", &[remote], remote, &with_scope),
    ];
    for (name, registered, waits_at, refreshes_with) in cases {
        let (status, client) = visitor
            .register(&json!({"client_name": name, "redirect_uris": registered, "application_type": "native",
            "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
            "token_endpoint_auth_method": "none", "scope": "run files"}))
            .await;
        assert_eq!(
            (status, client["redirect_uris"].as_array().map(Vec::len)),
            (201, Some(registered.len())),
            "{client}"
        );
        let id = client["client_id"].as_str().expect("an id");
        let redirect = ("redirect_uri", waits_at);
        let request = visitor.request(id, &[redirect, ("scope", "run files offline_access"), ("prompt", "consent")]);
        let code = visitor.code(&request, TOKEN).await;
        let (status, tokens) = visitor.redeem(id, &code, &[redirect, ("resource", &resource)]).await;
        assert_eq!(status, 200, "{name}: {tokens}");
        let refresh = tokens["refresh_token"].as_str().expect("a token");
        let (status, tokens) = visitor.refresh(id, refresh, refreshes_with).await;
        assert_eq!(status, 200, "{name}: {tokens}");
        assert_eq!(visitor.call(&tokens["access_token"]).await, 200, "{name}");
    }
    server.stop().await;
}
