//! What operators see of connections: counts in the metrics, and a line of the audit log for each.

use serde_json::{Value, json};

use super::{Origin, run};
use crate::support::{calls::metrics, server::Server, until};

/// A sample by its name with its labels; nothing for one that is not there.
fn value(metrics: &str, name: &str) -> u64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.map_or(0, |number| number.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_connection_is_a_line_of_the_audit_log_and_counted_in_the_metrics() {
    let (origin, folder) = (Origin::start().await, tempfile::tempdir().expect("a folder"));
    let audit = folder.path().join("audit.jsonl");
    let hosts = format!("{},{}", origin.http, origin.tls);
    let server = Server::with(&[
        ("SANDBOX_NETWORK__LOCAL", hosts.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_AUDIT__FILE", audit.to_str().expect("a path")),
    ])
    .await;
    let code = format!(
        r#"
import requests, socket
print(len(requests.get("http://{http}/bytes/5000").content))
print(requests.get("https://{tls}/hello", verify=False).text)
print(requests.post("http://{http}/length", data=b"x" * 3000).text)
print(requests.get("http://{other}/").status_code)
print(requests.get("http://name.example.org:81/").status_code)
s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
s.sendall(b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x03\x00\x50"); s.recv(2); print(s.recv(10)[1])
"#,
        http = origin.http,
        tls = origin.tls,
        other = origin.other
    );
    let status = run(&server, &json!({"conversationId": "told", "language": "python", "code": code})).await;
    assert_eq!(status["result"]["stdout"], "5000\nhello\n3000\n403\n403\n2\n", "{status}");
    let connections =
        |text: &str, code: &str| value(text, &format!(r#"sandbox_network_connections_total{{code="{code}"}}"#));
    let mut text = String::new();
    until("each is counted at its end", async || {
        text = metrics(&server).await;
        (connections(&text, "allowed"), connections(&text, "not_allowed")) == (3, 3)
    })
    .await;
    server.stop().await;

    let lines = std::fs::read_to_string(&audit).expect("the log");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let lines: Vec<_> = lines.iter().filter(|line| line.get("network").is_some()).collect();
    let of = |line: &Value, name: &str| line[name].as_u64().unwrap_or_else(|| panic!("{line}"));
    for line in &lines {
        let whose = (&line["conversation"], &line["principal"], &line["language"]);
        assert_eq!(whose, (&json!("told"), &json!("default"), &json!("python")), "{line}");
        assert!(line["at"].is_string() && line["ms"].is_number(), "{line}");
    }
    let [http, tls, other] = [origin.http, origin.tls, origin.other].map(|host| host.to_string());
    // A target, how it was decided, and at least so many bytes each way.
    for (target, refused, sent, received) in [
        (http.as_str(), None, 50, 5000),
        (tls.as_str(), None, 300, 500),
        (http.as_str(), None, 3000, 50),
        (other.as_str(), Some("not_allowed"), 0, 0),
        ("name.example.org:81", Some("not_allowed"), 0, 0),
        ("127.0.0.3:80", Some("not_allowed"), 0, 0),
    ] {
        let is_it = |line: &&&Value| {
            let enough = of(line, "sent_bytes") >= sent && of(line, "received_bytes") >= received;
            let bounded = refused.is_none() || of(line, "sent_bytes") + of(line, "received_bytes") == 0;
            line["network"] == target && line["refused"].as_str() == refused && enough && bounded
        };
        assert_eq!(lines.iter().filter(is_it).count(), 1, "{target} {sent} {received}: {lines:#?}");
    }
    assert_eq!(lines.len(), 6, "{lines:#?}");

    for (way, field) in [("sent", "sent_bytes"), ("received", "received_bytes")] {
        let counted = value(&text, &format!(r#"sandbox_network_bytes_total{{way="{way}"}}"#));
        assert_eq!(counted, lines.iter().map(|line| of(line, field)).sum::<u64>(), "{way}: {text}");
    }
    assert!(!text.contains("127.0.0.") && !text.contains("example.org"), "metrics name no host: {text}");
}
