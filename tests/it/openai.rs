//! OpenAI's containers with OpenAI's own client.

use mcp_sandbox_server::{
    domain::owner::{ConversationKey, Principal},
    services::containers::{Container, ContainerApi},
};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    mcp_clients::{client, tool},
    support::{
        FakeServer,
        calls::{ask, call},
        server::TOKEN,
    },
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
    let file = format!("{files}/{}", listed["first_id"].as_str().expect("an id"));
    assert_eq!(get(TOKEN, &file).await.0, 200, "it is there");
    for path in [files.clone(), format!("/openai/v1/containers/{id}"), format!("{file}/content"), file] {
        assert_eq!(get(other, &path).await.0, 404, "{path}");
    }
    assert_eq!(get(other, "/openai/v1/containers").await.1["data"], json!([]));
    assert_eq!(get("wrong", &files).await.0, 401);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_members_of_openais() {
    let server = FakeServer::start().await;
    let (_, first) = ask(&server, Method::POST, "/openai/v1/containers", json!({"name": "a"})).await;
    let after = format!("/openai/v1/containers?after={}", first["id"].as_str().expect("an id"));
    let (status, page) = ask(&server, Method::GET, &after, None).await;
    assert_eq!((status, &page["data"], &page["has_more"]), (200, &json!([]), &json!(false)), "{page}");
    for (token, method, path, body, expected, param) in [
        (TOKEN, Method::GET, "/openai/v1/containers?after=cntr_none", None, 400, json!("after")),
        (TOKEN, Method::POST, "/openai/v1/containers", Some(json!({"name": "x".repeat(257)})), 400, json!("name")),
        (TOKEN, Method::GET, "/openai/v1/containers/none", None, 404, Value::Null),
        ("wrong", Method::GET, "/openai/v1/containers", None, 401, Value::Null),
    ] {
        let (status, answer) = call(&server, token, method, path, body).await;
        let error = &answer["error"];
        assert_eq!((status, &error["param"]), (expected, &param), "{path}: {answer}");
        assert_eq!(error["type"], "invalid_request_error", "{path}: {answer}");
        assert!(error["message"].is_string() && error["code"].is_string(), "{path}: {answer}");
    }
    server.stop().await;
}

/// Programs take the place of a clock: they last longer than an unused container lives.
#[tokio::test(flavor = "multi_thread")]
async fn programs_and_calls_on_its_files_are_uses_of_a_container() {
    let server = FakeServer::start().await;
    let (_, made) = ask(&server, Method::POST, "/openai/v1/containers", json!({"name": "a"})).await;
    let id = made["id"].as_str().expect("an id");
    let key = ConversationKey::new(Principal::default(), id.parse().expect("an id"));
    let brief = |container: &mut Container| container.idle_s = Some(6);
    server.containers.change(&key, ContainerApi::OpenAi, brief).expect("a container");
    let run = async |conversation: &str, code: &str| {
        let run = json!({"language": "python", "code": code, "conversationId": conversation});
        let (status, answer) = ask(&server, Method::POST, "/v1/runs", run).await;
        assert_eq!(status, 200, "{answer}");
    };
    let is_listed = async || {
        let (_, page) = ask(&server, Method::GET, "/openai/v1/containers", None).await;
        page["data"].as_array().is_some_and(|all| all.iter().any(|one| one["id"] == id))
    };
    run(id, "sleep 6500ms\nwrite out.txt text").await;
    assert!(is_listed().await, "a program was in it");
    for _ in 0..7 {
        run("other", "sleep 1s").await;
        let path = format!("/v1/conversations/{id}/files");
        assert_eq!(ask(&server, Method::GET, &path, None).await.0, 200);
    }
    assert!(is_listed().await, "its files were listed");
    run("other", "sleep 6500ms").await;
    assert!(!is_listed().await, "it was not used");
    server.stop().await;
}
