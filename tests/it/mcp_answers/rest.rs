//! What an answer leaves out: it names a call that the client has, and that call shows it.

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, each, program, raw, text};
use crate::support::{FakeServer, calls::ask};

/// The text of an answer in the view that the query chooses.
async fn shown(server: &FakeServer, query: &str, tool: &str, arguments: Value) -> String {
    let answer: Value = serde_json::from_str(&raw(server, query, tool, &arguments).await).expect("JSON");
    text(&answer["result"])
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_left_out_is_a_call_of_the_clients_list_or_a_route_away() {
    let server = FakeServer::with_kernel(&[]).await;
    let code = format!("print {}", "y".repeat(60_000));
    for (query, tool, member) in [
        ("", "execute_python_code", "command"),
        ("?tools=coderunner", "execute_python_code", "command"),
        ("?tools=coderunner,run&names=dotted", "execute_python_code", "command"),
        ("?tools=ipybox", "execute_ipython_cell", "code"),
        ("?tools=session", "sandbox_run_cell", "code"),
    ] {
        let shown = shown(&server, query, tool, json!({ member: code })).await;
        let named = shown.split_once("left out here: ").and_then(|(_, rest)| rest.split_once(" shows them"));
        let (named, _) = named.unwrap_or_else(|| panic!("{query}: no call in {shown:.200}"));
        if query.is_empty() || query.contains("dotted") {
            let (tool, arguments) = named.split_once(' ').expect("arguments");
            assert_eq!(tool, if query.is_empty() { "sandbox_get_run" } else { "sandbox.get_run" });
            let arguments: Value = serde_json::from_str(arguments).expect("JSON");
            let rest = text(&call(&server, tool, &arguments).await);
            let before = usize::try_from(arguments["outputOffset"].as_u64().expect("an offset")).expect("a length");
            assert!(rest.starts_with(&"y".repeat(60_000 - before)), "{rest:.200}");
        } else {
            let path = named.strip_prefix("GET ").unwrap_or_else(|| panic!("{query}: {named}"));
            let (status, run) = ask(&server, Method::GET, path, None).await;
            assert_eq!((status, run["result"]["stdout"].as_str().map(str::len)), (200, Some(60_001)), "{query}");
        }
    }
    server.stop().await;
}

/// The output that a text shows, of both streams, without the marks of what is left out.
fn output_of(shown: &str) -> String {
    let (output, _) = shown.split_once("[The program").expect("how it ended");
    let (first, others) = output.split_once("\n[… ").unwrap_or((output, ""));
    let others = others.split("\n[… ").filter_map(|part| part.split_once(" …]\n"));
    let output: String = [first].into_iter().chain(others.map(|(_, part)| part)).collect();
    output.replacen("[standard error]\n", "", 1)
}

/// 48 KiB in all, or three times as much JSON; each of the four ends lacks less than a character.
#[tokio::test(flavor = "multi_thread")]
async fn output_is_cut_at_48_kib_whatever_it_consists_of() {
    const SHOWN: usize = 48 << 10;
    const JSON: usize = 3 * SHOWN;
    const ENDS: usize = 4 * 6;
    let server = FakeServer::start().await;
    let output = async |code: String| output_of(&shown(&server, "", "sandbox_run_code", program(&code)).await);
    for worst in ["x", "é", "€", "😀", "\"", "\\", "\u{1}", "\u{1b}[31m"] {
        let many = worst.repeat(100_000 / worst.len());
        for code in [format!("print {many}"), format!("print {many}\nstderr {many}"), format!("print x\nstderr {many}")]
        {
            let output = output(code).await;
            let (bytes, json) = (output.len(), serde_json::to_string(&output).expect("JSON").len() - 2);
            assert!(bytes <= SHOWN && json <= JSON, "{worst:?}: {bytes} and {json} bytes");
            assert!(bytes > SHOWN - ENDS || json > JSON - ENDS, "{worst:?}: {bytes} and {json} bytes");
        }
    }
    let whole = "x".repeat(SHOWN - 1);
    assert_eq!(output(format!("print {whole}")).await, format!("{whole}\n"), "as much as is shown is not cut");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_goes_on_names_calls_that_its_client_has() {
    let server = FakeServer::with_kernel(&[]).await;
    let cell = json!({"conversationId": "c", "code": "hang", "waitSeconds": 0});
    let left = shown(&server, "?tools=session", "sandbox_run_cell", cell).await;
    let stop = left.split_once("or POST ").expect("a route").1.split_once(' ').expect("its end").0;
    assert!(left.contains(&format!("call GET {}?wait=30", stop.trim_end_matches("/cancel"))), "{left}");
    let (status, run) = ask(&server, Method::POST, stop, None).await;
    assert_eq!(status, 200, "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_plain_answer_leaves_out_are_counted() {
    let server = FakeServer::with_kernel(&[("SANDBOX_FILES__LISTED_MAX", "5")]).await;
    let command = json!({"command": each(0..12, |number| format!("write f{number:02} x\n"))});
    let plain = shown(&server, "?tools=coderunner", "execute_python_code", command.clone()).await;
    let (listed, _) = plain.split_once("[7 more files were created or changed: ").expect("a hint");
    assert_eq!(listed.matches("\n- f").count() + usize::from(listed.starts_with("- f")), 5, "{plain}");
    assert!(plain.contains("GET /v1/conversations/mcp/files lists them"), "{plain}");
    let plain = shown(&server, "", "execute_python_code", command).await;
    assert!(plain.contains("sandbox_list_files {\"conversationId\": \"mcp\"} lists them"), "{plain}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn smallest_pieces_of_a_file_hold_whole_characters_and_go_on() {
    let server = FakeServer::start().await;
    let content = "a\u{1}é€😀\u{1}z";
    let file = json!({"conversationId": "c", "path": "a.txt", "content": content});
    call(&server, "sandbox_write_file", &file).await;
    let read = async |offset: u64, limit: u64| {
        let piece = json!({"conversationId": "c", "path": "a.txt", "offset": offset, "limit": limit});
        call(&server, "sandbox_read_file", &piece).await
    };
    for limit in 1..=8 {
        let (mut whole, mut offset) = (String::new(), 0);
        loop {
            let piece = read(offset, limit).await;
            whole += piece["content"][0]["text"].as_str().expect("text");
            let Some(more) = piece["content"][1]["text"].as_str() else { break };
            let next = more.strip_prefix("[The file continues at offset ").and_then(|rest| rest.split_once(';'));
            let next =
                next.and_then(|(next, _)| next.parse::<u64>().ok()).unwrap_or_else(|| panic!("{limit}: {piece}"));
            assert!(next > offset, "{limit}: {piece}");
            offset = next;
        }
        assert_eq!(whole, content, "{limit}");
    }
    let inside = text(&read(3, 1).await);
    assert!(inside.starts_with("These bytes of a.txt") && inside.contains("continues at offset 4;"), "{inside}");
    for offset in [content.len() as u64, 1000] {
        let past = text(&read(offset, 1).await);
        assert!(past.ends_with(&format!("has nothing at offset {offset}: it ends at {}.", content.len())), "{past}");
    }
    let refused = read(0, 0).await;
    assert!(refused["isError"] == true && text(&refused).starts_with("limit: "), "{refused}");
    let empty = json!({"conversationId": "c", "path": "b.txt", "content": ""});
    call(&server, "sandbox_write_file", &empty).await;
    let empty = text(&call(&server, "sandbox_read_file", &json!({"conversationId": "c", "path": "b.txt"})).await);
    assert!(empty.starts_with("b.txt (") && empty.ends_with(" is empty."), "{empty}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_only_tools_of_the_clients_list() {
    let server = FakeServer::start().await;
    for (query, is_named) in [("", true), ("?tools=run", true), ("?tools=files", false)] {
        let refused = shown(&server, query, "sandbox_run_code", json!({"code": "print x"})).await;
        assert!(refused.starts_with("language: it is missing"), "{query}: {refused}");
        assert_eq!(refused.contains("(see `sandbox_list_runners`)"), is_named, "{query}: {refused}");
    }
    server.stop().await;
}
