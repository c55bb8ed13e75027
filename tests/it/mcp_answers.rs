//! What a client gets that chooses nothing: text with links and no `structuredContent`, within the bounds that clients
//! have, whatever a program prints or names its files. And what it can choose.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::support::fake_server::{BOTH, FakeServer};

mod choices;
mod drawn;
mod rest;

/// One answer, in bytes. Clients lose a larger event whole above 1 MiB.
const ANSWER_BYTES_MAX: usize = 700 << 10;

fn text(result: &Value) -> String {
    let blocks = result["content"].as_array().expect("content").iter();
    blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn count(result: &Value, kind: &str) -> usize {
    result["content"].as_array().expect("content").iter().filter(|block| block["type"] == kind).count()
}

/// The answer to a call as it is on the wire, in the view that the query chooses, which is within the bound.
async fn raw(server: &FakeServer, query: &str, tool: &str, arguments: &Value) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments}});
    let response = server.post_to(query, call.to_string()).send().await.expect("an answer");
    let text = response.text().await.expect("text");
    assert!(text.len() <= ANSWER_BYTES_MAX, "{tool}{query} answers with {} bytes", text.len());
    text
}

async fn call(server: &FakeServer, tool: &str, arguments: &Value) -> Value {
    let answer: Value = serde_json::from_str(&raw(server, "", tool, arguments).await).expect("JSON");
    answer["result"].clone()
}

fn each(numbers: std::ops::Range<u32>, line: impl Fn(u32) -> String) -> String {
    numbers.map(line).collect::<Vec<_>>().concat()
}

