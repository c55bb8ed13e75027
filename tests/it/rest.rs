//! `/v1` as its clients use it, against a whole server on the fake engine.

use futures_util::{FutureExt as _, StreamExt as _};
use mcp_sandbox_server::api::http::openapi;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::{FakeServer, server::TOKEN, until};

mod archive;
mod busy;
mod examples;
mod exposed;
mod moves;
mod real;
mod uploads;

fn call(server: &FakeServer, method: Method, path: &str) -> RequestBuilder {
    server.http.request(method, format!("http://{}{path}", server.address)).bearer_auth(TOKEN)
}

async fn get(server: &FakeServer, path: &str) -> Value {
    let response = call(server, Method::GET, path).send().await.expect("an answer");
    assert_eq!(response.status(), 200, "{path}");
    response.json().await.expect("JSON")
}

async fn create(server: &FakeServer, body: Value) -> Response {
    call(server, Method::POST, "/v1/runs").json(&body).send().await.expect("an answer")
}

/// A refusal: its status and code, and everything that a problem must hold.
async fn refused(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let request_id = response.headers()["x-request-id"].to_str().expect("text").to_owned();
    let problem: Value = response.json().await.expect("JSON");
    assert_eq!((&problem["status"], &problem["type"]), (&json!(status), &json!("about:blank")), "{problem}");
    assert_eq!(problem["requestId"], request_id, "{problem}");
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{problem}");
    (status, problem["code"].as_str().expect("a code").to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn create_waits_for_the_run_or_returns_at_once() {
    let server = FakeServer::start().await;
    let whole =
        create(&server, json!({"conversationId": "a", "language": "python", "code": "print hi\nwrite x y"})).await;
    assert_eq!(whole.status(), 200);
    let location = whole.headers()["location"].to_str().expect("text").to_owned();
    let whole: Value = whole.json().await.expect("JSON");
    assert_eq!((&whole["state"], &whole["result"]["stdout"]), (&json!("finished"), &json!("hi\n")), "{whole}");
    assert_eq!(whole["result"]["files"][0]["path"], "x");
    assert_eq!(get(&server, &location).await["result"], whole["result"]);

    let left = create(&server, json!({"language": "python", "code": "print 1\nhang", "wait": 0})).await;
    assert_eq!(left.status(), 202);
    let location = left.headers()["location"].to_str().expect("text").to_owned();
    let left: Value = left.json().await.expect("JSON");
    assert_ne!(left["state"], "finished");
    assert!(left["conversationId"].as_str().expect("an id").starts_with("c-"));
    until("it runs", async || get(&server, &location).await["state"] == "running").await;
    let cancelled = call(&server, Method::POST, &format!("{location}/cancel")).send().await.expect("an answer");
    let cancelled: Value = cancelled.json().await.expect("JSON");
    assert_eq!(cancelled["outcome"]["ended"], "cancelled", "{cancelled}");

    let all = get(&server, "/v1/runs?limit=1").await;
    assert_eq!((&all["runs"][0]["runId"], &all["runs"][0]["result"]), (&left["runId"], &Value::Null));
    let after = all["after"].as_str().expect("another page");
    let rest = get(&server, &format!("/v1/runs?after={after}")).await;
    assert_eq!((&rest["runs"][0]["runId"], &rest["after"]), (&whole["runId"], &Value::Null));
    assert_eq!(get(&server, "/v1/runs?conversationId=a").await["runs"].as_array().map(Vec::len), Some(1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_cancels_the_run_unless_detached() {
    let server = FakeServer::start().await;
    for (more, expected) in [(json!({}), "cancelled"), (json!({"detach": true}), "timed_out")] {
        let mut body =
            json!({"conversationId": "gone", "language": "python", "code": "hang", "limits": {"wallMs": 1500}});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let newest = async || get(&server, "/v1/runs?limit=1").await["runs"][0].clone();
        let before = newest().await;
        {
            let mut asking = Box::pin(create(&server, body));
            until("it runs", async || {
                assert!((&mut asking).now_or_never().is_none());
                let run = newest().await;
                run["runId"] != before["runId"] && run["state"] == "running"
            })
            .await;
        }
        until("it is over", async || newest().await["state"] == "finished").await;
        assert_eq!(newest().await["outcome"]["ended"], expected);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_creates_one_run() {
    let server = FakeServer::start().await;
    let ask = async |key: &str, code: &str| {
        let body = json!({"language": "python", "code": code}).to_string();
        let call = call(&server, Method::POST, "/v1/runs").header("idempotency-key", key);
        call.header("content-type", "application/json").body(body).send().await.expect("an answer")
    };
    let first: Value = ask("k", "print 1").await.json().await.expect("JSON");
    let again = ask("k", "print 1").await;
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    let again: Value = again.json().await.expect("JSON");
    assert_eq!(first["runId"], again["runId"]);
    assert_eq!(refused(ask("k", "print 2").await).await, (422, "idempotency_key_reused".to_owned()));
    let (one, two) = tokio::join!(ask("both", "sleep 50ms"), ask("both", "sleep 50ms"));
    let (one, two): (Value, Value) = (one.json().await.expect("JSON"), two.json().await.expect("JSON"));
    assert_eq!(one["runId"], two["runId"]);
    assert_eq!(get(&server, "/v1/runs").await["runs"].as_array().map(Vec::len), Some(2));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn problem_names_the_run_that_failed_and_none_where_none_was_begun() {
    let server = FakeServer::start().await;
    server.engine.faults().exits_to_lose += 1;
    let create = async |language: &str| -> Value {
        let body = json!({"language": language, "code": "print before"});
        let call = call(&server, Method::POST, "/v1/runs").header("idempotency-key", language).json(&body);
        call.send().await.expect("an answer").json().await.expect("JSON")
    };
    let lost = create("python").await;
    assert_eq!(lost["code"], "engine_lost", "{lost}");
    let path = format!("/v1/runs/{}/events", lost["runId"].as_str().expect("an id"));
    let events = call(&server, Method::GET, &path).send().await.expect("a stream").text().await.expect("text");
    assert!(events.contains(r#""text":"before\n""#) && events.contains("event: failed"), "{events}");
    assert_eq!(create("python").await["runId"], lost["runId"], "of the same key");
    let refused = create("cobol").await;
    assert_eq!((&refused["code"], refused.get("runId")), (&json!("runner_not_found"), None), "{refused}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_streamed_live_and_resumed_from_any_number() {
    let server = FakeServer::start().await;
    let code = "print one\nwait-file go\nbytes ff\nprint two";
    let left = json!({"conversationId": "live", "language": "python", "code": code, "wait": 0});
    let left: Value = create(&server, left).await.json().await.expect("JSON");
    let path = format!("/v1/runs/{}/events", left["runId"].as_str().expect("an id"));
    let live = call(&server, Method::GET, &path).send().await.expect("a stream");
    assert_eq!(live.headers()["content-type"], "text/event-stream");
    let mut pieces = live.bytes_stream();
    let mut text = String::new();
    while !text.contains("one") {
        text += &String::from_utf8_lossy(&pieces.next().await.expect("more").expect("bytes"));
    }
    assert!(!text.contains("finished"), "it came before the end: {text}");
    std::fs::write(server.root.join("live/files/go"), "").expect("written");
    while let Some(piece) = pieces.next().await {
        text += &String::from_utf8_lossy(&piece.expect("bytes"));
    }
    for part in ["event: queued", "event: started", r#""text":"one\n""#, r#""base64":""#, "event: finished"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let last = text.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().expect("an id").to_owned();
    let number: u64 = last.parse().expect("a number");
    let again = call(&server, Method::GET, &path).header("last-event-id", number - 1).send().await.expect("a stream");
    let again = again.text().await.expect("text");
    assert_eq!(again.matches("id: ").count(), 1, "{again}");
    assert_eq!(
        again,
        call(&server, Method::GET, &format!("{path}?after={}", number - 1))
            .send()
            .await
            .expect("a stream")
            .text()
            .await
            .expect("text")
    );
    let nothing = call(&server, Method::GET, &path).header("last-event-id", last).send().await.expect("an answer");
    assert_eq!(nothing.status(), StatusCode::NO_CONTENT);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_and_deleted() {
    let server = FakeServer::start().await;
    let path = "/v1/conversations/f/files/out/%C3%A9%ff%20.txt";
    let put =
        async |content: &'static str| call(&server, Method::PUT, path).body(content).send().await.expect("an answer");
    let made = put("hello").await;
    assert_eq!(made.status(), 201);
    let etag = made.headers()["etag"].clone();
    let entry: Value = made.json().await.expect("JSON");
    assert_eq!((&entry["size"], &entry["pathEncoded"]), (&json!(5), &json!("out/%C3%A9%FF%20.txt")), "{entry}");
    let read = call(&server, Method::GET, path).send().await.expect("an answer");
    assert_eq!(
        (read.headers()["content-type"].as_bytes(), &read.headers()["etag"]),
        (&b"text/plain; charset=utf-8"[..], &etag)
    );
    assert_eq!(read.text().await.expect("text"), "hello");
    let same = call(&server, Method::GET, path).header("if-none-match", &etag).send().await.expect("an answer");
    assert_eq!(same.status(), 304);
    let part = call(&server, Method::GET, path).header("range", "bytes=1-2").send().await.expect("an answer");
    assert_eq!((part.status().as_u16(), part.text().await.expect("text").as_str()), (206, "el"));
    assert_eq!(put("other").await.status(), 200);
    assert_eq!(get(&server, "/v1/conversations/f/files").await["files"].as_array().map(Vec::len), Some(1));
    let gone = call(&server, Method::DELETE, path).send().await.expect("an answer");
    assert_eq!(gone.status(), 204);
    assert_eq!(refused(call(&server, Method::GET, path).send().await.expect("an answer")).await.1, "file_not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_paged_and_deleted_only_when_idle() {
    let server = FakeServer::start().await;
    for name in ["c", "a", "b"] {
        let path = format!("/v1/conversations/{name}/files/x");
        call(&server, Method::PUT, &path).body("x").send().await.expect("an answer");
    }
    let page = get(&server, "/v1/conversations?limit=2").await;
    let names = |page: &Value| {
        let all = page["conversations"].as_array().expect("a list");
        all.iter().map(|one| one["conversationId"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names(&page), page["after"].as_str()), (vec!["a".to_owned(), "b".to_owned()], Some("b")));
    assert!(page["conversations"][0]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{page}");
    let rest = get(&server, "/v1/conversations?limit=2&after=b").await;
    assert_eq!((names(&rest), &rest["after"]), (vec!["c".to_owned()], &Value::Null));

    let left = create(&server, json!({"conversationId": "a", "language": "python", "code": "hang", "wait": 0})).await;
    let left: Value = left.json().await.expect("JSON");
    let run = format!("/v1/runs/{}", left["runId"].as_str().expect("an id"));
    until("it runs", async || get(&server, &run).await["state"] == "running").await;
    let delete = async || call(&server, Method::DELETE, "/v1/conversations/a").send().await.expect("an answer");
    assert_eq!(refused(delete().await).await, (409, "conversation_busy".to_owned()));
    call(&server, Method::POST, &format!("{run}/cancel")).send().await.expect("an answer");
    until("its turn is given back", async || delete().await.status() == 204).await;
    assert!(!server.root.join("a").exists());
    assert_eq!(refused(delete().await).await, (404, "conversation_not_found".to_owned()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_queue_and_unreachable_engine_return_retry_after() {
    let server = FakeServer::with(&[("SANDBOX_ADMISSION__SLOTS", "1"), ("SANDBOX_ADMISSION__QUEUE_MAX", "1")]).await;
    let hang = json!({"language": "python", "code": "hang", "wait": 0});
    for _ in 0..2 {
        assert_eq!(create(&server, hang.clone()).await.status(), 202);
    }
    let full = create(&server, hang).await;
    assert_eq!((full.status().as_u16(), full.headers()["retry-after"].as_bytes()), (429, &b"2"[..]));
    assert_eq!(refused(full).await.1, "queue_full");
    for run in get(&server, "/v1/runs").await["runs"].as_array().expect("a list") {
        let path = format!("/v1/runs/{}/cancel", run["runId"].as_str().expect("an id"));
        call(&server, Method::POST, &path).send().await.expect("an answer");
    }
    until("the slot is free", async || {
        let listed = get(&server, "/v1/runs").await;
        listed["runs"].as_array().expect("a list").iter().all(|run| run["state"] == "finished")
    })
    .await;
    server.engine.faults().away = true;
    let away = create(&server, json!({"language": "python", "code": "print 1"})).await;
    assert_eq!((away.status().as_u16(), away.headers().contains_key("retry-after")), (503, true));
    assert_eq!(refused(away).await.1, "engine_unavailable");
    server.engine.faults().away = false;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_document_and_docs_page_need_no_token() {
    let server = FakeServer::start().await;
    let open =
        async |path: &str| server.http.get(format!("http://{}{path}", server.address)).send().await.expect("an answer");
    let document: Value = open("/openapi.json").await.json().await.expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
    let page = open("/docs").await;
    let policy = page.headers()["content-security-policy"].to_str().expect("text").to_owned();
    assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
    let page = page.text().await.expect("text");
    assert!(!page.contains("href=\"/\""), "below a path prefix it would lead elsewhere");
    let script = page.split('"').find(|part| part.ends_with("/docs.js")).expect("a script");
    assert_eq!(open(&format!("/{}", script.trim_start_matches('/'))).await.status(), 200);
    server.stop().await;
}

/// The description and the wire: members of events, the list of codes.
#[tokio::test(flavor = "multi_thread")]
async fn events_have_the_members_that_the_document_names() {
    let server = FakeServer::start().await;
    let run = json!({"language": "python", "code": "print 1\nflood 600000\nwrite a b\nexit 3"});
    let run: Value = create(&server, run).await.json().await.expect("JSON");
    let address = format!("http://{}/v1/runs/{}/events", server.address, run["runId"].as_str().expect("an id"));
    let text = server.http.get(address).bearer_auth(TOKEN).send().await.expect("events").text().await.expect("text");
    let document: Value = serde_json::from_str(&openapi::text()).expect("JSON");
    let schemas = &document["components"]["schemas"];
    let known = schemas["RunEvent"]["properties"].as_object().expect("members");
    let mut seen = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: Value = serde_json::from_str(line).expect("JSON");
        assert!(event.as_object().expect("an object").keys().all(|name| known.contains_key(name)), "{event}");
        assert!(schemas["EventWord"]["enum"].as_array().expect("words").contains(&event["kind"]), "{event}");
        seen.push(event["kind"].as_str().expect("a kind").to_owned());
    }
    for kind in ["queued", "started", "stdout", "cut", "file", "finished"] {
        assert!(seen.iter().any(|seen| seen == kind), "{kind} in {seen:?}");
    }
    let codes = document["components"]["schemas"]["ErrorCode"]["enum"].as_array().expect("codes");
    assert!(codes.len() > 30 && codes.contains(&json!("precondition_failed")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pages_may_use_the_api_only_where_the_setting_says_so() {
    const PAGE: &str = "https://app.example.org";
    let ask = async |server: &FakeServer, method: Method| {
        let request = server.http.request(method, format!("http://{}/v1/runners", server.address));
        let request = request.bearer_auth(TOKEN).header("origin", PAGE).header("access-control-request-method", "GET");
        let request = request.header("access-control-request-headers", "authorization");
        let response = request.send().await.expect("an answer");
        let allowed =
            response.headers().get("access-control-allow-origin").map(|value| value.to_str().expect("text").to_owned());
        (response.status().as_u16(), allowed)
    };
    let server = FakeServer::start().await;
    assert_eq!(ask(&server, Method::GET).await, (403, None));
    let refused = call(&server, Method::GET, "/v1/runners").header("origin", PAGE).send().await.expect("an answer");
    assert!(refused.text().await.expect("text").contains("SANDBOX_SERVER__CORS_ORIGINS"));
    assert_eq!(ask(&server, Method::OPTIONS).await.1, None);
    server.stop().await;
    let server =
        FakeServer::with(&[("SANDBOX_SERVER__CORS_ORIGINS", "https://x.example, https://app.example.org")]).await;
    assert_eq!(ask(&server, Method::GET).await, (200, Some(PAGE.to_owned())));
    assert_eq!(ask(&server, Method::OPTIONS).await, (200, Some(PAGE.to_owned())));
    let shown = call(&server, Method::GET, "/v1/runners").header("origin", PAGE).send().await.expect("an answer");
    let exposed = shown.headers()["access-control-expose-headers"].to_str().expect("text");
    for name in ["allow", "deprecation", "idempotency-replayed", "retry-after"] {
        assert!(exposed.contains(name), "{name}: {exposed}");
    }
    let other = call(&server, Method::GET, "/v1/runners").header("origin", "https://other.example").send();
    let other = other.await.expect("an answer");
    assert_eq!(other.status(), 403);
    server.stop().await;
}

/// The page of the API, in a browser that enforces its policy.
#[tokio::test(flavor = "multi_thread")]
async fn docs_page_shows_every_operation() {
    let server = FakeServer::with_kernel(&[]).await;
    let browser = examples::page(&format!("http://{}", server.address)).await;
    let shown = browser.script("return [...document.querySelectorAll('section.card')].map(card => card.id)").await;
    let shown: Vec<String> = serde_json::from_value(shown).expect("names");
    let document: Value = serde_json::from_str(&openapi::text()).expect("JSON");
    let items = document["paths"].as_object().expect("paths").values();
    let mut expected: Vec<_> = items
        .flat_map(|item| item.as_object().expect("operations").values())
        .map(|operation| operation["operationId"].as_str().expect("a name").to_owned())
        .collect();
    expected.sort();
    let mut sorted = shown.clone();
    sorted.sort();
    assert_eq!(sorted, expected);
    let wide = browser.script("return document.documentElement.scrollWidth > innerWidth").await;
    assert_eq!(wide, false, "nothing sticks out");
    examples::run_on_fakes(&server, &browser).await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&folder).expect("a folder");
    browser.screenshot(&folder.join("docs.png")).await;
    // Some operations with all that can be opened. The whole would take axe too long.
    let some = "[...document.querySelectorAll('section.card')].slice(12).forEach((card) => card.remove()); \
                document.querySelectorAll('details').forEach((one) => (one.open = true))";
    browser.script(some).await;
    assert_eq!(crate::page_access::findings(&browser, "the documentation").await, Vec::<Value>::new());
    browser.close().await;
    server.stop().await;
}
