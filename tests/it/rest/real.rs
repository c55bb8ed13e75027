//! `/v1` on real Docker.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, server::TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn real_programs_receive_arguments_input_and_files() {
    let server = Server::start().await;
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o600);
    archive.append_data(&mut header, "in/table.csv", &b"1,2,3"[..]).expect("an entry");
    let call = |method, path: &str| server.http.request(method, server.url(path)).bearer_auth(TOKEN);
    let put = call(Method::PUT, "/v1/conversations/real/archive").header("content-type", "application/x-tar");
    let put = put.body(archive.into_inner().expect("an archive")).send().await.expect("an answer");
    assert_eq!(put.status(), 200);
    let code = "import sys\nprint(sys.argv[1:], sys.stdin.read(), open('in/table.csv').read())\n\
                open('out.txt', 'w').write('x')";
    let body = json!({"conversationId": "real", "language": "py", "code": code, "args": ["a b"], "stdin": "typed",
                      "limits": {"wallMs": 20_000, "memoryBytes": 134_217_728}});
    let run: Value =
        call(Method::POST, "/v1/runs").json(&body).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(run["result"]["stdout"], "['a b'] typed 1,2,3\n", "{run}");
    assert_eq!(run["result"]["files"][0]["path"], "out.txt", "{run}");
    let read = call(Method::GET, "/v1/conversations/real/files/out.txt").send().await.expect("an answer");
    assert_eq!(read.text().await.expect("text"), "x");
    server.stop().await;
}
