//! The server is killed with SIGKILL repeatedly while programs run: no sandbox remains, no file that an answer named is
//! lost, each line of the history has an end, and no foreign container is touched.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use futures_util::future::join_all;
use mcp_sandbox_server::ports::engine::Engine;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, sync::Notify};

use crate::support::{
    engines::{World, read_until},
    fake_server::OWN_ADDRESS,
    postgres::Postgres,
    process::Process,
    scale::how_many,
    server::TOKEN,
    until,
};

const AT_ONCE: usize = 16;
/// Conversations of two servers: an odd number, so that each is asked for at both.
const PAIRED: usize = 13;

/// A link and what is behind it.
type Named = (String, String);

/// Runs programs until all have been tried once; one that is refused or cut off is not tried again.
struct Load<'a> {
    http: &'a reqwest::Client,
    url: String,
    language: &'a str,
    tried: AtomicUsize,
    total: usize,
    named: Mutex<Vec<Named>>,
    /// Called after each run.
    step: Notify,
}

impl Load<'_> {
    async fn work(&self) {
        loop {
            let n = self.tried.fetch_add(1, Ordering::SeqCst);
            if n >= self.total {
                return;
            }
            if let Some(named) = self.one(n).await {
                self.named.lock().expect("the list").push(named);
            }
            self.step.notify_one();
        }
    }

    async fn one(&self, n: usize) -> Option<Named> {
        let body = json!({"conversationId": format!("crash-{}", n % 23), "language": self.language,
                          "code": format!("echo {n} > f-{n}.txt; sleep 0.1; echo {n}"), "wait": 60});
        let answer = self.http.post(&self.url).bearer_auth(TOKEN).json(&body).send().await;
        // The connection is refused: the server is restarting.
        let Ok(answer) = answer else {
            until("the server listens", async || {
                let alive = self.http.get(self.url.replace("/v1/runs", "/healthz")).send().await;
                alive.is_ok_and(|answer| answer.status().is_success())
            })
            .await;
            return None;
        };
        let status = answer.status();
        // The answer itself may be cut off: then nothing was named.
        let run: Value = answer.json().await.ok()?;
        assert!(status == 200 || status == 503, "{status}: {run}");
        if run["outcome"]["ended"] != "exited" {
            return None;
        }
        let files = run["result"]["files"].as_array().expect("files");
        let file = files.iter().find(|file| file["path"] == format!("f-{n}.txt"));
        let file = file.unwrap_or_else(|| panic!("its file is not named: {run}"));
        assert_eq!(run["result"]["stdout"], format!("{n}\n"));
        Some((file["url"].as_str().expect("a link").to_owned(), format!("{n}\n")))
    }
}

