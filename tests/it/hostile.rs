//! Hostile programs (`tests/hostile/`), in our own runner images: each ends as its row says, in its time, while a
//! neighbour is served; and of all of them nothing is left.
//!
//! Short, every row is tried in one language; with `LONG=1` in all three.

pub mod corpus;
mod disk;
mod host;

use std::{
    collections::BTreeSet,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{
    Server, scale,
    server::{FILE_SECRET, TOKEN},
    until,
};
use corpus::Attack;

/// How many attack at once.
const AT_ONCE: usize = 4;
/// How long after its limit a program's end may be reported: the product's guarantee.
const LATE_MAX: Duration = Duration::from_secs(2);

const SETTINGS: [(&str, &str); 7] = [
    ("SANDBOX_LIMITS__WALL_MS", "180000"),
    ("SANDBOX_ADMISSION__SLOTS", "6"),
    ("SANDBOX_STANDBY__TOTAL_MAX", "3"),
    ("SANDBOX_LIMITS__CPU_MILLIS", "1000"),
    ("SANDBOX_LIMITS__PROCESSES_MAX", "64"),
    ("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "2097152"),
    ("SANDBOX_LIMITS__FILE_BYTES_MAX", "33554432"),
];

/// How one attack went.
struct Went {
    name: String,
    /// How long after its limit it ended; nothing for one that ended before.
    late: Duration,
    /// It was late, or its time was over before it had done its worst.
    starved: bool,
    wrong: Option<String>,
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_programs_end_as_stated_while_another_run_is_served() {
    let (server, before) = (Server::with(&SETTINGS).await, host::settings());
    let attacks = corpus::attacks(scale::long());
    let (count, over) = (attacks.len(), AtomicBool::new(false));
    let attacking = async {
        let went = stream::iter(attacks).map(|attack| go(&server, attack)).buffer_unordered(AT_ONCE);
        let went: Vec<_> = went.collect().await;
        over.store(true, Ordering::Relaxed);
        went
    };
    let (mut went, answers) = tokio::join!(attacking, neighbour(&server, &over));
    for starved in went.iter_mut().filter(|went| went.starved) {
        alone(&server, starved).await;
    }
    let latest = went.iter().max_by_key(|went| went.late).expect("at least one");
    let slowest = answers.iter().max().expect("at least one");
    println!("{count} programs; the latest, {}, {:?} after its limit", latest.name, latest.late);
    println!("the neighbour ran {} programs, the slowest in {slowest:?}", answers.len());
    let wrong: Vec<_> = went.iter().filter_map(|went| went.wrong.as_deref()).collect();
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    leaves_nothing(server, before).await;
}

/// Sends every signal to process 1 and then exits with a status of its own.
const SIGNALS_TO_PROCESS_1: [(&str, &str); 3] = [
    (
        "python",
        "import os\nfor _ in range(3):\n  for n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass\n\
         raise SystemExit(7)",
    ),
    (
        "javascript",
        "for (let k = 0; k < 3; k++) for (let n = 1; n < 65; n++) { try { process.kill(1, n) } catch {} }\n\
         process.exit(7)",
    ),
    ("bash", "for k in 1 2 3; do for n in {1..64}; do kill -$n 1 2>/dev/null; done; done; exit 7"),
];
/// How many standbys there may be, and how many programs run in each language: fewer with standbys, which load
/// libraries that these programs do not use.
const RUNS_IN_EACH_LANGUAGE: [(&str, usize); 2] = [("0", 150), ("12", 50)];

#[tokio::test(flavor = "multi_thread")]
async fn process_1_survives_every_signal_from_inside() {
    for (standbys, count) in RUNS_IN_EACH_LANGUAGE {
        let settings = [
            ("SANDBOX_ADMISSION__SLOTS", "4"),
            ("SANDBOX_LIMITS__CPU_MILLIS", "1000"),
            ("SANDBOX_STANDBY__TOTAL_MAX", standbys),
        ];
        let server = Server::with(&settings).await;
        let one = async |language: &str, program: &str, number: usize| {
            let body =
                json!({"conversationId": format!("{language}-{}", number % 4), "language": language, "code": program});
            let request = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body);
            let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
            corpus::ending(&answer)
        };
        let all = (0..count).flat_map(|number| SIGNALS_TO_PROCESS_1.map(|(name, code)| (name, code, number)));
        let endings =
            stream::iter(all).map(|(language, code, number)| one(language, code, number)).buffer_unordered(AT_ONCE);
        let lost: Vec<_> = endings.filter(|ending| std::future::ready(ending != "exited:7")).collect().await;
        assert!(lost.is_empty(), "{} of {}: {lost:?}", lost.len(), 3 * count);
        server.stop().await;
    }
}

/// In the corpus this program seldom gets a standby that has loaded, and so a keeper.
#[tokio::test(flavor = "multi_thread")]
async fn patched_keeper_of_a_loaded_standby_ends_with_the_program() {
    let server = Server::start().await;
    let begin = async |conversation: &str, program: &str| {
        let body = json!({"conversationId": conversation, "language": "python", "code": program});
        let request = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body);
        request.send().await.expect("an answer").json::<Value>().await.expect("JSON")
    };
    begin("first", "print(1)").await;
    let image = server.catalog.find(&"python".parse().expect("a language")).expect("a Python runner").image;
    // One for the first conversation and one for a new one.
    until("they have loaded", async || server.standbys.standing_by(&image) >= 2 && server.standbys.loading() == 0)
        .await;
    let answer = begin("second", &corpus::read("proto-keeper.py").expect("the program")).await;
    let expected = if cfg!(target_arch = "x86_64") { "patched\n" } else { "no keeper\n" };
    assert_eq!(answer["result"]["stdout"], expected, "{answer}");
    assert_eq!(corpus::ending(&answer), "exited:7", "{answer}");
    server.settled().await;
    server.stop().await;
}

/// Load on the machine can delay a program or keep it from completing its attack in time. So a starved program is run
/// again alone, up to three times, and that result counts. Only one whose attack was not complete gets more time; one
/// that ended late has the same limit again.
async fn alone(server: &Server, starved: &mut Went) {
    for times in 1..=3 {
        println!("{} was {:?} late among others", starved.name, starved.late);
        let again = corpus::attacks(true).into_iter().find(|attack| attack.full_name() == starved.name);
        let mut again = again.expect("in the table");
        again.wall *= if starved.late.is_zero() { times } else { 1 };
        *starved = go(server, again).await;
        if !starved.starved {
            return;
        }
    }
}

/// Runs one attack, and returns how its end differs from the table.
async fn go(server: &Server, attack: Attack) -> Went {
    let name = attack.full_name();
    let mut limits = json!({"wallMs": attack.wall.as_millis()});
    if let Some(bytes) = attack.memory_bytes {
        limits["memoryBytes"] = bytes.into();
    }
    let body = json!({"conversationId": name, "language": attack.language, "code": attack.program, "limits": limits});
    let request = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body);
    let response = request.send().await.expect("an answer");
    let status = response.status();
    let text = response.text().await.expect("text");
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    let ended = corpus::ending(&answer);
    let wall = Duration::from_millis(answer["figures"]["wallMs"].as_u64().unwrap_or_default());
    // One that ended in another way than it should is wrong, and not late.
    let late = if attack.endings.contains(&ended) { wall.saturating_sub(attack.wall) } else { Duration::ZERO };
    let wrong = if text.contains(TOKEN) || text.contains(FILE_SECRET) {
        Some("it read a secret of the server".to_owned())
    } else if status != StatusCode::OK || !attack.endings.contains(&ended) {
        let said: String = text.chars().take(2000).collect();
        Some(format!("ended as {ended} and not as {:?}: {said}", attack.endings))
    } else if late > LATE_MAX {
        Some(format!("took {wall:?} of {:?}", attack.wall))
    } else {
        None
    };
    let starved = late > LATE_MAX || (wrong.is_some() && ended == "timed_out");
    Went { wrong: wrong.map(|wrong| format!("{name}: {wrong}")), name, late, starved }
}