fn program(code: &str) -> Value {
    json!({"conversationId": "c", "language": "python", "code": code})
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_answer_is_text_with_the_link_of_each_file() {
    let server = FakeServer::start().await;
    let result = call(&server, "sandbox_run_code", &program("print hi\nwrite a(1)'\u{1b}[.csv a,b")).await;
    assert!(result.get("structuredContent").is_none(), "{result}");
    let shown = text(&result);
    let line = shown.lines().find(|line| line.starts_with("- ")).expect("a line for the file");
    let (_, url) = line.rsplit_once(' ').expect("a link at its end");
    assert!(url.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/?=&%".contains(&byte)), "{url}");
    let file = server.http.get(url).send().await.expect("an answer");
    assert_eq!(file.text().await.expect("text"), "a,b");
    assert_eq!(result["content"][1]["uri"], url, "{result}");
    let listed = call(&server, "sandbox_list_files", &json!({"conversationId": "c"})).await;
    assert!(
        listed.get("structuredContent").is_none() && text(&listed).contains(url.split_once('?').expect("a query").0)
    );
    let bad = call(&server, "sandbox_run_code", &json!({"language": "python"})).await;
    assert!(bad.get("structuredContent").is_none() && bad["isError"] == true, "{bad}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn structured_answer_begins_with_output_and_holds_no_unchanged_file() {
    let server = FakeServer::start().await;
    let many = each(0..60, |number| format!("write file-{number}.txt x\n"));
    let first = raw(&server, "?structured=on", "sandbox_run_code", &program(&many)).await;
    let second = raw(&server, "?structured=on", "sandbox_run_code", &program("print 1")).await;
    assert!(first.contains("file-59.txt") && second.len() < 1500, "{} bytes: {second}", second.len());
    let structured = second.split_once("\"structuredContent\":{").expect("it is there").1;
    let places = ["\"stdout\"", "\"stderr\"", "\"outcome\"", "\"hints\"", "\"state\"", "\"files\"", "\"figures\""];
    let places = places.map(|name| structured.find(name).unwrap_or_else(|| panic!("{name} in {structured}")));
    assert!(places.is_sorted() && places[0] == 0, "{structured}");
    assert!(structured.contains("Other files in /data: 60") && structured.contains("\"files\":[]"), "{structured}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn longest_output_and_names_stay_within_the_bound() {
    let server = FakeServer::with(&[
        ("SANDBOX_FILES__LISTED_MAX", "10000"),
        ("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", "4000000"),
        ("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", "4000000"),
    ])
    .await;
    let names = each(0..300, |number| format!("write {}{number:03} x\n", "\u{1b}".repeat(240)));
    for worst in ["\u{1}", "\"", "\\", "é", "x"] {
        let code = format!("print {}\nstderr {}\n{names}", worst.repeat(300_000), worst.repeat(300_000));
        for query in ["", "?structured=on"] {
            let answer = raw(&server, query, "sandbox_run_code", &program(&code)).await;
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let shown = text(&answer["result"]);
            assert!(
                shown.contains("bytes are left out here") && shown.contains("more files were created"),
                "{worst:?}"
            );
        }
    }
    let content = "\u{1}".repeat(1 << 20);
    let write = json!({"conversationId": "c", "path": "long", "content": content});
    for query in ["", "?structured=on"] {
        raw(&server, query, "sandbox_list_files", &json!({"conversationId": "c"})).await;
        raw(&server, query, "sandbox_write_file", &write).await;
        let read = json!({"conversationId": "c", "path": "long", "limit": 100_000_000});
        let answer = raw(&server, query, "sandbox_read_file", &read).await;
        assert!(answer.matches("\\u0001").count() > 50_000, "{query}: much of it is shown");
        let uri = "sandbox://files/c/long";
        let refused = server.rpc("resources/read", json!({"uri": uri})).await;
        assert!(refused["error"]["message"].as_str().is_some_and(|why| why.contains("too large")), "{refused:.300}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_beyond_the_bound_are_left_as_links() {
    let server = FakeServer::start().await;
    let gif = |size: usize| format!("GIF89a\u{1}\u{1}\u{1}\u{1}{}", "x".repeat(size));
    let code: String = ["a", "b", "c"].map(|name| format!("write {name}.gif {}\n", gif(240_000))).concat();
    let result = call(&server, "sandbox_run_code", &program(&code)).await;
    assert_eq!((count(&result, "image"), count(&result, "resource_link")), (2, 3));
    assert!(text(&result).contains("[Pictures that are not shown here: 1; their links open them]"));
    // Wider than models take it, and no picture at all.
    let wide = call(&server, "sandbox_run_code", &program("write w.gif GIF89a!!\u{1}\u{1}end\nwrite t.gif text")).await;
    assert_eq!((count(&wide, "image"), count(&wide, "resource_link")), (0, 2));
    assert!(text(&wide).contains("[Pictures that are not shown here: 1; their links open them]"), "{wide}");
    let write = json!({"conversationId": "c", "path": "d.gif", "content": gif(600_000)});
    call(&server, "sandbox_write_file", &write).await;
    let read = call(&server, "sandbox_read_file", &json!({"conversationId": "c", "path": "d.gif"})).await;
    assert_eq!((count(&read, "image"), text(&read).contains("continues at offset")), (0, true));
    let read = call(&server, "sandbox_read_file", &json!({"conversationId": "c", "path": "a.gif"})).await;
    assert_eq!(count(&read, "image"), 1, "{read:.300}");
    assert!(read.to_string().len() < 400_000, "it is there once");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn picture_that_is_too_large_for_an_answer_is_shown_smaller() {
    let server = FakeServer::start().await;
    call(&server, "sandbox_run_code", &program("write a.txt x")).await;
    let folder = server.root.join("c/files");
    let noise =
        |x: u32, y: u32| image::Luma([((x ^ y.rotate_left(16)).wrapping_mul(0x9E37_79B1) >> 24).to_le_bytes()[0]]);
    image::GrayImage::from_fn(2000, 1000, noise).save(folder.join("large.png")).expect("a picture");
    image::GrayImage::new(9000, 30).save(folder.join("wide.png")).expect("a picture");
    // Its head is all that there is, and names a size that no answer shows.
    let mut bomb = std::fs::read(folder.join("wide.png")).expect("a picture");
    bomb[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    std::fs::write(folder.join("bomb.png"), bomb).expect("written");
    for (name, size) in [("large.png", Some((1568, 784))), ("wide.png", Some((1568, 5))), ("bomb.png", None)] {
        let read = call(&server, "sandbox_read_file", &json!({"conversationId": "c", "path": name})).await;
        let blocks = read["content"].as_array().expect("content").iter();
        let shown = blocks.filter(|block| block["type"] == "image").map(|block| {
            assert_eq!(block["mimeType"], "image/jpeg");
            let bytes = BASE64_STANDARD.decode(block["data"].as_str().expect("text")).expect("base64");
            let picture = image::load_from_memory(&bytes).expect("a picture");
            (picture.width(), picture.height())
        });
        let shown: Vec<_> = shown.collect();
        match size {
            Some((width, height)) => assert!(
                shown.len() == 1 && shown[0].0 <= width && shown[0].1 <= height && shown[0].0 >= 512,
                "{name}: {shown:?}"
            ),
            None => assert_eq!(shown, [], "{name}"),
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_left_out_is_one_named_call_away() {
    let server = FakeServer::start().await;
    let lines = |from: u32| (from..from + 6000).map(|line| format!("line {line}")).collect::<Vec<_>>().join(" ");
    let code = format!("print {}\nstderr {}", lines(0), lines(9000));
    let result = call(&server, "sandbox_run_code", &program(&code)).await;
    let shown = text(&result);
    assert!(shown.contains("line 5999") && shown.contains("line 9000 ") && shown.contains("line 14999"), "both ends");
    let mark = shown.split_once("left out here: sandbox_get_run ").expect("a call").1;
    let (named, _) = mark.split_once(" shows them").expect("its end");
    let mut arguments: Value = serde_json::from_str(named).expect("JSON");
    let mut whole = String::new();
    arguments["outputOffset"] = json!(0);
    for _ in 0..10 {
        let part = text(&call(&server, "sandbox_get_run", &arguments).await);
        let (output, rest) = part.split_once("\n[… ").or(part.split_once("\n[The program")).expect("an end");
        whole += output;
        let Some((_, next)) = rest.split_once("\"outputOffset\": ") else { break };
        arguments["outputOffset"] = next.split_once('}').expect("a number").0.parse().expect("a number");
    }
    assert_eq!(whole, format!("{}\n[standard error]\n{}", lines(0), lines(9000)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_code_takes_a_time_limit_and_makes_a_conversation() {
    let server = FakeServer::start().await;
    let hang =
        json!({"language": "python", "code": "write a.txt kept\nhang", "timeoutSeconds": 1, "waitSeconds": 20.0});
    let result = call(&server, "sandbox_run_code", &hang).await;
    let shown = text(&result);
    assert!(shown.contains("time limit of 1 s"), "{shown}");
    let id = shown.split_once("The conversationId is ").expect("it is named").1.split_once(':').expect("its end").0;
    let read = call(&server, "sandbox_read_file", &json!({"conversationId": id, "path": "a.txt"})).await;
    assert_eq!(text(&read), "kept");
    let again = call(&server, "sandbox_run_code", &program("print x")).await;
    assert!(!text(&again).contains("conversationId"), "{again}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_file_reads_parts_and_sends_them_once() {
    let server = FakeServer::start().await;
    let content = each(0..20_000, |line| format!("{line}\n"));
    call(&server, "sandbox_write_file", &json!({"conversationId": "c", "path": "a", "content": content})).await;
    let (mut whole, mut offset) = (String::new(), 0);
    for limit in [Value::Null, json!(10), json!(70_000)] {
        let read = json!({"conversationId": "c", "path": "a", "offset": offset, "limit": limit});
        let result = call(&server, "sandbox_read_file", &read).await;
        let part = result["content"][0]["text"].as_str().expect("text");
        let most = limit.as_u64().unwrap_or(48 << 10);
        assert!(part.len() as u64 <= most, "{} bytes", part.len());
        offset += part.len();
        whole += part;
        let structured = raw(&server, "?structured=on", "sandbox_read_file", &read).await;
        assert!(structured.matches(&part[..part.len().min(10)].replace('\n', "\\n")).count() == 1 || limit == 10);
    }
    assert!(whole == content, "{} of {} bytes", whole.len(), content.len());
    let past = call(&server, "sandbox_read_file", &json!({"conversationId": "c", "path": "a", "offset": offset})).await;
    assert!(text(&past).contains("has nothing at offset"), "{past}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn list_files_pages_and_takes_a_folder() {
    let server = FakeServer::with(&[("SANDBOX_FILES__LISTED_MAX", "20")]).await;
    for number in 0..90 {
        let path = format!("d{}/{number:02}", number % 3);
        call(&server, "sandbox_write_file", &json!({"conversationId": "c", "path": path, "content": "x"})).await;
    }
    for (folder, expected) in [(Value::Null, 90), (json!("d1"), 30), (json!("/data/d2/"), 30), (json!("/data"), 90)] {
        let mut arguments = json!({"conversationId": "c", "folder": folder});
        let mut found = Vec::new();
        loop {
            let shown = text(&call(&server, "sandbox_list_files", &arguments).await);
            let names = shown.lines().filter_map(|line| line.strip_prefix("- ")?.split_once(' '));
            found.extend(names.map(|(name, _)| name.to_owned()));
            // The call that is named, as it is.
            let Some((_, next)) = shown.split_once("[More files follow: sandbox_list_files ") else { break };
            arguments = serde_json::from_str(next.strip_suffix(']').expect("its end")).expect("JSON");
        }
        assert_eq!(found.len(), expected, "{folder}: {found:?}");
        assert!(found.is_sorted() && found.iter().all(|name| folder != "d1" || name.starts_with("d1/")), "{found:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn edit_file_replaces_an_exact_text_and_loses_no_change() {
    let server = FakeServer::with(&[("SANDBOX_FILES__WRITE_BYTES_MAX", "2000")]).await;
    let edit = async |more: Value| {
        let mut arguments = json!({"conversationId": "c", "path": "a.txt"});
        for (name, value) in more.as_object().expect("an object") {
            arguments[name] = value.clone();
        }
        call(&server, "sandbox_edit_file", &arguments).await
    };
    let read =
        async || text(&call(&server, "sandbox_read_file", &json!({"conversationId": "c", "path": "a.txt"})).await);
    let missing = edit(json!({"append": "x"})).await;
    assert_eq!(missing["isError"], true);
    call(&server, "sandbox_write_file", &json!({"conversationId": "c", "path": "a.txt", "content": "one two two"}))
        .await;
    for (change, part) in [
        (json!({"oldText": "three", "newText": "x"}), "does not hold it"),
        (json!({"oldText": "two", "newText": "x"}), "2 times"),
        (json!({"append": "x".repeat(2000)}), "longer than"),
    ] {
        let refused = edit(change).await;
        assert!(refused["isError"] == true && text(&refused).contains(part), "{part}: {refused}");
    }
    assert_eq!(read().await, "one two two");
    let edited = edit(json!({"oldText": "one", "newText": "1"})).await;
    assert!(text(&edited).starts_with("Edited /data/a.txt (9 B): http"), "{edited}");
    edit(json!({"oldText": "two", "newText": "2", "replaceAll": true})).await;
    edit(json!({"append": "!"})).await;
    assert_eq!(read().await, "1 2 2!");
    // Many at once wait for each other.
    let edits = (0..40).map(|_| edit(json!({"append": "+"})));
    for edited in futures_util::future::join_all(edits).await {
        assert_eq!(edited["isError"], false, "{edited}");
    }
    assert_eq!(read().await, format!("1 2 2!{}", "+".repeat(40)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_link_takes_one_file_by_put_and_gives_none() {
    // A link takes more than other bodies have.
    let limits = [("SANDBOX_QUOTA__BYTES_MAX", "1048576"), ("SANDBOX_SERVER__BODY_BYTES_MAX", "100000")];
    let server = FakeServer::with(&limits).await;
    let result = call(&server, "sandbox_upload_url", &json!({"conversationId": "c", "path": "in/a b.bin"})).await;
    let shown = text(&result);
    let url = shown.rsplit_once(' ').expect("a link at the end").1;
    let put = async |url: &str, bytes: usize| {
        server.http.put(url).body(vec![0xff; bytes]).send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(server.http.get(url).send().await.expect("an answer").status(), 403, "it reads nothing");
    let posted = server.http.post(url).body("text").send().await.expect("an answer");
    let allowed = posted.headers()["allow"].to_str().expect("text");
    assert_eq!((posted.status().as_u16(), allowed), (405, "PUT"), "it says how to send the file");
    for forged in [url.replace("max=1048576", "max=2000"), url.replace("max=1048576&", ""), url.replace("a%20b", "b")] {
        assert!(matches!(put(&forged, 10).await, 403 | 405), "{forged}");
    }
    assert_eq!((put(url, (1 << 20) + 1).await, server.root.join("c").exists()), (413, false));
    assert_eq!(put(url, 500_000).await, 204);
    assert_eq!(std::fs::read(server.root.join("c/files/in/a b.bin")).expect("the file"), vec![0xff; 500_000]);
    let listed = call(&server, "sandbox_list_files", &json!({"conversationId": "c"})).await;
    let listed = text(&listed);
    let read = listed.rsplit_once(' ').expect("a link").1;
    assert_eq!(put(read, 10).await, 405, "a link for reading takes nothing");
    assert_eq!(put(&format!("{read}&max=1048576"), 10).await, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_of_answers_can_be_read_as_resources() {
    let server = FakeServer::start().await;
    let result = call(&server, "sandbox_run_code", &program("write a.csv a,b\nwrite b.bin x")).await;
    std::fs::write(server.root.join("c/files/b.bin"), [0xff, 0xfe]).expect("written");
    let link = result["content"].as_array().expect("content").iter().find(|block| block["name"] == "a.csv");
    let uri = link.expect("a link")["uri"].clone();
    for uri in [uri, json!("sandbox://files/c/a.csv")] {
        let read = server.rpc("resources/read", json!({"uri": uri})).await;
        let expected = json!([{"uri": uri, "mimeType": "text/csv", "text": "a,b"}]);
        assert_eq!(read["result"]["contents"], expected, "{read}");
    }
    let read = server.rpc("resources/read", json!({"uri": "sandbox://files/c/b.bin"})).await;
    assert_eq!(read["result"]["contents"][0]["blob"], "//4=", "{read}");
    let templates = server.rpc("resources/templates/list", json!({})).await;
    let template = &templates["result"]["resourceTemplates"][0]["uriTemplate"];
    assert_eq!(*template, "sandbox://files/{conversationId}/{+path}", "{templates}");
    assert_eq!(server.rpc("resources/list", json!({})).await["result"]["resources"], json!([]));
    server.stop().await;
}

/// The stateless revision has subscriptions in place of sessions.
#[tokio::test(flavor = "multi_thread")]
async fn stateless_client_can_listen_for_changes() {
    let server = FakeServer::start().await;
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}});
    // One that is too long is left out, and those after it are not.
    let uris = json!([format!("sandbox://files/c/{}", "x".repeat(70_000)), "sandbox://files/c/a"]);
    let listen = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": {"_meta": meta,
        "notifications": {"toolsListChanged": true, "resourceSubscriptions": uris}}});
    let request = server.post_to("", listen.to_string()).header("accept", BOTH);
    let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "subscriptions/listen");
    let mut stream = request.send().await.expect("a stream");
    let mut seen = String::new();
    let mut wait = async |part: &str, times: usize| {
        while seen.matches(part).count() < times {
            let chunk = tokio::time::timeout(std::time::Duration::from_secs(30), stream.chunk()).await;
            let chunk = chunk.unwrap_or_else(|_| panic!("{part} in {seen}")).expect("a chunk").expect("more");
            seen += &String::from_utf8_lossy(&chunk);
        }
    };
    wait("acknowledged", 1).await;
    call(&server, "sandbox_run_code", &program("write a x")).await;
    wait("notifications/resources/updated", 1).await;
    call(&server, "sandbox_delete_file", &json!({"conversationId": "c", "path": "a"})).await;
    wait("notifications/resources/updated", 2).await;
    server.engine.add_runner("ruby");
    wait("notifications/tools/list_changed", 1).await;
    server.stop().await;
}
