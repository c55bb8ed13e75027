//! OpenAI's containers with OpenAI's own client.

use serde_json::{Value, json};

use crate::{
    mcp_clients::{client, tool},
    support::{FakeServer, server::TOKEN},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_client_works_unchanged() {
    let server = FakeServer::start().await;
    let base = format!("http://{}/openai/v1", server.address);
    client(&tool("openai/bin/python"), &["openai_client.py", &base, TOKEN]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_runs_in_a_container_of_its_owner_alone() {
    let server = FakeServer::start().await;
    let url = |path: &str| format!("http://{}{path}", server.address);
    let post = async |token: &str, path: &str, body: Value| {
        let answer = server.http.post(url(path)).bearer_auth(token).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let get = async |token: &str, path: &str| {
        let answer = server.http.get(url(path)).bearer_auth(token).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let (_, made) = post(TOKEN, "/v1/tokens", json!({"owner": "other", "name": "t"})).await;
    let other = made["token"].as_str().expect("a token");
    let (status, container) = post(TOKEN, "/openai/v1/containers", json!({"name": "a"})).await;
    assert_eq!(status, 200, "{container}");
    assert_eq!(container.get("network_policy"), None, "programs in it have the policies of their own token");
    let id = container["id"].as_str().expect("an id");
    post(TOKEN, "/v1/runs", json!({"language": "python", "code": "write out.txt text", "conversationId": id})).await;
    let files = format!("/openai/v1/containers/{id}/files");
    let (_, listed) = get(TOKEN, &files).await;
    assert_eq!(listed["data"][0]["path"], "/mnt/data/out.txt", "{listed}");
    for path in
        [files.clone(), format!("/openai/v1/containers/{id}"), format!("{files}/{}/content", listed["first_id"])]
    {
        assert_eq!(get(other, &path).await.0, 404, "{path}");
    }
    assert_eq!(get(other, "/openai/v1/containers").await.1["data"], json!([]));
    assert_eq!(get("wrong", &files).await.0, 401);
    server.stop().await;
}
