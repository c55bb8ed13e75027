//! Sandboxes that stand by: they are used, serve one program, follow their conversation, and are never a reason for a
//! wrong answer.

use std::time::Duration;

use futures_util::future::join_all;
use mcp_sandbox_server::{
    domain::owner::{ConversationKey, Principal},
    ports::runner::Runner,
    services::runs::RunRequest,
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::support::{FakeServer, Server, until};

async fn hello(server: &Server, conversation: &str) -> String {
    let result = server.run(conversation, "bash", "echo $(hostname) $(cat n 2>/dev/null); echo $$ >> n").await;
    assert_eq!(result["isError"], false, "{result}");
    result["structuredContent"]["stdout"].as_str().expect("text").to_owned()
}

fn bash(server: &Server) -> Runner {
    server.catalog.find(&"bash".parse().expect("a language")).expect("a Bash runner")
}

/// Waits until so many stand by for Bash.
async fn standing(server: &Server, wanted: usize) {
    let image = bash(server).image;
    until("sandboxes stand by", async || server.standbys.standing_by(&image) >= wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_and_known_conversations_use_a_standby_and_keep_their_files() {
    let server = Server::with(&[("SANDBOX_STANDBY__NAMELESS_MAX", "1")]).await;
    hello(&server, "first").await;
    // One for this conversation, one unassigned.
    standing(&server, 2).await;
    let told = server.call("sandbox.list_runners", serde_json::json!({})).await;
    let runners = told["structuredContent"]["runners"].as_array().expect("runners").clone();
    let of = |language: &str| {
        runners.iter().find(|one| one["language"] == language).expect("it is known")["standingBy"].as_u64()
    };
    assert!(of("bash") >= Some(1) && of("typescript") == Some(0), "{told}");
    let before = server.standbys.taken();
    assert_eq!(hello(&server, "second").await.trim(), "sandbox", "a new conversation has no files");
    standing(&server, 2).await;
    let again = hello(&server, "second").await;
    assert_eq!(again.split_whitespace().count(), 2, "the file of the run before is there: {again}");
    assert!(hello(&server, "first").await.split_whitespace().count() == 2);
    assert!(server.standbys.taken() >= before + 2, "standbys were used");
    let on_disk = std::fs::read_to_string(server.root.join("second/files/n")).expect("the assigned folder");
    assert_eq!(on_disk.lines().count(), 2);
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn burst_of_new_conversations_is_answered_correctly() {
    let server = Server::start().await;
    hello(&server, "warm-up").await;
    standing(&server, 2).await;
    let names: Vec<String> = (0..20).map(|n| format!("burst-{n}")).collect();
    let answers = join_all(names.iter().map(|name| hello(&server, name))).await;
    assert!(answers.iter().all(|answer| answer.trim() == "sandbox"), "{answers:?}");
    for name in &names {
        let lines = std::fs::read_to_string(server.root.join(name).join("files/n")).expect("its own folder");
        assert_eq!(lines.lines().count(), 1, "{name} ran once");
    }
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_standbys_are_not_handed_out() {
    let server = Server::start().await;
    hello(&server, "c").await;
    standing(&server, 2).await;
    let mut killed = 0;
    for sandbox in server.engine.list().await.expect("a list") {
        // Other tests' sandboxes are on the same engine.
        if sandbox.running && server.standbys.holds(sandbox.id) {
            // By an engine value that is not the server's, which has to find out.
            server.engine.kill(sandbox.id).await.expect("killed");
            killed += 1;
        }
    }
    assert!(killed > 0, "some were standing by");
    for n in 0..6 {
        assert!(hello(&server, &format!("after-{n}")).await.starts_with("sandbox"));
    }
    standing(&server, 1).await;
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_conversation_does_not_reuse_its_folder() {
    let server = Server::start().await;
    hello(&server, "gone").await;
    standing(&server, 1).await;
    let write = json!({"conversationId": "gone", "path": "kept", "content": "x"});
    server.call("sandbox.write_file", write).await;
    std::fs::remove_dir_all(server.root.join("gone")).expect("deleted behind the server's back");
    assert_eq!(hello(&server, "gone").await.trim(), "sandbox");
    assert!(!server.root.join("gone/files/kept").exists());
    assert_eq!(std::fs::read_to_string(server.root.join("gone/files/n")).expect("its file").lines().count(), 1);
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_skip_unused_languages_and_respect_the_budget() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "3")]).await;
    for n in 0..5 {
        hello(&server, &format!("c-{n}")).await;
    }
    standing(&server, 3).await;
    let python = server.catalog.find(&"python".parse().expect("a language")).expect("a Python runner");
    assert_eq!(server.standbys.standing_by(&python.image), 0);
    assert!(server.janitor.leased() <= 3, "{}", server.janitor.leased());
    // Without runs each standby keeps its place, once the round that the last run began is over: places are not taken
    // back and forth.
    let rounds = server.standbys.rounds();
    until("a round has gone by", async || server.standbys.rounds() > rounds + 1).await;
    let before: Vec<_> = server.engine.list().await.expect("a list").into_iter().map(|s| s.id).collect();
    let kept: Vec<_> = before.into_iter().filter(|id| server.standbys.holds(*id)).collect();
    let rounds = server.standbys.rounds();
    until("a round has gone by", async || server.standbys.rounds() > rounds).await;
    assert!(!kept.is_empty() && kept.iter().all(|id| server.standbys.holds(*id)), "{kept:?}");
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_of_known_conversations_leave_places_for_new_ones() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "4"), ("SANDBOX_STANDBY__NAMELESS_MAX", "2")]).await;
    for n in 0..6 {
        hello(&server, &format!("known-{n}")).await;
    }
    for n in 0..4 {
        standing(&server, 4).await;
        let before = server.standbys.taken();
        assert_eq!(hello(&server, &format!("new-{n}")).await.trim(), "sandbox");
        assert_eq!(server.standbys.taken(), before + 1, "new-{n} found one");
    }
    // Its own comes after a pause, in the place of another.
    let rounds = server.standbys.rounds();
    until("a round has gone by", async || server.standbys.rounds() > rounds + 1).await;
    standing(&server, 4).await;
    let before = server.standbys.taken();
    assert_eq!(hello(&server, "new-3").await.split_whitespace().count(), 2, "its file is there");
    assert_eq!(server.standbys.taken(), before + 1, "a conversation that was active lately found its own");
    server.settled().await;
    server.stop().await;
}

