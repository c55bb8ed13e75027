//! Many runs, in a row and at once: every answer right, nothing left behind.

use futures_util::future::join_all;

use crate::support::{Server, scale::how_many};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_succeed_in_a_row_and_50_at_once() {
    let server = Server::start().await;
    let answer = |n: usize| {
        let server = &server;
        async move {
            let conversation = format!("load-{}", n % 7);
            let result = server.run(&conversation, "bash", &format!("echo $(({n} * 2)); echo {n} > n.txt")).await;
            let content = &result["structuredContent"];
            assert_eq!(content["stdout"], format!("{}\n", n * 2), "{result}");
            assert_eq!(content["files"][0]["path"], "n.txt");
        }
    };
    answer(0).await;
    server.settled().await;
    let before = descriptors();
    for n in 0..how_many(150, 300) {
        answer(n).await;
    }
    server.settled().await;
    join_all((0..50).map(answer)).await;
    server.settled().await;
    let conversations: Vec<_> = std::fs::read_dir(&server.root)
        .expect("the root")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(conversations.len(), 7, "{conversations:?}");
    // Both ends of the client's 50 idle connections are in this process, and each standby holds connections to the
    // engine. A leak of one descriptor for each run exceeds that; `soak` finds smaller ones.
    let (after, slack) = (descriptors(), 50 * 2 + 12 * 3 + 10);
    assert!(after <= before + slack, "{before} descriptors before, {after} after");
    server.stop().await;
}
