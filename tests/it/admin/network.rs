//! Network policies that operators make: `/v1/admin/network`, and their view of the page.

use reqwest::Method;
use serde_json::{Value, json};

use super::{administered, call, create, get, page};
use crate::support::{FakeServer, server::TOKEN, sheet::Sheet, until};

const CONFIGURED: (&str, &str) = ("SANDBOX_NETWORK__SET", "set.example");

async fn put(server: &FakeServer, token: &str, name: &str, policy: Value) -> (u16, Value) {
    call(server, token, Method::PUT, &format!("/v1/admin/network/{name}"), Some(policy)).await
}

/// The names of the policies that hold.
async fn names(server: &FakeServer) -> Vec<String> {
    let list = get(server, "/v1/admin/network").await;
    let list = list["policies"].as_array().expect("a list").clone();
    list.iter().map(|policy| policy["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_made_changed_and_deleted_on_every_server_of_the_database_and_each_change_is_audited() {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, audit) = (format!("sqlite://{}/a.db", folder.path().display()), folder.path().join("audit.log"));
    let settings = [CONFIGURED, ("DATABASE_URL", url.as_str()), ("SANDBOX_AUDIT__FILE", audit.to_str().expect("text"))];
    let server = FakeServer::with(&settings).await;
    let other = FakeServer::with(&[CONFIGURED, ("DATABASE_URL", &url)]).await;
    let (id, ops) = create(&server, json!({"name": "ops", "scopes": ["admin"]})).await;
    let whole = json!({"hosts": ["pypi.org", "*.Example.com:8443"], "ports": [80], "addresses": ["10.1.2.3"],
        "languages": ["python"], "everyToken": true, "methods": ["GET"], "paths": ["/v1/"], "requestsPerMinute": 60,
        "bytesPerMinute": 1_000_000});
    assert_eq!(put(&server, &ops, "Packages", whole.clone()).await.0, 204);
    let list = get(&server, "/v1/admin/network").await;
    let wanted = json!({"name": "packages", "isConfigured": false, "policy": whole});
    assert_eq!(list["policies"][1], wanted, "{list}");
    assert_eq!((&list["policies"][0]["name"], &list["policies"][0]["isConfigured"]), (&json!("set"), &json!(true)));
    // What programs may reach is told to the model.
    let tools =
        call(&server, TOKEN, Method::POST, "/mcp", Some(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})));
    assert!(tools.await.1.to_string().contains("pypi.org"), "a model reads of the host");
    until("the other server knows it", async || names(&other).await == ["set", "packages"]).await;
    assert_eq!(put(&other, TOKEN, "packages", json!({"hosts": ["b.example"]})).await.0, 204);
    until("the first knows the change", async || {
        get(&server, "/v1/admin/network").await["policies"][1]["policy"]["hosts"] == json!(["b.example"])
    })
    .await;
    let remove =
        async |name: &str| call(&server, &ops, Method::DELETE, &format!("/v1/admin/network/{name}"), None).await;
    assert_eq!(remove("Packages").await.0, 204);
    assert_eq!(names(&server).await, ["set"]);
    for name in ["packages", "set", "never"] {
        assert_eq!(remove(name).await.0, 404, "{name}");
    }
    server.stop().await;
    other.stop().await;
    let line = |action: &str| (action.to_owned(), id.clone(), String::new(), "packages".to_owned());
    let lines = administered(&audit);
    let changes: Vec<_> = lines.into_iter().filter(|line| line.0.starts_with("network_policy")).collect();
    assert_eq!(changes, [line("network_policy_changed"), line("network_policy_deleted")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_policy_can_be_is_refused_by_its_field_and_nothing_changes() {
    let server = FakeServer::with(&[CONFIGURED]).await;
    let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann"})).await;
    assert_eq!(put(&server, &ann, "mine", json!({"hosts": ["evil.example"]})).await.0, 403);
    let long = vec![vec!["a".repeat(60); 3].join(".") + ".example"; 100];
    for (name, policy, field) in [
        ("a%20b", json!({"hosts": ["a.example"]}), "name: "),
        ("web", json!({"hosts": []}), "hosts: "),
        ("web", json!({"hosts": ["*.com"]}), "hosts: "),
        ("web", json!({"hosts": ["a b"]}), "hosts: "),
        ("web", json!({"hosts": vec!["a.example"; 501]}), "hosts: "),
        ("web", json!({"hosts": ["a.example"], "ports": [0]}), "ports: "),
        ("web", json!({"hosts": ["a.example"], "ports": vec![80; 101]}), "ports: "),
        ("web", json!({"hosts": ["a.example"], "ports": [65536]}), "ports"),
        ("web", json!({"hosts": ["a.example"], "addresses": ["10.0.0"]}), "addresses"),
        ("web", json!({"hosts": ["a.example"], "languages": ["a b"]}), "languages: "),
        ("web", json!({"hosts": ["a.example"], "addresses": vec!["10.1.2.3"; 101]}), "addresses: "),
        ("web", json!({"hosts": ["a.example"], "languages": vec!["python"; 101]}), "languages: "),
        ("web", json!({"hosts": ["a.example"], "methods": ["get"]}), "methods: "),
        ("web", json!({"hosts": ["a.example"], "methods": vec!["GET"; 33]}), "methods: "),
        ("web", json!({"hosts": ["a.example"], "paths": ["v1"]}), "paths: "),
        ("web", json!({"hosts": ["a.example"], "paths": vec!["/v1"; 101]}), "paths: "),
        ("web", json!({"hosts": ["a.example"], "bytesPerMinute": 1}), "bytesPerMinute: "),
        ("web", json!({"hosts": ["a.example"], "secret": "x"}), "secret"),
        ("web", json!({}), "hosts"),
        ("web", json!({"hosts": long}), "A network policy has at most 16384 bytes"),
        ("set", json!({"hosts": ["a.example"]}), "name: "),
    ] {
        let (status, told) = put(&server, TOKEN, name, policy.clone()).await;
        let is_named = told["detail"].as_str().is_some_and(|detail| detail.starts_with(field));
        assert!(status == 422 && is_named, "{policy}: {status} {told}");
    }
    assert_eq!(names(&server).await, ["set"]);
    server.stop().await;
    let away = FakeServer::with(&[CONFIGURED, ("DATABASE_URL", "postgres://127.0.0.1:1/nothing")]).await;
    let (status, told) = put(&away, TOKEN, "web", json!({"hosts": ["a.example"]})).await;
    assert_eq!((status, &told["code"]), (503, &json!("database_unavailable")), "{told}");
    assert_eq!(names(&away).await, ["set"]);
    away.stop().await;
}

async fn fill(sheet: &Sheet, field: &str, text: &str) {
    let element = sheet.browser.element(field).await;
    element.clear().await.expect("cleared");
    element.send_keys(text).await.expect("typed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_made_changed_and_deleted_on_the_page() {
    let server = FakeServer::with(&[CONFIGURED]).await;
    let sheet = page::page(&server, TOKEN, "ready").await;
    page::open(&sheet, "network").await;
    sheet.says("policies", |text| text.contains("set.example") && text.contains("settings")).await;
    assert_eq!(page::rows(&sheet, "policies").await, 1);
    sheet.click("policy-new").await;
    fill(&sheet, "policy-name", "web").await;
    fill(&sheet, "policy-hosts", "*.com").await;
    sheet.click("policy-yes").await;
    sheet.says("policy-error", |text| text.contains("many owners")).await;
    assert_eq!(sheet.browser.script("return document.activeElement.id").await, "policy-yes", "the focus stays");
    fill(&sheet, "policy-hosts", "a.example\nb.example:8443").await;
    fill(&sheet, "policy-ports", "80 x").await;
    sheet.click("policy-yes").await;
    sheet.says("policy-error", |text| text.contains("from 1 to 65535")).await;
    fill(&sheet, "policy-ports", "8080, 443").await;
    sheet.click("policy-every").await;
    sheet.click("policy-yes").await;
    sheet.says("policies", |text| text.contains("a.example, b.example:8443") && text.contains("every token")).await;
    let stored = get(&server, "/v1/admin/network").await["policies"][1]["policy"].clone();
    assert_eq!((&stored["ports"], &stored["everyToken"]), (&json!([8080, 443]), &json!(true)), "{stored}");

    sheet.browser.script("document.querySelector('[data-testid=policies] [data-testid=act-edit]').click()").await;
    sheet.says("policy-dialog", |text| text.contains("Change web")).await;
    fill(&sheet, "policy-hosts", "c.example").await;
    sheet.click("policy-yes").await;
    sheet.says("policies", |text| text.contains("c.example") && !text.contains("a.example")).await;
    assert_eq!(
        get(&server, "/v1/admin/network").await["policies"][1]["policy"]["ports"],
        json!([8080, 443]),
        "the rest stays"
    );
    sheet.browser.script("document.querySelector('[data-testid=policies] [data-testid=act-trash]').click()").await;
    sheet.says("confirm-dialog", |text| text.contains("c.example")).await;
    sheet.click("confirm-yes").await;
    sheet.says("policies", |text| !text.contains("c.example")).await;
    assert_eq!(names(&server).await, ["set"]);
    sheet.browser.close().await;
    server.stop().await;
}