/// A program could change what a sandbox reads as it starts.
#[tokio::test(start_paused = true)]
async fn no_standby_is_started_for_a_conversation_in_use() {
    let settings = [("SANDBOX_STANDBY__TOTAL_MAX", "9"), ("SANDBOX_STANDBY__NAMELESS_MAX", "0")];
    let server = FakeServer::with(&settings).await;
    let begin = |conversation: &str, code: &str| {
        let key = ConversationKey::new(Principal::default(), conversation.parse().expect("an id"));
        let request = RunRequest::new(key, "python".parse().expect("a language"), code.to_owned().into());
        server.mcp.runs.begin(RunRequest { detach: Some(true), ..request }).expect("a run")
    };
    let run = async |conversation: &str| {
        begin(conversation, "print 1").finished().await.expect("a report");
        // While time is paused, it passes when no task can go on: what follows the report is done.
        sleep(Duration::from_millis(1)).await;
        until("its sandbox is gone", async || server.janitor.unwanted() == 0).await;
    };
    let live = async |count: usize| until("sandboxes live", async || server.engine.live().len() == count).await;
    // Where runs follow each other very quickly there are three.
    for _ in 0..20 {
        run("in-use").await;
        if timeout(Duration::from_millis(500), live(3)).await.is_ok() {
            break;
        }
    }
    let hanging = begin("in-use", "hang");
    // Each of these runs has standbys started for conversations that had several.
    for _ in 0..20 {
        run("other").await;
        assert!(
            server.engine.live().len() <= 6,
            "the program's sandbox, two standbys left, three of the other conversation"
        );
    }
    live(6).await;
    hanging.cancel();
    until("its conversation has three again", async || server.janitor.leased() == 6).await;
    live(6).await;
    server.stop().await;
}

