//! What the interfaces of other products refuse, each in its own form.

use futures_util::FutureExt as _;
use mcp_sandbox_server::services::containers::ContainerApi;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::support::{
    FakeServer,
    calls::{ask, get, request},
    server::TOKEN,
    until,
};

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_a_path_or_a_query_have_the_form_of_the_product() {
    let server = FakeServer::start().await;
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    for (method, path, expected, member) in [
        (Method::GET, "/openai/v1/containers?limit=x", 400, "/error/message"),
        (Method::GET, "/openai/v1/containers?after=a&after=b", 400, "/error/message"),
        (Method::GET, "/openai/v1/containers/%ff", 404, "/error/message"),
        (Method::GET, "/openai/v1/containers/c/files/%ff", 404, "/error/message"),
        (Method::DELETE, "/e2b/sandboxes/%ff", 404, "/message"),
        (Method::GET, "/librechat/v1/files/%ff", 404, "/message"),
        (Method::GET, "/v1/executions/%ff", 404, "/stderr"),
        (Method::GET, "/v1/sessions/session/%ff", 404, "/detail"),
        (Method::GET, "/v1/sessions/session?session_id=a&session_id=b", 400, "/detail"),
        (Method::DELETE, "/v1/connections/%ff", 404, "/detail"),
    ] {
        let (status, why) = ask(&server, method, path, None).await;
        assert_eq!(status, expected, "{path}: {why}");
        assert!(why.pointer(member).is_some_and(text), "{path}: {why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_of_e2b_holds_200_files() {
    let server = FakeServer::start().await;
    let (_, opened) = ask(&server, Method::POST, "/e2b/sandboxes", json!({})).await;
    let id = opened["sandboxID"].as_str().expect("an id");
    for (count, expected) in [(200, 200), (201, 413)] {
        let part = |n: usize| {
            format!("--cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{count}/{n}\"\r\n\r\nx\r\n")
        };
        let body = format!("{}--cut--\r\n", (0..count).map(part).collect::<Vec<_>>().concat());
        let request = server.http.post(format!("http://{}/e2b/files", server.address)).bearer_auth(TOKEN);
        let request = request.header("e2b-sandbox-id", id).header("content-type", "multipart/form-data; boundary=cut");
        let answer = request.body(body).send().await.expect("an answer");
        assert_eq!(answer.status(), expected, "{count}: {}", answer.text().await.expect("text"));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_of_a_forms_members_are_bounded() {
    let server = FakeServer::start().await;
    let (_, sandbox) = ask(&server, Method::POST, "/e2b/sandboxes", json!({})).await;
    let (_, container) = ask(&server, Method::POST, "/openai/v1/containers", json!({"name": "n"})).await;
    let files = format!("/openai/v1/containers/{}/files", container["id"].as_str().expect("an id"));
    let head = format!("Content-Disposition: form-data; name=\"file\"; filename=\"f\"\r\nX: {}", "x".repeat(64 << 10));
    let body = format!("--cut\r\n{head}\r\n\r\nx\r\n--cut--\r\n");
    for path in ["/upload", "/librechat/v1/upload", "/librechat/v1/upload/batch", "/e2b/files", &files] {
        let sent =
            request(&server, TOKEN, Method::POST, path).header("content-type", "multipart/form-data; boundary=cut");
        let sent = sent.header("e2b-sandbox-id", sandbox["sandboxID"].as_str().expect("an id"));
        let answer = sent.body(body.clone()).send().await.expect("an answer");
        assert_eq!(answer.status(), 413, "{path}: {}", answer.text().await.expect("text"));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_that_librechat_may_not_write_does_not_stop_the_next() {
    let server = FakeServer::start().await;
    let part = |name: &str, content: &str| {
        format!("--cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{content}\r\n")
    };
    let body = format!("{}{}--cut--\r\n", part("../a", &"x".repeat(4 << 20)), part("b", "x"));
    let sent = request(&server, TOKEN, Method::POST, "/librechat/v1/upload/batch");
    let sent = sent.header("content-type", "multipart/form-data; boundary=cut").body(body);
    let written: Value = sent.send().await.expect("an answer").json().await.expect("JSON");
    let of = |index: usize| (written["files"][index]["filename"].clone(), written["files"][index]["status"].clone());
    assert_eq!(of(0), (json!("../a"), json!("error")), "{written}");
    assert_eq!(of(1), (json!("b"), json!("success")), "{written}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_e2b_has_at_most_64_labels_of_256_characters() {
    let server = FakeServer::start().await;
    let labels = |count: usize| (0..count).map(|n| (n.to_string(), json!("v"))).collect::<Map<_, _>>();
    let (most, long) = ("\u{e9}".repeat(256), "x".repeat(257));
    for (body, named) in [
        (json!({"templateID": most, "metadata": labels(64)}), None),
        (json!({"metadata": {most.clone(): most}}), None),
        (json!({"templateID": long}), Some("templateID: ")),
        (json!({"metadata": labels(65)}), Some("metadata: ")),
        (json!({"metadata": {long.clone(): "v"}}), Some("metadata: ")),
        (json!({"metadata": {"n": long}}), Some("metadata: ")),
    ] {
        let (status, answer) = ask(&server, Method::POST, "/e2b/sandboxes", body).await;
        let why = answer["message"].as_str().unwrap_or_default();
        assert_eq!(status, named.map_or(201, |_| 400), "{named:?}: {answer}");
        assert!(why.starts_with(named.unwrap_or_default()), "{named:?}: {answer}");
    }
    assert_eq!(get(&server, "/e2b/v2/sandboxes").await.as_array().map(Vec::len), Some(2), "a refused one is not held");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_e2b_is_not_made_with_rules_that_would_not_hold() {
    let server = FakeServer::start().await;
    for (network, expected) in [
        (json!({"denyOut": ["0.0.0.0/0"]}), 400),
        (json!({"allowOut": ["example.com"], "denyOut": []}), 400),
        (json!({"rules": {"example.com": []}}), 400),
        (json!("none"), 400),
        (json!({"allowPublicTraffic": false, "maskRequestHost": "a", "denyOut": [], "egressProxy": null}), 201),
        (json!(null), 201),
    ] {
        let (status, why) = ask(&server, Method::POST, "/e2b/v2/sandboxes", json!({"network": network})).await;
        assert_eq!(status, expected, "{network}: {why}");
        assert_eq!(why["message"].as_str().is_some_and(|why| why.starts_with("network: ")), status == 400, "{why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_e2b_is_not_made_with_variables_that_no_program_gets() {
    let server = FakeServer::start().await;
    let (status, why) = ask(&server, Method::POST, "/e2b/sandboxes", json!({"envVars": {"NAME": "secret"}})).await;
    assert_eq!(status, 400, "{why}");
    assert!(why["message"].as_str().is_some_and(|why| why.contains("NAME") && !why.contains("secret")), "{why}");
    assert_eq!(get(&server, "/e2b/v2/sandboxes").await, json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_container_leaves_no_files_of_a_program_that_ran_in_it() {
    let server = FakeServer::start().await;
    for (containers, id, removed) in [("/openai/v1/containers", "id", 200), ("/e2b/sandboxes", "sandboxID", 204)] {
        let (_, made) = ask(&server, Method::POST, containers, json!({"name": "n"})).await;
        let id = made[id].as_str().expect("an id");
        let program = json!({"conversationId": id, "language": "python", "code": "write f 1\nhang", "wait": 0});
        let (_, begun) = ask(&server, Method::POST, "/v1/runs", program).await;
        let run = format!("/v1/runs/{}", begun["runId"].as_str().expect("an id"));
        let files = format!("/v1/conversations/{id}/files");
        until("it has written", async || get(&server, &files).await["files"][0]["path"] == "f").await;
        assert_eq!(ask(&server, Method::DELETE, &format!("{containers}/{id}"), None).await.0, removed);
        assert_eq!(get(&server, &files).await["files"], json!([]), "{containers}");
        until("it is over", async || get(&server, &run).await["result"]["outcome"]["ended"] == "cancelled").await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_container_leaves_no_files_where_its_caller_goes_away() {
    let server = FakeServer::start().await;
    let key = "box".parse().expect("a key");
    server.containers.create(&key, ContainerApi::E2b, 60, |_| ()).expect("a container");
    let file = json!({"conversationId": "box", "language": "python", "code": "write f 1"});
    assert_eq!(ask(&server, Method::POST, "/v1/runs", file).await.0, 200);
    // As a program does that has not ended yet.
    let held = server.mcp.runs.lock_if_idle(&key).expect("no program runs");
    let removal = server.containers.remove(&key, ContainerApi::E2b);
    assert!(removal.now_or_never().is_none(), "it waits");
    assert!(server.root.join("box").exists());
    drop(held);
    until("its files are deleted", async || !server.root.join("box").exists()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deprecated_paths_of_coderunner_say_so_also_in_refusals() {
    let server = FakeServer::start().await;
    for (method, path, is_deprecated) in [
        (Method::POST, "/execute", true),
        (Method::POST, "/v1/execute", false),
        (Method::POST, "/v1/sessions/session", true),
        (Method::GET, "/v1/sessions/session", true),
        (Method::DELETE, "/v1/sessions/session", true),
        (Method::GET, "/v1/sessions", false),
        (Method::POST, "/v1/browser/interactions/navigate", true),
        (Method::POST, "/v1/browser/interactions/content", true),
        (Method::POST, "/v1/browser/navigate", false),
    ] {
        let answer = request(&server, TOKEN, method.clone(), path).json(&json!({})).send().await.expect("an answer");
        let header = answer.headers().get("deprecation").map(|value| value.to_str().expect("text"));
        assert_eq!(header, is_deprecated.then_some("true"), "{method} {path}: {}", answer.status());
    }
    server.stop().await;
}

/// CodeRunner had one kernel, so its clients name none.
#[tokio::test(flavor = "multi_thread")]
async fn old_path_of_coderunner_closes_the_newest_session_where_none_is_named() {
    const SESSION: &str = "/v1/sessions/session";
    let server = FakeServer::with_kernel(&[]).await;
    let (_, first) = ask(&server, Method::POST, SESSION, json!({})).await;
    let (_, second) = ask(&server, Method::POST, SESSION, json!({})).await;
    let (status, why) = ask(&server, Method::POST, "/kill", json!({})).await;
    assert_eq!(status, 400, "the SDK names the session: {why}");
    for newest in [second, first] {
        let (status, closed) = ask(&server, Method::DELETE, SESSION, None).await;
        assert_eq!((status, &closed["session_id"]), (200, &newest["session_id"]), "{closed}");
        assert_eq!(closed["status"], "stopped");
    }
    assert_eq!(ask(&server, Method::DELETE, SESSION, None).await.0, 404, "none is open");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn coderunner_takes_a_program_from_whichever_member_holds_one() {
    let server = FakeServer::start().await;
    for body in [json!({"code": "", "command": "print x"}), json!({"code": "print x", "command": ""})] {
        let (status, executed) = ask(&server, Method::POST, "/v1/execute", body).await;
        assert_eq!((status, &executed["stdout"]), (200, &json!("x\n")), "{executed}");
    }
    for body in [json!({}), json!({"code": "", "command": ""})] {
        let (status, executed) = ask(&server, Method::POST, "/v1/execute", body).await;
        assert_eq!((status, &executed["stdout"]), (400, &json!("")), "{executed}");
    }
    for member in ["code", "command"] {
        let body = json!({(member): "x".repeat(2 << 20)});
        let (status, refused) = ask(&server, Method::POST, "/v1/execute", body).await;
        let why = refused["error"].as_str().expect("a sentence");
        assert!(status == 400 && why.starts_with(&format!("{member}: it is longer than")), "{why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn coderunner_answers_what_a_run_that_failed_had_printed() {
    let server = FakeServer::start().await;
    server.engine.faults().exits_to_lose += 2;
    let check = |out: &Value, err: &Value| {
        let is_after = err.as_str().is_some_and(|err| err.starts_with("err\nThe container engine lost"));
        assert!(out == "out\n" && is_after, "{out} {err}");
    };
    let program = json!({"code": "print out\nstderr err"});
    let (status, failed) = ask(&server, Method::POST, "/v1/execute", program.clone()).await;
    assert!(status >= 500 && failed["code"] == "engine_lost", "{status} {failed}");
    check(&failed["stdout"], &failed["stderr"]);
    let (_, begun) = ask(&server, Method::POST, "/execute_async", program).await;
    let id = begun["task_id"].as_str().expect("an id");
    ask(&server, Method::GET, &format!("/v1/runs/{id}?wait=20"), None).await;
    let (_, task) = ask(&server, Method::GET, &format!("/v1/executions/{id}"), None).await;
    check(&task["serialized_stdout"], &task["serialized_stderr"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_session_of_coderunner_whose_viewport_is_not_set_is_closed() {
    let server = FakeServer::with_browser().await;
    let open = async |body: Value| ask(&server, Method::POST, "/v1/browser/sessions/", body).await;
    for (given, named) in [("viewport_width", "viewport_height"), ("viewport_height", "viewport_width")] {
        let (status, why) = open(json!({given: 800})).await;
        assert!(status == 400 && why["detail"].as_str().is_some_and(|text| text.starts_with(named)), "{status} {why}");
    }
    assert!(server.engine.started().is_empty(), "it is refused before a sandbox starts");
    let (status, why) = open(json!({"viewport_width": 800, "viewport_height": 600})).await;
    assert_eq!(status, 422, "{why}");
    assert_eq!(get(&server, "/v1/sessions").await, json!({"sessions": []}));
    let (status, opened) = open(json!({})).await;
    assert_eq!((status, &opened["status"]), (200, &json!("active")), "{opened}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn librechat_repeats_a_bounded_part_of_names_that_it_does_not_find() {
    let server = FakeServer::start().await;
    let files = json!([{"id": "f", "name": "\u{1b}".repeat(100_000)}, {"id": "g"}]);
    let program = json!({"lang": "py", "code": "print x", "files": files});
    let (status, answer) = ask(&server, Method::POST, "/librechat/v1/exec", program).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("x\n")), "{answer:.300}");
    let told = answer["stderr"].as_str().expect("a text");
    assert!(told.len() < 2000 && told.contains("\"g\" is no longer there"), "{told:.300}");
    server.stop().await;
}
