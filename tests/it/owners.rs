//! Two owners that use the same conversation ids never meet.

use std::{fs, time::Duration};

use mcp_sandbox_server::{
    domain::{error::Code, owner::ConversationKey, path::SafePath},
    services::{files::FileQuery, runs::RunRequest},
};
use serde_json::{Value, json};

use crate::support::{FakeServer, server::TOKEN, until};

const KIB: usize = 1 << 10;

fn key(text: &str) -> ConversationKey {
    text.parse().expect("a key")
}

fn path(text: &str) -> SafePath {
    SafePath::from_text(text).expect("a path")
}

async fn get(server: &FakeServer, url: &str) -> (u16, String) {
    let answer = server.http.get(url).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_with_equal_conversation_ids_are_isolated() {
    let server = FakeServer::with(&[("SANDBOX_QUOTA__BYTES_MAX", "1048576")]).await;
    let files = &server.mcp.files;
    let (mine, other) = (key("c"), key("@other/c"));
    let my_file = files.write(&mine, &path("f"), "mine".into()).await.expect("written");
    let their_file = files.write(&other, &path("f"), "theirs".into()).await.expect("written");
    assert_eq!(fs::read_to_string(server.root.join("@other/c/files/f")).expect("the file"), "theirs");
    assert_eq!(&files.read(&mine, &path("f"), 0, 100).await.expect("read").bytes[..], b"mine");
    assert_eq!(&files.read(&other, &path("f"), 0, 100).await.expect("read").bytes[..], b"theirs");

    // Links name their owner, and one owner's signature is none for the other's file.
    assert!(their_file.url.contains("/files/@other/c/f?"), "{}", their_file.url);
    assert_eq!(get(&server, &my_file.url).await, (200, "mine".to_owned()));
    assert_eq!(get(&server, &their_file.url).await, (200, "theirs".to_owned()));
    for forged in [their_file.url.replace("@other/c", "c"), my_file.url.replace("/files/c", "/files/@other/c")] {
        assert_eq!(get(&server, &forged).await.0, 403, "{forged}");
    }

    // A full quota is one owner's own.
    files.write(&other, &path("full"), vec![1; 900 * KIB].into()).await.expect("written");
    let refused = files.write(&other, &path("more"), vec![1; 200 * KIB].into()).await.expect_err("too much");
    assert_eq!(refused.code, Code::QuotaExceeded);
    files.write(&mine, &path("more"), vec![1; 200 * KIB].into()).await.expect("written");
    assert_eq!(files.page(&mine, FileQuery::default()).await.expect("a list").files.len(), 2);

    let language = "python".parse().expect("a language");
    let run = RunRequest::new(key("@other/d"), language, "write made theirs".into());
    server.mcp.runs.begin(run).expect("a run").finished().await.expect("a report");
    until("its sandbox is gone", async || server.engine.live().is_empty()).await;
    assert!(!server.root.join("d").exists() && server.root.join("@other/d/files/made").exists());

    // Listed, expired and deleted apart.
    let listed = server.http.get(format!("http://{}/v1/conversations", server.address)).bearer_auth(TOKEN);
    let listed: Value = listed.send().await.expect("an answer").json().await.expect("JSON");
    let listed = listed["conversations"].as_array().expect("a list");
    let ids: Vec<_> = listed.iter().map(|one| &one["conversationId"]).collect();
    assert_eq!(ids, [&json!("c")]);
    server.used_ago("@other/c", Duration::from_hours(24 * 40));
    assert_eq!(server.retention.round().await, Ok(1));
    assert!(!server.root.join("@other/c").exists() && server.root.join("c/files/f").exists());
    files.write(&other, &path("f"), "again".into()).await.expect("written: nothing counts against it any more");
    let delete = server.http.delete(format!("http://{}/v1/conversations/c", server.address)).bearer_auth(TOKEN);
    assert_eq!(delete.send().await.expect("an answer").status(), 204);
    assert!(!server.root.join("c").exists());
    assert_eq!(get(&server, &their_file.url).await, (200, "again".to_owned()));
    server.stop().await;
}
