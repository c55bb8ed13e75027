//! The browser: real Chromium in real sandboxes, against pages on this machine.

mod pages;

use std::time::Instant;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use mcp_sandbox_server::domain::id::Language;
use serde_json::{Value, json};

use self::pages::Pages;
use crate::{
    mcp_clients::{client, tool as tool_path},
    support::{
        calls::get,
        server::{Server, TOKEN},
        until::until,
    },
};

/// A server whose browser may reach the pages.
async fn server(pages: &Pages, more: &[(&str, &str)]) -> Server {
    let hosts = pages.allowed.to_string();
    // Two cores are shared with the browser and other tests.
    let mut settings = vec![("SANDBOX_NETWORK__LOCAL", hosts.as_str()), ("SANDBOX_LIMITS__WALL_MS", "90000")];
    settings.extend(more);
    Server::with(&settings).await
}

const COLD: (&str, &str) = ("SANDBOX_STANDBY__TOTAL_MAX", "0");

async fn tool(server: &Server, name: &str, arguments: Value) -> Value {
    let answer = server.rpc(name, arguments).await;
    answer["result"].clone()
}

async fn browse(server: &Server, arguments: Value) -> Value {
    let result = tool(server, "sandbox_browse", arguments).await;
    let page = &result["structuredContent"];
    assert!(page["url"].is_string(), "{result}");
    page.clone()
}