/// Runs a small program again and again until the others are done. How long each took.
async fn neighbour(server: &Server, over: &AtomicBool) -> Vec<Duration> {
    let mut took = Vec::new();
    while took.is_empty() || !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let result = server.run("neighbour", "python", "print(1)").await;
        assert_eq!(result["structuredContent"]["stdout"], "1\n", "{result}");
        took.push(began.elapsed());
    }
    took
}

/// Deletes every conversation, whatever is planted there, takes the server down, and looks for traces.
async fn leaves_nothing(server: Server, before: Vec<(&'static str, String)>) {
    let conversations = names(&server);
    for name in &conversations {
        let url = server.url(&format!("/v1/conversations/{name}"));
        let deleted = server.http.delete(url).bearer_auth(TOKEN).send().await.expect("an answer");
        assert!(deleted.status().is_success(), "{name}: {deleted:?}");
    }
    server.settled().await;
    assert_eq!(names(&server), [""; 0], "folders are left");
    let root = server.root.clone();
    // It asserts that no container and no lease is left.
    server.stop().await;
    until("no process has a mount of ours", async || host::processes_that_mount(&root).is_empty()).await;
    assert_eq!(host::settings(), before, "a setting of this machine was changed");
}

fn names(server: &Server) -> Vec<String> {
    let entries = std::fs::read_dir(&server.root).expect("the root");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// The same programs in a container without the filter, as root and on a writable root: each reports its escape. This
/// proves that the programs detect a missing restriction.
#[test]
fn hostile_programs_escape_in_an_unrestricted_container() {
    let loose = ["run", "--rm", "--network", "none", "--security-opt", "seccomp=unconfined", "--entrypoint", "perl"];
    for (name, user, word) in [
        ("iso-calls", "1000", "ptrace"),
        ("iso-sockets", "1000", "family"),
        ("sock-protocols", "1000", "protocol"),
        ("ioctl-files", "1000", "FS_IOC_GETFLAGS"),
        ("iso-memory-map", "1000", "addresses that do not change"),
        ("file-read-only", "0", "a file in /etc"),
        ("iso-root", "0", "setuid"),
    ] {
        let program = corpus::perl(name);
        let mut command = Command::new("docker");
        let output = command.args(loose).args(["--user", user, "runner-bash", "-e", &program]).output();
        let output = output.expect("a Docker client");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{name}: {said} {}", String::from_utf8_lossy(&output.stderr));
        assert!(said.starts_with("escaped: ") && said.contains(word), "{name}: {said}");
    }
}

#[test]
fn table_lists_exactly_the_hostile_programs() {
    let rows = corpus::rows();
    assert!(rows.len() >= 60, "{} rows", rows.len());
    assert_eq!(corpus::attacks(true).len(), rows.len() * 3);
    let mut odd = corpus::files();
    odd.retain(|file| file != "table.txt" && file != "prelude.pl" && file != "README.md");
    odd.retain(|file| !rows.iter().any(|row| file.rsplit_once('.').is_some_and(|(stem, _)| stem == row.name)));
    assert!(odd.is_empty(), "programs without a row: {odd:?}");
}

#[test]
fn table_contains_every_program_that_security_md_names() {
    let text = include_str!("../../SECURITY.md");
    let rows = corpus::rows();
    let families: BTreeSet<_> = rows.iter().filter_map(|row| Some(row.name.split_once('-')?.0)).collect();
    let mut named = 0;
    for word in text.split('`').skip(1).step_by(2) {
        let word = word.strip_prefix("hostile:").unwrap_or(word);
        let Some((family, rest)) = word.split_once('-') else { continue };
        if families.contains(family) {
            let is_it =
                |row: &corpus::Row| row.name == word || (rest == "*" && row.name.starts_with(&format!("{family}-")));
            assert!(rows.iter().any(is_it), "SECURITY.md names {word}");
            named += 1;
        }
    }
    assert!(named > 40, "{named} programs are named");
}
