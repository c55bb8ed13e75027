//! The page tells which connections a program made; policies that an operator makes hold in sandboxes that have begun.

use std::path::Path;

use reqwest::Method;
use serde_json::json;

use super::{Origin, run, server};
use crate::support::{
    calls::{ask, cell, get, open_session},
    server::{Server, TOKEN},
    sheet::Sheet,
    until,
};

#[tokio::test(flavor = "multi_thread")]
async fn page_lists_what_a_program_reached_and_what_was_refused() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let sheet = Sheet::open(&server.url("/")).await;
    let code = format!(
        "import requests\nfor n in range(3): print(requests.get('http://{}/bytes/2000').status_code)\n\
         print(requests.get('http://{}/').status_code)",
        origin.http, origin.other
    );
    assert_eq!(sheet.run("python", &code).await, "exited");
    assert_eq!(sheet.text("connections-summary").await, "Network: 3 connections, 1 refused");
    sheet.click("connections-summary").await;
    let rows = "return [...document.querySelectorAll('[data-testid=connection]')].map(row => row.innerText)";
    let rows: Vec<String> = serde_json::from_value(sheet.browser.script(rows).await).expect("rows");
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows[0].starts_with("allowed") && rows[0].contains(&origin.http.to_string()), "{rows:?}");
    assert!(rows[0].contains("×3") && rows[0].contains("KiB received"), "{rows:?}");
    assert!(rows[1].starts_with("refused") && rows[1].contains("no policy allows"), "{rows:?}");
    let found = crate::page_access::findings(&sheet.browser, "connections").await;
    assert!(found.is_empty(), "{found:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&folder).expect("a folder");
    sheet.browser.screenshot(&folder.join("connections.png")).await;
    // Told again to who opens the page later; gone with the next run.
    sheet.reload("ready").await;
    sheet.says("connections-summary", |text| text.contains("1 refused")).await;
    assert_eq!(sheet.run("python", "print(1)").await, "exited");
    let hidden = "return document.querySelector('[data-testid=connections]').hidden";
    assert_eq!(sheet.browser.script(hidden).await, true);
    sheet.click("session").await;
    let code = format!("import requests\nprint(requests.get('http://{}/').status_code)", origin.other);
    assert_eq!(sheet.run("python", &code).await, "exited");
    assert_eq!(sheet.text("connections-summary").await, "Network: 0 connections, 1 refused", "of a cell");

    let all = get(&server, "/v1/admin/network-decisions?limit=2").await;
    let newest = &all["decisions"][0];
    assert_eq!((&newest["owner"], &newest["decision"]), (&json!("default"), &json!("refused")), "{all}");
    assert_eq!((all["decisions"].as_array().map(Vec::len), &newest["language"]), (Some(2), &json!("python")), "{all}");
    sheet.browser.driver.goto(server.url("/admin#network")).await.expect("the page for operators");
    sheet.browser.state("ready").await;
    let told = |text: &str| text.contains("no policy allows") && text.matches("allowed").count() == 3;
    sheet.says("network-decisions", told).await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_of_an_operator_holds_in_a_session_that_has_begun_until_it_is_deleted() {
    let origin = Origin::start().await;
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0"), ("SANDBOX_NETWORK__SET", "set.example")]).await;
    let policy = "/v1/admin/network/local";
    let put = async |hosts: &[String]| {
        let body = json!({"hosts": hosts, "addresses": ["127.0.0.2"], "everyToken": true});
        assert_eq!(ask(&server, Method::PUT, policy, body).await.0, 204);
    };
    put(&[origin.other.to_string()]).await;
    let session = open_session(&server, TOKEN, json!({"conversationId": "c", "language": "python"})).await;
    let code = format!("import requests; print(requests.get('http://{}/hello').status_code)", origin.http);
    let cell = async || {
        let cell = cell(&server, TOKEN, &session, &code).await;
        cell["stdout"].as_str().unwrap_or_else(|| panic!("{cell}")).trim().to_owned()
    };
    assert_eq!(cell().await, "403");
    put(&[origin.http.to_string()]).await;
    assert_eq!(cell().await, "200");
    assert_eq!(ask(&server, Method::DELETE, policy, None).await.0, 204);
    until("it is refused again", async || cell().await == "403").await;
    // A program that begins now has no channels by it.
    let status = run(&server, &json!({"language": "python", "network": ["local"], "code": "1"})).await;
    assert!(status.to_string().contains("has no policy"), "{status}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_for_a_host_that_a_session_cannot_have_opened_refuses_it_by_name_until_the_rule_is_removed() {
    let origin = Origin::start().await;
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let put = async |paths: &[&str]| {
        let hosts = [origin.tls.to_string()];
        let body = json!({"hosts": hosts, "addresses": ["127.0.0.2"], "everyToken": true, "paths": paths});
        assert_eq!(ask(&server, Method::PUT, "/v1/admin/network/local", body).await.0, 204);
    };
    put(&[]).await;
    let session = open_session(&server, TOKEN, json!({"language": "python"})).await;
    let code = format!(
        "import requests, urllib3; urllib3.disable_warnings()\n\
         try: print(requests.get('https://{}/hello', verify=False).text)\n\
         except requests.exceptions.ProxyError as error: print(error)",
        origin.tls
    );
    let cell = async || {
        let cell = cell(&server, TOKEN, &session, &code).await;
        ["stdout", "stderr"].map(|name| cell[name].as_str().unwrap_or_else(|| panic!("{cell}")).to_owned())
    };
    assert_eq!(cell().await, ["hello\n", ""]);
    put(&["/hello"]).await;
    let why = format!("the policy for {} changed in a way that needs a new sandbox", origin.tls);
    let [stdout, stderr] = cell().await;
    assert!(stdout.contains(&format!("403 {why}")) && stderr.contains(&format!("[network: {why}")), "{stdout}{stderr}");
    assert_eq!(origin.seen(), 1, "nothing has reached the host unseen");
    put(&[]).await;
    assert_eq!(cell().await, ["hello\n", ""]);
    server.stop().await;
}
