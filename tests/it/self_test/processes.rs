//! Where nothing that a program reads says whether its processes are limited, process 1 tries to have more.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn server_whose_sandboxes_can_have_any_number_of_processes_does_not_serve() {
    let engine = differing();
    engine.answer("#!/sandbox-init --inspect 192.0.2.1/443 processes/128\n", &INSIDE.replace("limited", "open"));
    // Where there is no process 1, what was not tried is no pass.
    engine.answer("== ", &INSIDE.replace("== processes\nlimited\n", ""));
    engine.add_kernel("ruby");
    engine.add_runner("bash");
    let ended = Testing::start(engine).await.ended().await.expect_err("it does not serve").to_string();
    for language in ["[bash]", "[ruby]"] {
        assert!(ended.contains(&format!("{language} more processes are not refused")), "{ended}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runner_with_a_process_1_is_checked_by_it_where_runners_differ() {
    let engine = differing();
    engine.answer("#!/sandbox-init --inspect 192.0.2.1/443 processes/128\n", INSIDE);
    engine.add_kernel("bash");
    let server = Testing::start(engine).await;
    until("Bash has passed", async || server.ready().await.0 == 200).await;
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}