/// The sandboxes of an instance, dead or alive.
async fn sandboxes(engine: &dyn Engine, instance: &str) -> HashSet<String> {
    let listed = engine.list().await.expect("a list");
    listed.iter().filter(|one| one.instance.to_string() == instance).map(|one| one.id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_server_leaves_no_sandbox_and_loses_no_file() {
    one_is_killed(World::docker().await, "bash", &[]).await;
}

/// A server is killed under load and with programs that would go on for long, and started again each time. The language
/// is Bash by any name.
pub async fn one_is_killed(world: World, language: &str, more: &[(&str, &str)]) {
    let test = async |world: &World| {
        // Differs from this server's only in its instance, which is that of a live server.
        let mut foreign = world.start().await;
        foreign.stdin.write_all(b"echo ready; exec sleep 100000\n").await.expect("written");
        foreign.stdin.shutdown().await.expect("closed");
        read_until(&mut foreign, "ready").await;

        let mut server = Process::start(more).await;
        under_load(&mut server, language).await;
        orphans(&mut server, world.engine.as_ref(), language).await;
        every_line_has_an_end(&server).await;
        let (instance, engine) = (server.instance(), world.engine.as_ref());
        server.stop().await;
        assert_eq!(sandboxes(engine, &instance).await, HashSet::new());

        assert!(matches!(&world.listed().await[..], [one] if one.id == foreign.id && one.running), "it was not ours");
        world.engine.destroy(foreign.id).await.expect("destroyed");
    };
    world.hold(test).await;
}

/// Kills it while runs go on, and asks for every file that an answer named.
async fn under_load(server: &mut Process, language: &str) {
    let (total, kills) = (how_many(60, 1000), how_many(2, 10));
    let http = server.http.clone();
    let load = Load {
        http: &http,
        url: server.url("/v1/runs"),
        language,
        tried: AtomicUsize::new(0),
        total,
        named: Mutex::default(),
        step: Notify::new(),
    };
    let killing = async {
        for kill in 1..=kills {
            while load.tried.load(Ordering::SeqCst) < total * kill / (kills + 1) {
                load.step.notified().await;
            }
            server.crash();
            server.start_again();
            server.ready().await;
        }
    };
    tokio::join!(killing, join_all((0..AT_ONCE).map(|_| load.work())));
    let named = load.named.into_inner().expect("the list");
    assert!(named.len() >= total / 4, "only {} of {total} runs were answered", named.len());
    for (url, content) in &named {
        let answer = http.get(url).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{url} was named and is not there");
        assert_eq!(&answer.text().await.expect("a file"), content, "{url}");
    }
    println!("{total} runs, {kills} kills, {} files named and all there", named.len());
}

/// Asks for the history, page by page.
async fn history(server: &Process) -> Vec<Value> {
    let (mut lines, mut cursor) = (Vec::new(), String::new());
    loop {
        let url = server.url(&format!("/v1/history?limit=100{cursor}"));
        let answer = server.http.get(url).bearer_auth(TOKEN).send().await.expect("an answer");
        let page: Value = answer.error_for_status().expect("a page").json().await.expect("JSON");
        lines.extend(page["runs"].as_array().expect("a list").iter().cloned());
        let Some(next) = page["cursor"].as_str() else { return lines };
        cursor = format!("&cursor={next}");
    }
}

/// Runs of the killed servers are not in progress for ever, and a verdict that was stored is whole.
async fn every_line_has_an_end(server: &Process) {
    let mut lines = Vec::new();
    until("each line has an end", async || {
        lines = history(server).await;
        lines.iter().all(|line| line["endedAt"].is_string())
    })
    .await;
    for line in &lines {
        let figures = &line["figures"];
        match line["ended"].as_str() {
            Some("exited") => assert!(line["exitCode"] == 0 && figures.is_object() && line["files"] != json!([])),
            Some("server_lost") => assert!(line["sentence"].is_string() && figures.is_null(), "{line}"),
            Some("failed") => assert!(line["error"].is_string(), "{line}"),
            _ => panic!("{line}"),
        }
    }
    let count = |word: &str| lines.iter().filter(|line| line["ended"] == word).count();
    let (exited, lost) = (count("exited"), count("server_lost"));
    assert!(exited > 0 && lost > 0, "{exited} exited, {lost} were lost with their server");
    println!("{} lines of the history: {exited} exited, {lost} were lost with their server", lines.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_one_is_killed_and_the_other_goes_on() {
    one_of_two_is_killed(World::docker().await, "bash", &[], how_many(60, 200)).await;
}

/// Waits until each of two servers sends on to the other what is in a conversation of that one.
async fn know_each_other(http: &reqwest::Client, urls: &[String; 2], language: &str) {
    for (conversation, own, other) in [("of-a", 0, 1), ("of-b", 1, 0)] {
        let is_answered = async |at: usize| {
            let body = json!({"conversationId": conversation, "language": language, "code": "true", "wait": 60});
            let answer = http.post(&urls[at]).bearer_auth(TOKEN).json(&body).send().await;
            answer.expect("an answer").status() == 200
        };
        assert!(is_answered(own).await);
        until("each knows the other", async || is_answered(other).await).await;
    }
}

/// Two servers of one folder and one database behind what stands for a balancer: each request goes to the next one.
/// One is killed in the middle, and started again when the other has taken over. The language is Bash by any name.
pub async fn one_of_two_is_killed(world: World, language: &str, more: &[(&str, &str)], total: usize) {
    let cluster = Postgres::start().await;
    let url = cluster.url();
    let settings = [&[("DATABASE_URL", url.as_str()), ("SANDBOX_SERVER__PEER_URL", OWN_ADDRESS)][..], more].concat();
    let mut a = Process::start(&settings).await;
    let root = a.root().display().to_string();
    let b = Process::start(&[&settings[..], &[("SANDBOX_ROOT", root.as_str())]].concat()).await;
    let urls = [a.url("/v1/runs"), b.url("/v1/runs")];
    let (tried, right, refused) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let step = Notify::new();
    let http = &a.http.clone();
    know_each_other(http, &urls, language).await;
    let client = async || {
        loop {
            let n = tried.fetch_add(1, Ordering::SeqCst);
            step.notify_one();
            if n >= total {
                return;
            }
            let body = json!({"conversationId": format!("pair-{}", n % PAIRED), "language": language, "wait": 60,
                              "code": format!("sleep 0.1; echo {n} >> all; echo $(({n} * 7))")});
            let answer = http.post(&urls[n % 2]).bearer_auth(TOKEN).json(&body).send().await;
            let Ok(answer) = answer else {
                refused.fetch_add(1, Ordering::SeqCst);
                continue;
            };
            let status = answer.status().as_u16();
            match answer.json::<Value>().await {
                Ok(run) if status == 200 => {
                    assert_eq!(run["result"]["stdout"], format!("{}\n", n * 7), "{run}");
                    right.lock().expect("the list").push(n);
                }
                // What was at the dead server, or had begun there.
                Ok(why) => {
                    let code = why["code"].as_str();
                    let refusals = [(503, Some("held_elsewhere")), (502, Some("server_lost"))];
                    assert!(refusals.contains(&(status, code)), "{status}: {why}");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
                Err(_) => drop(refused.fetch_add(1, Ordering::SeqCst)),
            }
        }
    };
    let killing = async {
        while tried.load(Ordering::SeqCst) < total / 2 {
            step.notified().await;
        }
        a.crash();
        sandboxes(world.engine.as_ref(), &a.instance()).await
    };
    let (left, _) = tokio::join!(killing, join_all((0..AT_ONCE).map(|_| client())));
    assert!(!left.is_empty(), "nothing was left, so nothing is shown");
    let (right, refused) = (right.into_inner().expect("the list"), refused.into_inner());
    let answers = right.len();
    println!("{total} programs, {answers} answers, all right, {refused} refused");
    assert!(answers + refused == total && answers >= total / 4, "{answers} right, {refused} refused");
    let is_right = |pair: usize, at: usize| right.iter().any(|n| n % PAIRED == pair && n % urls.len() == at);
    assert!((0..PAIRED).any(|pair| is_right(pair, 0) && is_right(pair, 1)), "no request was sent on: {right:?}");

    // Every conversation goes on at the other server, with what the programs of all answers wrote, each once.
    for pair in 0..PAIRED {
        let body =
            json!({"conversationId": format!("pair-{pair}"), "language": language, "code": "cat all", "wait": 60});
        let mut run = Value::Null;
        until("the conversation is there", async || {
            let answer = http.post(&urls[1]).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
            run = answer.json().await.expect("JSON");
            run["outcome"]["ended"] == "exited"
        })
        .await;
        let written: Vec<_> = run["result"]["stdout"].as_str().expect("text").lines().collect();
        let once: HashSet<usize> = written.iter().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(once.len(), written.len(), "pair-{pair}: a program ran twice: {written:?}");
        assert!(right.iter().all(|n| n % PAIRED != pair || once.contains(n)), "pair-{pair}: {right:?}, {written:?}");
    }
    let back = async |world: &World| {
        let (instance, engine) = (a.instance(), world.engine.as_ref());
        let other = std::fs::read_to_string(a.root().join(".instance-2")).expect("the other server's name");
        a.start_again();
        until("what it left is gone", async || sandboxes(engine, &instance).await.is_disjoint(&left)).await;
        a.ready().await;
        let body = json!({"conversationId": "pair-0", "language": language, "code": "wc -l < all", "wait": 60});
        let answer = http.post(&urls[0]).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "it answers for the conversations of the other");
        a.stop().await;
        b.stop().await;
        for instance in [instance.as_str(), other.trim()] {
            assert_eq!(sandboxes(engine, instance).await, HashSet::new(), "{instance}");
        }
    };
    world.hold(back).await;
}

/// Kills it while every slot has a program that would go on for long; measures until the last of those is gone.
async fn orphans(server: &mut Process, engine: &dyn Engine, language: &str) {
    let instance = server.instance();
    for n in 0..AT_ONCE {
        let body = json!({"conversationId": format!("orphan-{n}"), "language": language,
                          "code": "trap '' TERM; sleep 25", "wait": 0});
        let answer = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body).send().await;
        assert_eq!(answer.expect("an answer").status(), 202);
    }
    let url = server.url("/v1/runs");
    until("programs run", async || {
        let runs = server.http.get(&url).bearer_auth(TOKEN).send().await.expect("an answer");
        let runs: Value = runs.json().await.expect("JSON");
        runs["runs"].as_array().is_some_and(|runs| runs.iter().filter(|run| run["state"] == "running").count() >= 2)
    })
    .await;
    server.crash();
    let left = sandboxes(engine, &instance).await;
    assert!(left.len() >= 2, "nothing was left, so nothing is shown");
    let from = Instant::now();
    server.start_again();
    until("what the dead server left is gone", async || sandboxes(engine, &instance).await.is_disjoint(&left)).await;
    let took = from.elapsed();
    println!("{} sandboxes of the dead server were gone {took:?} after the next one was started", left.len());
    server.ready().await;
}
