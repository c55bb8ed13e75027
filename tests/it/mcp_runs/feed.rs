//! The event feed of a token, `/mcp/events`.

use serde_json::json;
use tokio::time::timeout;

use super::{LONG, Stream, feed};
use crate::support::{fake_server::FakeServer, server::TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn feed_reports_every_run_of_the_token() {
    let server = FakeServer::start().await;
    let open = server.http.get(format!("http://{}/mcp/events", server.address)).send().await.expect("an answer");
    assert_eq!(open.status(), 401);
    let wrong = server.http.post(format!("http://{}/mcp/events", server.address)).bearer_auth(TOKEN);
    assert_eq!(wrong.send().await.expect("an answer").status(), 405);
    let response = feed(&server).send().await.expect("a stream");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = Stream::of(response);
    let first = server.run("a", "print hello\nwrite out.csv 1").await;
    let rest = server.http.post(format!("http://{}/v1/runs", server.address)).bearer_auth(TOKEN);
    let rest = rest.json(&json!({"conversationId": "b", "language": "bash", "code": "exit 3"})).send().await;
    assert_eq!(rest.expect("an answer").status(), 200);
    for (conversation, kinds) in
        [("a", &["queued", "started", "stdout", "file", "finished"][..]), ("b", &["queued", "started", "finished"])]
    {
        for (kind, number) in kinds.iter().zip(1..) {
            let notification = stream.next().await.expect("a notification");
            assert_eq!(
                (&notification["jsonrpc"], &notification["method"]),
                (&json!("2.0"), &json!("notifications/sandbox/run"))
            );
            let params = &notification["params"];
            assert_eq!((&params["conversationId"], &params["event"]["kind"]), (&json!(conversation), &json!(kind)));
            assert_eq!(params["event"]["number"], number, "{notification}");
            assert!(conversation != "a" || params["runId"] == first["structuredContent"]["runId"], "{notification}");
        }
    }
    let mut back = Stream::of(feed(&server).header("last-event-id", "run-0:1").send().await.expect("a stream"));
    let notification = back.next().await.expect("a notification");
    assert_eq!(
        (&notification["method"], &notification["params"]),
        (&json!("notifications/sandbox/missed"), &json!({}))
    );
    server.stop().await;
    assert_eq!((stream.next().await, back.next().await), (None, None), "the feed ends with the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_do_not_slow_runs() {
    let server = FakeServer::start().await;
    // More than the sockets between them hold, several times.
    let code = "flood 12000000";
    let (sleeper, never) =
        (feed(&server).send().await.expect("a stream"), feed(&server).send().await.expect("a stream"));
    for _ in 0..5 {
        let result = timeout(LONG, server.run("flood", code)).await.expect("the run does not wait for its readers");
        assert_eq!(result["structuredContent"]["figures"]["stdoutBytes"], 12_000_000, "{result:.300}");
    }
    let last = server.run("last", "print end").await["structuredContent"]["runId"].clone();
    let mut stream = Stream::of(sleeper);
    let (mut cut, mut missed, mut read) = (0, 0, 0);
    loop {
        let notification = stream.next().await.expect("a notification");
        read += notification.to_string().len();
        missed += u32::from(notification["method"] == "notifications/sandbox/missed");
        cut += u32::from(notification["params"]["event"]["kind"] == "cut");
        if notification["params"]["runId"] == last && notification["params"]["event"]["kind"] == "finished" {
            break;
        }
    }
    assert!(cut + missed > 0 && read < 60_000_000, "{cut} cuts, {missed} missed, {read} bytes");
    server.stop().await;
    drop(never);
}
