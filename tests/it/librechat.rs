//! LibreChat's code interpreter API with LibreChat's own client, on the fake engine and with real programs.

use serde_json::{Value, json};

use crate::{
    mcp_clients::{client, tool},
    support::{
        FakeServer, Server,
        calls::{create, get},
        server::TOKEN,
    },
};

const FAKE: [&str; 3] = ["print made\nwrite made.txt text", "print seen", "stderr no\nexit 1"];
const REAL: [&str; 3] = [
    "open('/mnt/data/made.txt', 'w').write('text')\nprint('made')",
    "import os\nassert os.getcwd() == '/data' and open('/mnt/data/made.txt').read() == 'text'\nprint('seen')",
    "raise ValueError('no')",
];

async fn agents(base: &str, programs: [&str; 3]) {
    let folder = tool("librechat/node_modules/@librechat/agents");
    let arguments = ["librechat_client.mjs", folder.to_str().expect("text"), base, TOKEN];
    client(&tool("npm/node_modules/.bin/node"), &[&arguments[..], &programs].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_package_works_unchanged() {
    let server = FakeServer::start().await;
    agents(&format!("http://{}/librechat", server.address), FAKE).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_programs_work_in_mnt_data() {
    let server = Server::start().await;
    agents(&server.url("/librechat"), REAL).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_program_changes_or_reads_what_another_session_or_owner_holds() {
    let server = FakeServer::start().await;
    let url = |path: &str| format!("http://{}/librechat/v1{path}", server.address);
    let exec = async |token: &str, body: Value| {
        let call = server.http.post(url("/exec")).bearer_auth(token).json(&body).send().await.expect("an answer");
        (call.status().as_u16(), call.json::<Value>().await.expect("JSON"))
    };
    let (_, first) = exec(TOKEN, json!({"lang": "py", "code": "write a.txt one"})).await;
    let file = &first["files"][0];
    let named =
        json!([{"id": file["id"], "storage_session_id": file["storage_session_id"], "name": "/mnt/data/a.txt"}]);
    let (_, second) = exec(TOKEN, json!({"lang": "py", "code": "append a.txt two", "files": named})).await;
    assert_eq!(second["files"][0]["inherited"], Value::Null, "it was changed: {second}");
    let read = async |token: &str, of: &Value| {
        let file = &of["files"][0];
        let (session, id) = (file["storage_session_id"].as_str().expect("an id"), file["id"].as_str().expect("an id"));
        let call = server.http.get(url(&format!("/download/{session}/{id}"))).bearer_auth(token).send();
        let answer = call.await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    };
    let (was, is) = (read(TOKEN, &first).await, read(TOKEN, &second).await);
    assert_eq!((was.0, was.1.trim(), is.0), (200, "one", 200));
    assert!(is.1.contains("one") && is.1.contains("two"), "{}", is.1);

    let (_, other) = create(&server, json!({"owner": "other", "name": "t"})).await;
    assert_eq!(read(&other, &first).await.0, 404);
    let (status, alone) = exec(&other, json!({"lang": "py", "code": "print alone", "files": named})).await;
    assert_eq!((status, &alone["files"], &alone["stdout"]), (200, &json!([]), &json!("alone\n")), "{alone}");
    assert!(alone["stderr"].as_str().expect("text").contains("no longer there"), "{alone}");

    for (body, expected) in [
        (json!({"lang": "cobol", "code": "x"}), 422),
        (json!({"code": "x"}), 422),
        (json!({"lang": "py", "code": "print x", "session_id": "../../../../../../../"}), 404),
        (json!({"lang": "py", "code": "x", "files": vec![json!({"id": "x"}); 201]}), 422),
    ] {
        let (status, why) = exec(TOKEN, body.clone()).await;
        assert_eq!(status, expected, "{body}: {why}");
        assert!(why["error"].is_string() && why["message"].is_string(), "{why}");
    }
    let conversations = async || {
        let list = get(&server, "/v1/conversations").await;
        list["conversations"].as_array().expect("a list").len()
    };
    let before = conversations().await;
    // The plain protocol has no arguments.
    for (mut body, name) in
        [(json!({"lang": "cobol", "code": "x"}), "lang"), (json!({"lang": "py", "code": "x", "args": ["a"]}), "args")]
    {
        body["files"] = named.clone();
        let (status, why) = exec(TOKEN, body).await;
        assert_eq!((status, conversations().await), (422, before), "nothing was copied for it: {why}");
        assert!(why["message"].as_str().is_some_and(|why| why.starts_with(&format!("{name}: "))), "{why}");
    }
    let hint = json!({"lang": "py", "code": "write b.txt x", "runtime_session_hint": "c1"});
    let (_, one) = exec(TOKEN, hint.clone()).await;
    assert_eq!(exec(TOKEN, hint).await.1["session_id"], one["session_id"]);
    server.stop().await;
}
