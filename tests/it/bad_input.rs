//! Bad input, from outside: every header, every id, every path, and what a program can plant in `/data`.
//!
//! Tables: every row states the expected answer; a 500, a closed connection without an answer where one is due, or a
//! byte of another conversation is a failure. Arguments and JSON forms have their own table in `mcp_bad_input.rs`, raw
//! download paths and signatures in the unit tests of `api/http/files` and `services/links`.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    Server,
    server::{FILE_SECRET, TOKEN},
};

/// What stands in `canary/files/secret.txt` and must never come out of another conversation.
const CANARY: &str = "canary-3f1c9a";

/// Sends bytes as they are and reads the answer's status and text; 0 when the connection was closed without one.
async fn raw(server: &Server, request: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    stream.write_all(request).await.expect("sent");
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, text)
}

fn text_of(result: &Value) -> String {
    let blocks = result["content"].as_array().cloned().unwrap_or_default();
    blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[tokio::test(flavor = "multi_thread")]
async fn bad_headers_methods_and_paths_are_refused() {
    let patience = [("SANDBOX_SERVER__BODY_READ_MS", "3000"), ("SANDBOX_SERVER__HEADER_READ_MS", "3000")];
    let server = Server::with(&patience).await;
    let host = server.address.to_string();
    let good = format!("Host: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let post = |headers: &str, body: &str| {
        format!("POST /mcp HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let with_host = |host: &str| {
        let headers = format!("Host: {host}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
        post(&headers, ping)
    };
    let with_auth = |auth: &str| post(&format!("Host: {host}\r\nContent-Type: application/json\r\n{auth}"), ping);
    let with = |more: &str| post(&format!("{good}{more}"), ping);
    let method = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\n{good}Connection: close\r\nContent-Length: 0\r\n\r\n")
    };
    let long = "x".repeat(200_000);
    let many: String = "X-Many: 1\r\n".repeat(100);
    let rows: Vec<(&str, String, &[u16])> = vec![
        ("the good one", with(""), &[200]),
        ("no token", with_auth(""), &[401]),
        ("empty token", with_auth("Authorization:\r\n"), &[401]),
        ("scheme only", with_auth("Authorization: Bearer\r\n"), &[401]),
        ("basic", with_auth(&format!("Authorization: Basic {TOKEN}\r\n")), &[401]),
        ("bare token", with_auth(&format!("Authorization: {TOKEN}\r\n")), &[401]),
        ("prefix", with_auth(&format!("Authorization: Bearer {}\r\n", &TOKEN[..20])), &[401]),
        ("suffix", with_auth(&format!("Authorization: Bearer {TOKEN}x\r\n")), &[401]),
        ("upper case", with_auth(&format!("Authorization: Bearer {}\r\n", TOKEN.to_uppercase())), &[401]),
        ("the other secret", with_auth(&format!("Authorization: Bearer {FILE_SECRET}\r\n")), &[401]),
        ("scheme in another case", with_auth(&format!("authorization: bEARER {TOKEN}\r\n")), &[200]),
        (
            "two tokens",
            with_auth(&format!("Authorization: Bearer {TOKEN}\r\nAuthorization: Bearer {TOKEN}\r\n")),
            &[401],
        ),
        (
            "a wrong one and the right one",
            with_auth(&format!("Authorization: Bearer x\r\nAuthorization: Bearer {TOKEN}\r\n")),
            &[401],
        ),
        ("token in a cookie", with_auth(&format!("Cookie: token={TOKEN}\r\n")), &[401]),
        ("token in the query", get(&format!("/mcp?token={TOKEN}")), &[401]),
        ("bytes above ASCII", with_auth("Authorization: Bearer \u{e4}\u{f6}\r\n"), &[401]),
        ("foreign host", with_host("evil.test"), &[403]),
        ("foreign host with our name in it", with_host("localhost.evil.test"), &[403]),
        ("host with a user", with_host(&format!("localhost@{host}")), &[400, 403]),
        ("empty host", with_host(""), &[400, 403]),
        ("host with a path", with_host("localhost/x"), &[400, 403]),
        ("two hosts", post(&format!("Host: {host}\r\n{good}"), ping), &[400]),
        ("no host", post(&good.replace(&format!("Host: {host}\r\n"), ""), ping), &[400]),
        ("foreign absolute form", with("").replace("POST /mcp", "POST http://evil.test/mcp"), &[400, 403]),
        ("null origin", with("Origin: null\r\n"), &[403]),
        ("foreign origin", with("Origin: https://evil.test\r\n"), &[403]),
        ("origin with our name in it", with(&format!("Origin: http://{host}.evil.test\r\n")), &[403]),
        ("our origin", with(&format!("Origin: http://{host}\r\n")), &[200]),
        ("two origins", with(&format!("Origin: http://{host}\r\nOrigin: http://{host}\r\n")), &[400]),
        ("text body", post(&good.replace("application/json", "text/plain"), ping), &[415]),
        ("form body", post(&good.replace("application/json", "application/x-www-form-urlencoded"), ping), &[415]),
        ("no content type", post(&good.replace("Content-Type: application/json\r\n", ""), ping), &[415]),
        ("almost JSON", post(&good.replace("application/json", "application/jsonx"), ping), &[415]),
        ("compressed", with("Content-Encoding: gzip\r\n"), &[400, 415]),
        ("no body", post(&good, ""), &[400]),
        ("half a body", post(&good, ping).replace(&ping[20..], ""), &[0, 400, 408]),
        ("negative length", with("").replace("Content-Length: ", "Content-Length: -"), &[400]),
        ("length in words", with("").replace("Content-Length: ", "Content-Length: x"), &[400]),
        ("two lengths", with("Content-Length: 1\r\n"), &[400]),
        ("length and chunks", with("Transfer-Encoding: chunked\r\n"), &[0, 400]),
        ("a long header", with(&format!("X-Long: {long}\r\n")), &[431]),
        ("many headers", with(&many), &[431]),
        ("a long path", get(&format!("/{long}")), &[400, 404, 414, 431]),
        ("a header without a colon", with("Nonsense\r\n"), &[400]),
        ("a header with a NUL", with("X-Nul: a\0b\r\n"), &[400]),
        ("a folded header", with("X-Fold: a\r\n b\r\n"), &[400]),
        ("no HTTP", "hello\r\n\r\n".to_owned(), &[400]),
        ("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), &[0, 400, 505]),
        ("HTTP/3 in words", with("").replace("HTTP/1.1", "HTTP/3.0"), &[400, 505]),
        ("unknown path", get("/nothing"), &[404]),
        ("dot segments", get("/../../etc/passwd"), &[404]),
        ("encoded dot segments", get("/%2e%2e/%2e%2e/etc/passwd"), &[404]),
        ("the page's build files", get("/vendor/package.json"), &[404]),
        ("the page with a NUL", get("/index.html%00"), &[404]),
        ("PUT on /mcp", method("PUT", "/mcp"), &[405]),
        ("PATCH on /mcp", method("PATCH", "/mcp"), &[405]),
        ("TRACE on /mcp", method("TRACE", "/mcp"), &[405]),
        ("nonsense method", method("BREW", "/mcp"), &[405]),
        ("POST on the page", method("POST", "/"), &[405]),
        ("DELETE on the page", method("DELETE", "/"), &[405]),
        ("POST on health", method("POST", "/healthz"), &[405]),
        ("POST on files", method("POST", "/files/canary/secret.txt"), &[405]),
        ("DELETE on files", method("DELETE", "/files/canary/secret.txt"), &[405]),
        (
            "method override",
            format!(
                "GET /files/canary/secret.txt HTTP/1.1\r\n{good}X-HTTP-Method-Override: PUT\r\n\
                 Connection: close\r\n\r\n"
            ),
            &[403],
        ),
        (
            "files with the token instead of a signature",
            format!("GET /files/canary/secret.txt HTTP/1.1\r\n{good}Connection: close\r\n\r\n"),
            &[403],
        ),
        ("files without anything", get("/files"), &[403, 404]),
        ("files without a conversation", get("/files/"), &[403, 404]),
        ("files of a conversation", get("/files/canary"), &[403, 404]),
        ("files with an empty signature", get("/files/canary/secret.txt?expires=9999999999&sig="), &[403]),
        ("health needs no token", get("/healthz"), &[200]),
        ("health answers any host", get("/healthz").replace(&host, "10.1.2.3:80"), &[200]),
    ];
    plant_canary(&server).await;
    for (what, request, expected) in &rows {
        let (status, text) = raw(&server, request.as_bytes()).await;
        assert!(expected.contains(&status), "{what}: {status} is not one of {expected:?}: {text:.400}");
        assert!(!text.contains(CANARY) && !text.contains(FILE_SECRET), "{what}: {text}");
    }
    assert!(rows.len() >= 70, "{} rows", rows.len());
    server.stop().await;
}

async fn plant_canary(server: &Server) {
    let arguments = json!({"conversationId": "canary", "path": "secret.txt", "content": CANARY});
    let result = server.call("sandbox.write_file", arguments).await;
    assert_eq!(result["isError"], false, "{result}");
}

fn folders(server: &Server) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(&server.root)
        .expect("the root")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_conversation_ids_reach_no_file() {
    let server = Server::start().await;
    plant_canary(&server).await;
    let (long, longest) = ("x".repeat(129), "x".repeat(1 << 20));
    let ids = [
        json!(""),
        json!("."),
        json!(".."),
        json!("../canary"),
        json!("canary/../canary"),
        json!("canary/"),
        json!("/canary"),
        json!("canary\\..\\x"),
        json!("canary%2f.."),
        json!("canary\0"),
        json!("canary\n"),
        json!(" canary"),
        json!("canary "),
        json!("-canary"),
        json!("_canary"),
        json!(".trash"),
        json!(".instance"),
        json!("canärý"),
        json!("caｎary"),
        json!("canary\u{202e}"),
        json!(long),
        json!(longest),
        json!(null),
        json!(7),
        json!(true),
        json!(["canary"]),
        json!({"id": "canary"}),
    ];
    let mut rows = 0;
    for id in &ids {
        for (tool, more) in [
            ("sandbox.run_code", json!({"language": "bash", "code": "cat secret.txt ../*/files/*"})),
            ("sandbox.list_files", json!({})),
            ("sandbox.read_file", json!({"path": "secret.txt"})),
            ("sandbox.write_file", json!({"path": "secret.txt", "content": "x"})),
            ("sandbox.delete_file", json!({"path": "secret.txt"})),
        ] {
            if id.is_null() && tool == "sandbox.run_code" {
                // As if it were left out: a new conversation is made.
                continue;
            }
            let mut arguments = more;
            arguments["conversationId"] = id.clone();
            let result = server.call(tool, arguments).await;
            let text = text_of(&result);
            assert_eq!(result["isError"], true, "{tool} {id:.60}");
            assert!(text.contains("conversationId"), "{tool} {id:.60}: {text}");
            assert!(!result.to_string().contains(CANARY), "{tool} {id:.60}");
            rows += 1;
        }
    }
    assert!(rows >= 130, "{rows} rows");
    assert_eq!(folders(&server), ["canary"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_paths_reach_no_file() {
    let server = Server::start().await;
    plant_canary(&server).await;
    let (long, deep) = ("x".repeat(256), "d/".repeat(40) + "x");
    let paths = [
        "",
        ".",
        "..",
        "/",
        "/data",
        "/data/",
        "../canary/files/secret.txt",
        "../../canary/files/secret.txt",
        "/etc/passwd/..",
        "a/../../canary/files/secret.txt",
        "./../x",
        "a/./../../x",
        "a//b",
        "a/",
        "a/.",
        "a/..",
        "\0",
        "a\0b",
        "/data/../secret.txt",
        "/data/../../etc/passwd",
        &long,
        &deep,
    ];
    for path in paths {
        for (tool, more) in [
            ("sandbox.read_file", json!({})),
            ("sandbox.write_file", json!({"content": "x"})),
            ("sandbox.delete_file", json!({})),
        ] {
            let mut arguments = more;
            arguments["conversationId"] = json!("paths");
            arguments["path"] = json!(path);
            let result = server.call(tool, arguments).await;
            assert_eq!(result["isError"], true, "{tool} {path:.60}: {result:.300}");
            assert!(!result.to_string().contains(CANARY), "{tool} {path:.60}");
        }
    }
    // Names that look bad and are only names.
    for path in
        ["..x", "...", "-rf", "a b", "%2e%2e%2f", "..\\..\\x", "con", "ä/ö", "\u{202e}gpj.exe", "x\ny", "\u{1b}[31m"]
    {
        let write = json!({"conversationId": "names", "path": path, "content": path});
        let result = server.call("sandbox.write_file", write).await;
        assert_eq!(result["isError"], false, "{path:?}: {result}");
        let url = result["structuredContent"]["url"].as_str().expect("a link");
        let body = crate::support::http::get(url).await.expect("an answer").text().await.expect("text");
        assert_eq!(body, path);
        let read = server.call("sandbox.read_file", json!({"conversationId": "names", "path": path})).await;
        assert_eq!(read["structuredContent"]["content"], path);
        let gone = server.call("sandbox.delete_file", json!({"conversationId": "names", "path": path})).await;
        assert_eq!(gone["isError"], false, "{path:?}: {gone}");
    }
    let left = server.call("sandbox.list_files", json!({"conversationId": "names"})).await;
    assert_eq!(left["structuredContent"]["files"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_links_and_special_files_are_not_followed() {
    let server = Server::start().await;
    plant_canary(&server).await;
    let code = r#"
        ln -s /etc/passwd absolute; ln -s ../../canary/files/secret.txt relative; ln -s /proc/self/environ magic
        ln -s ../.. up; ln -s loop loop; mkfifo pipe; mkdir sub shut; ln -s /etc sub/etc
        echo hidden > shut/x; chmod 0 shut
        python3 - 2>/dev/null || true
        printf x > "$(printf 'bad\377name')"; printf y > "$(printf 'esc\033[31m')"; printf z > $'new\nline'
        echo plain > plain.txt; touch -- '-rf'; chmod 6755 plain.txt"#;
    let result = server.run("planted", "bash", code).await;
    assert_eq!(result["isError"], false, "{result}");
    let names = [
        "absolute",
        "relative",
        "magic",
        "up",
        "loop",
        "pipe",
        "sub/etc",
        "up/canary/files/secret.txt",
        "sub/etc/passwd",
    ];
    for name in names {
        let arguments = json!({"conversationId": "planted", "path": name});
        let read = server.call("sandbox.read_file", arguments.clone()).await;
        assert_eq!(read["isError"], true, "{name}: {read}");
        assert!(!read.to_string().contains(CANARY) && !read.to_string().contains("root:"), "{name}: {read}");
        let under = json!({"conversationId": "planted", "path": format!("{name}/x"), "content": "x"});
        let write = server.call("sandbox.write_file", under).await;
        assert_eq!(write["isError"], true, "{name}/x: {write}");
    }
    // A write over a link replaces the link and not what it points to.
    let over = json!({"conversationId": "planted", "path": "relative", "content": "mine"});
    assert_eq!(server.call("sandbox.write_file", over).await["isError"], false);
    let canary = std::fs::read_to_string(server.root.join("canary/files/secret.txt")).expect("the canary");
    assert_eq!(canary, CANARY);
    let listed = server.call("sandbox.list_files", json!({"conversationId": "planted"})).await;
    let files = listed["structuredContent"]["files"].as_array().expect("files").clone();
    assert!(!listed.to_string().contains(CANARY));
    assert!(files.len() >= 6, "{listed}");
    for file in &files {
        let url = file["url"].as_str().expect("a link");
        let answer = crate::support::http::get(url).await.expect("an answer");
        // A file in a folder without permissions may be out of reach for a server that is not root; it is never a 500.
        assert!(matches!(answer.status().as_u16(), 200 | 404), "{file}: {}", answer.status());
        let mut arguments = json!({"conversationId": "planted"});
        match file.get("pathEncoded") {
            Some(encoded) => arguments["pathEncoded"] = encoded.clone(),
            None => arguments["path"] = file["path"].clone(),
        }
        let gone = server.call("sandbox.delete_file", arguments).await;
        assert_eq!(gone["isError"], false, "{file}: {gone}");
    }
    for name in ["pipe", "loop", "up", "sub", "shut", "absolute", "magic"] {
        let gone = server.call("sandbox.delete_file", json!({"conversationId": "planted", "path": name})).await;
        assert_eq!(gone["isError"], false, "{name}: {gone}");
    }
    let left = std::fs::read_dir(server.root.join("planted/files")).expect("the folder").count();
    assert_eq!(left, 0, "everything could be deleted");
    assert!(server.root.join("canary/files/secret.txt").exists());
    server.stop().await;
}