/// Sessions alone bring a language into use, and the first cell of a new conversation finds a standby.
#[tokio::test(flavor = "multi_thread")]
async fn session_of_a_new_conversation_uses_a_standby() {
    let server = Server::start().await;
    let cell = async |conversation: &str| {
        let arguments = json!({"conversationId": conversation, "language": "python", "code": "print(6 * 7)"});
        let result = server.call("sandbox.run_cell", arguments).await;
        assert_eq!(result["structuredContent"]["stdout"], "42\n", "{conversation}: {result}");
    };
    cell("first").await;
    let image = server.catalog.find(&"python".parse().expect("a language")).expect("a Python runner").image;
    until("some stand by", async || server.standbys.standing_by(&image) > 0 && server.standbys.loading() == 0).await;
    let before = server.standbys.taken();
    cell("second").await;
    assert_eq!(server.standbys.taken(), before + 1);
    for conversation in ["first", "second"] {
        server.call("sandbox.reset_session", json!({"conversationId": conversation})).await;
    }
    server.settled().await;
    server.stop().await;
}

const CPU: &str = "import os\n\
                   v2 = '/sys/fs/cgroup/cpu.max'\n\
                   v1 = '/sys/fs/cgroup/cpu/cpu.cfs_%s_us'\n\
                   read = lambda name: open(name).read()\n\
                   words = read(v2).split() if os.path.exists(v2) else [read(v1 % 'quota'), read(v1 % 'period')]\n\
                   print(int(words[0]) * 1000 // int(words[1]))\n";

/// What the kernel reports to programs of real sandboxes.
#[tokio::test(flavor = "multi_thread")]
async fn kernel_reports_the_limit_to_programs_in_standbys() {
    let server = Server::start().await;
    let cpu = async |conversation: &str| {
        let arguments = json!({"conversationId": conversation, "language": "python", "code": CPU});
        let result = server.call("sandbox.run_code", arguments).await;
        assert_eq!(result["structuredContent"]["stdout"], "500\n", "{conversation}: {result}");
    };
    cpu("first").await;
    let image = server.catalog.find(&"python".parse().expect("a language")).expect("a Python runner").image;
    // Those that still load, and those that have loaded.
    for (what, loaded) in [("loading", false), ("warm", true)] {
        until("some stand by", async || {
            // One for the first conversation and one for a new one.
            server.standbys.standing_by(&image) >= 2 && (!loaded || server.standbys.loading() == 0)
        })
        .await;
        let before = server.standbys.taken();
        cpu(&format!("new-{what}")).await;
        assert_eq!(server.standbys.taken(), before + 1, "{what}");
        cpu("first").await;
    }
    server.settled().await;
    server.stop().await;
}

/// The peak is the sandbox's since it started, with the libraries that were loaded before the program came.
#[tokio::test(flavor = "multi_thread")]
async fn peak_memory_of_a_program_is_the_same_with_and_without_a_standby() {
    const PROGRAM: &str = "import pandas\nprint(len(b'x' * (100 << 20)))";
    let peak = async |server: &Server, conversation: &str| {
        let result = server.run(conversation, "python", PROGRAM).await;
        assert_eq!(result["isError"], false, "{result}");
        result["structuredContent"]["figures"]["memoryPeakBytes"].as_u64().expect("a number")
    };
    let cold = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let without = peak(&cold, "first").await;
    cold.stop().await;
    let server = Server::start().await;
    peak(&server, "first").await;
    let image = server.catalog.find(&"python".parse().expect("a language")).expect("a Python runner").image;
    until("they have loaded", async || server.standbys.standing_by(&image) >= 2 && server.standbys.loading() == 0)
        .await;
    let before = server.standbys.taken();
    let with = peak(&server, "new").await;
    assert_eq!(server.standbys.taken(), before + 1);
    println!("measured: {} MiB without a standby, {} MiB with one", without >> 20, with >> 20);
    // A standby has libraries that this program does not import.
    let (least, most) = (without.min(with), without.max(with));
    assert!(least > 100 << 20 && most * 2 < least * 3, "{without} without a standby, {with} with one");
    server.settled().await;
    server.stop().await;
}
