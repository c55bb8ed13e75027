//! A client that asks for a list and does not read it.

use super::*;

#[tokio::test(start_paused = true)]
async fn list_that_is_not_read_is_given_up() {
    let root = folder();
    let mount = json!({"Type": "bind", "Source": root.path().join("c"), "Destination": "/data"});
    let one = json!({"Id": "found", "Names": ["x".repeat(64 << 10)], "Mounts": [mount]});
    // More than the sockets take.
    let all = json!(vec![one; 64]);
    let scene = before(root, ScriptedEngine::start(move |_| (200, all.clone())));
    let left = || scene.proxy.0.lists.available_permits();
    let mut client = UnixStream::connect(scene.root.path().join("proxy.sock")).await.expect("a connection");
    let list = "/v1.41/containers/json?filters=%7B%22label%22%3A%5B%22sandbox%2Emanaged%3Dtrue%22%5D%7D";
    client.write_all(format!("GET {list} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.expect("sent");
    assert!(read_to(&mut client, "\r\n\r\n").await.contains("200"));
    assert_eq!(left(), LISTS_MAX - 1);
    // While time is paused, it passes when no task can go on.
    sleep(2 * READ_MAX).await;
    assert_eq!(left(), LISTS_MAX);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.expect("what was sent");
    assert!(rest.len() < 64 * (64 << 10), "it breaks off");
}