/// What a cell of the conversation `a` prints.
async fn cell(server: &Server, code: &str) -> String {
    let call = json!({"conversationId": "a", "language": "browser", "code": code});
    let result = tool(server, "sandbox_run_cell", call).await;
    result["structuredContent"]["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// The files of the conversation `a`.
async fn listed(server: &Server) -> Value {
    get(server, "/v1/conversations/a/files").await["files"].clone()
}

fn text(page: &Value) -> &str {
    page["text"].as_str().expect("a text")
}

fn controls(page: &Value) -> Vec<(&str, &str, &str)> {
    let all = page["controls"].as_array().expect("a list");
    all.iter()
        .map(|one| {
            let of = |name: &str| one[name].as_str().expect("a text");
            (of("role"), of("name"), of("selector"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_read_used_and_kept_for_their_conversation() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let began = Instant::now();
    let late = browse(&server, json!({"conversationId": "a", "url": pages.url("/late")})).await;
    let first = began.elapsed();
    assert_eq!((late["title"].as_str(), late["status"].as_u64()), (Some("Late"), Some(200)), "{late}");
    assert!(text(&late).contains("outer") && text(&late).contains("built late"), "{late}");
    assert!(text(&late).contains("Name") && !text(&late).contains("never shown"), "{late}");
    let inner = controls(&late).into_iter().find(|one| one.1 == "Name").expect("the field in the frame").2.to_owned();
    let steps = json!([{"action": "fill", "selector": inner, "text": "Ann"},
        {"action": "press", "selector": inner, "text": "Enter"}]);
    let began = Instant::now();
    let posted = browse(&server, json!({"conversationId": "a", "actions": steps})).await;
    println!("first call {first:?}, second call {:?}, without a standby", began.elapsed());
    assert!(text(&posted).contains("got who=Ann&secret=&colour=red"), "{posted}");

    let steps = json!([{"action": "fill", "selector": "[name=who]", "text": "Bob"},
        {"action": "type", "selector": "[name=secret]", "text": "s3cret"},
        {"action": "select", "selector": "select", "text": "blue"}, {"action": "screenshot"}]);
    let call = json!({"conversationId": "a", "url": pages.url("/form"), "actions": steps});
    let result = tool(&server, "sandbox_browse", call).await;
    let shown = result["content"].as_array().expect("blocks");
    assert_eq!(shown.iter().filter(|block| block["type"] == "image").count(), 1, "{result}");
    assert!(!shown[0]["text"].as_str().expect("a text").contains("s3cret"), "a password is shown: {result}");
    let sent =
        browse(&server, json!({"conversationId": "a", "actions": [{"action": "click", "selector": "text=Send it"}]}))
            .await;
    assert_eq!(text(&sent), "got who=Bob&secret=s3cret&colour=blue");

    let shadow = browse(&server, json!({"conversationId": "a", "url": pages.url("/shadow")})).await;
    assert!(text(&shadow).contains("in the shadow"), "{shadow}");
    let press = controls(&shadow).first().expect("a button").2.to_owned();
    let pressed = json!({"conversationId": "a", "actions": [{"action": "click", "selector": press}], "extract": []});
    assert_eq!(browse(&server, pressed).await["title"], "pressed");

    for (conversation, wanted) in [("a", "new"), ("a", "known"), ("b", "new"), ("a", "known")] {
        let page = browse(&server, json!({"conversationId": conversation, "url": pages.url("/cookie")})).await;
        assert_eq!(text(&page), wanted, "{conversation}");
    }

    let click = json!([{"action": "click", "selector": "text=the report"}]);
    let saved = browse(&server, json!({"conversationId": "a", "url": pages.url("/files"), "actions": click})).await;
    let file = &saved["files"][0];
    let path = file["path"].as_str().expect("a path");
    assert!(path.starts_with("downloads/") && path.ends_with("report.txt"), "{saved}");
    let link = file["url"].as_str().expect("a link");
    assert_eq!(server.http.get(link).send().await.expect("an answer").text().await.expect("a text"), "the report");

    let click = json!([{"action": "click", "selector": "#new"}]);
    let windows = json!({"conversationId": "a", "url": pages.url("/windows"), "actions": click});
    let opened = browse(&server, windows).await;
    let notes = opened["notes"].to_string();
    let is_quoted = notes.contains(r#"\"boo) (network\""#);
    assert!(opened["title"] == "Form" && is_quoted && notes.contains("new window"), "{opened}");

    assert_eq!(cell(&server, "print(await page.title())").await, "Form\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_followed_and_steps_scroll_and_go_back() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let steps = json!([{"action": "scroll", "y": 500}]);
    let tall = browse(&server, json!({"conversationId": "a", "url": pages.url("/tall"), "actions": steps})).await;
    assert!(tall["title"] == "Tall" && tall["error"].is_null(), "{tall}");
    assert_eq!(cell(&server, "print(await page.evaluate('scrollY'))").await, "500\n");
    let moved = browse(&server, json!({"conversationId": "a", "url": pages.url("/moved")})).await;
    assert_eq!((&moved["title"], &moved["url"]), (&json!("Form"), &json!(pages.url("/form"))), "{moved}");
    assert_eq!(moved["status"], 200, "{moved}");
    let back = browse(&server, json!({"conversationId": "a", "actions": [{"action": "back"}]})).await;
    assert_eq!((&back["title"], &back["url"]), (&json!("Tall"), &json!(pages.url("/tall"))), "{back}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_screenshot_longer_than_a_message_of_the_kernel_is_a_file() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let steps = json!([{"action": "screenshot", "fullPage": true}]);
    let noise = browse(&server, json!({"conversationId": "a", "url": pages.url("/noise"), "actions": steps})).await;
    let file = &noise["files"][0];
    assert!(file["size"].as_u64() > Some(4 << 20) && file["path"] == "screenshot.png", "{noise}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_is_not_finished_in_time_is_cancelled_and_deleted() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let click = json!([{"action": "click", "selector": "text=the flood"}]);
    let call = json!({"conversationId": "a", "url": pages.url("/files"), "actions": click, "timeoutSeconds": 8});
    let given_up = browse(&server, call).await;
    assert!(given_up["notes"].to_string().contains("A download was not finished in time"), "{given_up}");
    until("nothing of it is left", async || listed(&server).await == json!([])).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_a_cell_waits_for_is_where_its_object_says() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    browse(&server, json!({"conversationId": "a", "url": pages.url("/files")})).await;
    let waits = "async with page.expect_download() as begun:\n    await page.click('text=the report')\n\
                 download = await begun.value\nprint((await download.path()).read_text())";
    let copies = "await download.save_as('/data/copies/one.txt')\nprint(open('/data/copies/one.txt').read())";
    for code in [waits, copies] {
        assert_eq!(cell(&server, code).await, "the report\n");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_cannot_be_stored_is_deleted() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let url = server.url("/v1/conversations/a/files/downloads");
    let put = server.http.put(url).bearer_auth(TOKEN).body("a file with the name of their folder");
    assert!(put.send().await.expect("an answer").status().is_success());
    let click = json!([{"action": "click", "selector": "text=the report"}]);
    let failed = browse(&server, json!({"conversationId": "a", "url": pages.url("/files"), "actions": click})).await;
    assert!(failed["notes"].to_string().contains("A download failed"), "{failed}");
    until("nothing of it is left", async || listed(&server).await.as_array().is_some_and(|all| all.len() == 1)).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_a_page_begins_by_itself_is_no_module_of_programs() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    browse(&server, json!({"conversationId": "a", "url": pages.url("/planted")})).await;
    until("it is stored", async || listed(&server).await[0]["path"] == "downloads/requests.py").await;
    let call = json!({"conversationId": "a", "language": "python", "code": "import requests; print(requests.get)"});
    let printed = tool(&server, "sandbox_run_code", call).await["structuredContent"]["stdout"].clone();
    assert!(printed.as_str().is_some_and(|text| text.starts_with("<function get")), "{printed}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_policy_allows_is_refused_to_pages_too() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let away = browse(&server, json!({"conversationId": "a", "url": pages.url("/away")})).await;
    let notes = away["notes"].to_string();
    assert!(notes.contains(&format!("no policy allows {}", pages.refused)), "{away}");
    let url = pages.url(&format!("/hostile?port={}", server.address.port()));
    let wait = json!([{"action": "wait", "selector": "#end"}]);
    let hostile = browse(&server, json!({"conversationId": "a", "url": url, "actions": wait})).await;
    let lines: Vec<_> = text(&hostile).lines().filter_map(|line| line.split_once(": ")).collect();
    assert_eq!(lines.len(), 15, "{hostile}");
    for (name, came) in lines {
        assert!(["failed", "nothing", "status 403"].contains(&came), "{name}: {came}");
    }
    assert_eq!(hostile["notes"].to_string().matches("Chromium").count(), 0, "{hostile}");
    assert_eq!(pages.refused_requests(), 0);
    // What is no address of the web is refused before a browser sees it.
    for url in ["file:///etc/passwd", "chrome://version", "view-source:http://a/", "javascript:1", "about:blank", "x"] {
        let result = tool(&server, "sandbox_browse", json!({"conversationId": "a", "url": url})).await;
        assert!(result["isError"] == true && result["content"][0]["text"].to_string().contains("url: "), "{result}");
    }
    let mut decisions = Value::Null;
    until("what was refused is listed", async || {
        decisions = get(&server, "/v1/network/decisions?limit=200").await["decisions"].clone();
        decisions.to_string().contains(&pages.refused.to_string())
    })
    .await;
    let local = ["127.0.0.1:", "169.254.", "localhost:", "[::1]:"].map(str::to_owned);
    let known = [&[pages.allowed.to_string(), pages.refused.to_string()][..], &local].concat();
    let targets = decisions.as_array().expect("a list").iter().map(|one| one["target"].as_str().expect("a target"));
    let strange: Vec<_> = targets.filter(|target| !known.iter().any(|known| target.starts_with(known))).collect();
    assert!(strange.is_empty(), "Chromium asked by itself: {strange:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_any_size_and_kind_leave_the_session_usable() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let at = |path: &str| json!({"conversationId": "a", "url": pages.url(path), "timeoutSeconds": 8});
    let patient = |path: &str| json!({"conversationId": "a", "url": pages.url(path), "timeoutSeconds": 30});
    let links = browse(&server, patient("/links")).await;
    assert_eq!(links["links"].as_array().map(Vec::len), Some(200), "{links}");
    assert!(links["textTruncated"] == true && links["linksMore"].as_u64() > Some(0), "{links}");
    for path in ["/endless", "/greedy", "/long"] {
        let began = Instant::now();
        let result = tool(&server, "sandbox_browse", at(path)).await;
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert!(text.len() < 200 << 10, "{path}: {}", text.len());
        println!("{path}: {:?} {:?}", began.elapsed(), &text[..text.len().min(120)]);
        let wait = json!([{"action": "wait", "ms": 1000}]);
        let after = browse(&server, json!({"conversationId": "a", "actions": wait, "timeoutSeconds": 8})).await;
        assert!(path == "/long" || after["error"].is_object() || after["url"] == "about:blank", "{path}: {after}");
        let after = browse(&server, patient("/form")).await;
        assert_eq!(after["title"], "Form", "after {path}: {after}");
    }
    let many = json!({"conversationId": "a", "url": pages.url("/many"), "timeoutSeconds": 8});
    browse(&server, many).await;
    assert_eq!(browse(&server, patient("/form")).await["title"], "Form", "after 10 000 requests");
    let missing =
        json!({"conversationId": "a", "actions": [{"action": "click", "selector": "#none"}], "timeoutSeconds": 2});
    assert_eq!(browse(&server, missing).await["error"]["kind"], "not_found");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_and_controls_of_a_page_that_is_full_of_text_are_listed() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let full = browse(&server, json!({"conversationId": "a", "url": pages.url("/full")})).await;
    let counts = ["links", "controls"].map(|list| full[list].as_array().map(Vec::len));
    assert_eq!(counts, [Some(60), Some(66)], "{full}");
    assert_eq!(controls(&full).last().map(|one| one.1), Some("Send"), "it is after the text: {full}");
    assert_eq!((&full["linksMore"], &full["controlsMore"]), (&json!(0), &json!(0)), "{full}");
    // Each character has three bytes.
    assert!(full["textTruncated"] == true && (48_000..=48 << 10).contains(&text(&full).len()), "{full}");
    let deep = browse(&server, json!({"conversationId": "a", "url": pages.url("/deep")})).await;
    assert!(deep["textTruncated"] == true && !text(&deep).contains("bottom"), "{deep}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_fields_are_not_taken_for_properties_of_their_form() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let named = browse(&server, json!({"conversationId": "a", "url": pages.url("/named")})).await;
    assert!(text(&named).contains("after it") && named["error"].is_null(), "{named}");
    assert_eq!(named["title"], "Named");
    let controls = controls(&named);
    let selector = |wanted: &str| controls.iter().find(|one| one.0 == wanted).map(|one| one.2);
    assert_eq!(selector("combobox"), Some("body > form:nth-of-type(1) > select:nth-of-type(1)"), "{named}");
    assert_eq!(selector("button"), Some("#go"), "{named}");
    server.stop().await;
}

/// An image and a form have names by which scripts read the size of a page; another page has no body.
#[tokio::test(flavor = "multi_thread")]
async fn a_screenshot_of_the_whole_page_has_its_size_up_to_4000_pixels() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let steps = json!([{"action": "screenshot", "fullPage": true}]);
    let call = json!({"conversationId": "a", "url": pages.url("/tall"), "actions": steps});
    let result = tool(&server, "sandbox_browse", call).await;
    let blocks = result["content"].as_array().expect("blocks");
    let image = blocks.iter().find(|block| block["type"] == "image").expect("a picture");
    let png = BASE64_STANDARD.decode(image["data"].as_str().expect("text")).expect("base64");
    let side = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes"));
    let (width, height) = (side(16), side(20));
    assert!((500..=4000).contains(&width) && height == 4000, "{width} x {height}");
    let call = json!({"conversationId": "a", "url": pages.url("/bare"), "actions": steps});
    let bare = browse(&server, call).await;
    assert!(bare["error"].is_null() && bare["text"] == "", "{bare}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_hangs_is_an_answer_where_cells_have_little_time() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    browse(&server, json!({"conversationId": "a", "url": pages.url("/form")})).await;
    // Its page hangs until all but its end is over; reading for six seconds, as where cells have long, is too late.
    let limits = json!({"timeoutMs": 10_000, "readMs": 600, "url": pages.url("/endless"), "read": ["text"],
        "actions": [{"action": "wait", "ms": 9000}], "textBytesMax": 100, "itemsMax": 1, "answerBytesMax": 1000});
    let code = format!(
        "import sandbox_browser, time\nbegan = time.monotonic()\nawait sandbox_browser.answer({})\n\
         print(time.monotonic() - began < 15)",
        json!(limits.to_string())
    );
    let printed = cell(&server, &code).await;
    let (answer, in_time) = printed.trim_end().split_once('\n').expect("two lines");
    assert!(in_time == "True" && answer.contains("timeout"), "{printed}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_has_the_browser_open() {
    let pages = Pages::start().await;
    let server = server(&pages, &[]).await;
    browse(&server, json!({"conversationId": "a", "url": pages.url("/form")})).await;
    let browser: Language = "browser".parse().expect("a language");
    let is_warm = |(language, phase, _): &(_, &str, _)| *language == browser && *phase == "warm";
    until("a standby has the browser", async || server.standbys.by_phase().iter().any(is_warm)).await;
    let began = Instant::now();
    let page = browse(&server, json!({"conversationId": "new", "url": pages.url("/form")})).await;
    println!("first call {:?}, with a standby", began.elapsed());
    assert_eq!(page["title"], "Form");
    let began = Instant::now();
    browse(&server, json!({"conversationId": "new", "url": pages.url("/form")})).await;
    println!("second call {:?}", began.elapsed());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_no_browser_is_started_and_the_answer_says_who_allows_hosts() {
    let server = Server::with(&[COLD]).await;
    // Tools of MCP servers are reached through the network too, and are no policy.
    for has_tools in [false, true] {
        if has_tools {
            let body = json!({"server": {"url": "http://127.0.0.1:9/mcp"}});
            let put = server.http.put(server.url("/v1/tool-servers/away")).bearer_auth(TOKEN).json(&body);
            assert_eq!(put.send().await.expect("an answer").status(), 204);
        }
        let url = "https://example.com";
        let result = tool(&server, "sandbox_browse", json!({"conversationId": "a", "url": url})).await;
        let said = result["content"][0]["text"].as_str().expect("a text");
        let is_told = said.contains("No network policy") && said.contains("[network.");
        assert!(result["isError"] == true && is_told, "{has_tools}: {result}");
        for path in ["/v1/browse", "/v1/browser/navigate"] {
            let request = server.http.post(server.url(path)).bearer_auth(TOKEN).json(&json!({"url": url}));
            let answer = request.send().await.expect("an answer");
            assert_eq!(answer.status(), 403, "{has_tools}: {path}");
            assert!(answer.text().await.expect("a text").contains("No network policy"), "{has_tools}: {path}");
        }
    }
    assert_eq!(get(&server, "/v1/sessions").await, json!({"sessions": []}));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn coderunners_and_the_vendors_clients_browse() {
    let pages = Pages::start().await;
    let server = server(&pages, &[COLD]).await;
    let base = server.url("");
    let python = tool_path("instavm/bin/python");
    let arguments = ["browser_client.py", &base, TOKEN, &pages.url(""), &format!("http://{}", pages.refused)];
    client(&python, &arguments).await;
    let read = tool(&server, "navigate_and_get_all_visible_text", json!({"url": pages.url("/form")})).await;
    assert!(read["content"][0]["text"].as_str().expect("a text").starts_with("Name"), "{read}");
    server.stop().await;
}
