//! The engine dies and comes back again and again while programs run: every run is answered in time and truthfully, no
//! program runs twice, the server recovers by itself, and when it is over every slot, lease and sandbox is back.
//!
//! On an engine of the test's own. A failure names its seed: `KILL_SEED=7 cargo test --test it engine_killed::`.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::sleep};

use crate::support::{
    calls::metric,
    dice::Dice,
    engines::containers,
    private_engine::{Death, PrivateEngine},
    process::Process,
    scale::how_many,
    server::TOKEN,
    until::{until, within},
};

const SLOTS: usize = 4;
const WALL: Duration = Duration::from_secs(6);
/// How long an answer may take beyond the program's limit: 30 s in which the server looks for a sandbox whose engine is
/// unreachable, and 5 s for a kill.
const BEYOND_MAX: Duration = Duration::from_secs(35);
/// How long after the engine answers again a program has run well.
const RECOVERY_MAX: Duration = Duration::from_secs(15);
const LINES: usize = 20;

/// How it dies, and whether its next start takes over the containers that still run.
const DEATHS: [(Death, bool); 8] = [
    (Death::Daemon, true),
    (Death::WithShims, false),
    (Death::InOrder, false),
    (Death::InOrder, true),
    (Death::WithContainerd, true),
    (Death::Daemon, false),
    (Death::WithShims, true),
    (Death::WithContainerd, false),
];

/// Only the engine fails in this test, so any other code would be a wrong report about the program.
const ENGINE_FAILED: [&str; 3] = ["engine_unavailable", "engine_lost", "engine_failed"];

struct Load<'a> {
    server: &'a Process,
    seed: u64,
    next: AtomicUsize,
    over: AtomicBool,
    /// How each run ended, and how long its answer took.
    ends: Mutex<Vec<(String, Duration)>>,
    /// Called after each run.
    step: Notify,
}

/// Marks its beginning and its end in a file, and prints what has to arrive.
fn program(dice: &mut Dice, n: usize) -> (String, bool) {
    let hangs = dice.below(8) == 0;
    let middle = match dice.below(4) {
        _ if hangs => "sleep 100000".to_owned(),
        0 => String::new(),
        1 => format!("for i in $(seq {LINES}); do echo line $i; sleep 0.05; done"),
        _ => format!("sleep 0.{}", 1 + dice.below(9)),
    };
    (format!("printf 1 >> log-{n}\necho begin\n{middle}\nprintf 2 >> log-{n}\necho end"), hangs)
}

fn conversation(worker: usize) -> String {
    format!("killed-{worker}")
}

impl Load<'_> {
    async fn work(&self, worker: usize) {
        while !self.over.load(Ordering::SeqCst) {
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let end = self.one(worker, n).await;
            if end.0.ends_with("engine_unavailable") {
                // A client that honours Retry-After.
                sleep(Duration::from_millis(100)).await;
            }
            self.ends.lock().expect("the list").push(end);
            self.step.notify_one();
        }
    }

    async fn one(&self, worker: usize, n: usize) -> (String, Duration) {
        let mut dice = Dice::new(self.seed + n as u64);
        let (code, hangs) = program(&mut dice, n);
        // A framed runner reports its end in a frame, a plain one by its container's exit.
        let language = if dice.below(2) == 0 { "bash" } else { "plain" };
        let started = Instant::now();
        let (status, run) = run(self.server, &conversation(worker), language, &code).await;
        let took = started.elapsed();
        let mut brief = run.clone();
        // Of all that it names only its own file matters.
        brief["result"]["files"] = Value::Null;
        let context = format!("seed {}, run {n} ({language}) after {took:?}: {status}: {brief}\n{code}", self.seed);
        assert!(took < WALL + BEYOND_MAX, "too late: {context}");
        let word = word(&run);
        match word.as_str() {
            "exited" => check_success(&run, n, &code, &context),
            "timed_out" => assert!(hangs, "it had time: {context}"),
            other => assert!(ENGINE_FAILED.contains(&other), "{context}"),
        }
        (format!("{language} {word}"), took)
    }

    /// Kills the engine while all of them run programs; how long it took until one ran well.
    async fn kill(&self, engine: &mut PrivateEngine, kill: usize) -> Duration {
        let mut dice = Dice::new(self.seed ^ ((kill as u64 + 1) << 32));
        let (death, live_restore) = DEATHS[kill % DEATHS.len()];
        let answered = self.ends.lock().expect("the list").len() + SLOTS;
        while self.ends.lock().expect("the list").len() < answered {
            self.step.notified().await;
        }
        // A moment of chance, and a time of chance without an engine.
        sleep(Duration::from_millis(dice.below(1500))).await;
        engine.die(death).await;
        sleep(Duration::from_millis(dice.below(3000))).await;
        engine.start_again(live_restore).await;
        let back = Instant::now();
        let runs_well = async || {
            let (_, run) = run(self.server, "killed-probe", "bash", "echo well").await;
            word(&run) == "exited" && run["result"]["stdout"] == "well\n"
        };
        let recovered = within(WALL + RECOVERY_MAX, runs_well).await;
        recovered.unwrap_or_else(|_| panic!("seed {}: no program runs after {death:?}", self.seed));
        println!(
            "{death:?}, then live restore {live_restore}: a program ran well {:?} after it answered",
            back.elapsed()
        );
        back.elapsed()
    }
}

/// Runs a program; status and body of the answer.
async fn run(server: &Process, conversation: &str, language: &str, code: &str) -> (u16, Value) {
    let body = json!({"conversationId": conversation, "language": language, "code": code, "wait": 120});
    let answer = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body).send().await;
    let answer = answer.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

/// How a run ended: its verdict, or the code of what failed.
fn word(run: &Value) -> String {
    let words = [&run["outcome"]["ended"], &run["error"]["code"], &run["code"]];
    words.into_iter().find_map(Value::as_str).unwrap_or_else(|| panic!("no verdict: {run}")).to_owned()
}

fn check_success(run: &Value, n: usize, code: &str, context: &str) {
    let result = &run["result"];
    let mut stdout = vec!["begin".to_owned()];
    if code.contains("seq") {
        stdout.extend((1..=LINES).map(|line| format!("line {line}")));
    }
    stdout.push("end\n".to_owned());
    assert_eq!(run["outcome"]["exitCode"], 0, "{context}");
    assert_eq!(result["stdout"], stdout.join("\n"), "{context}");
    let named = result["files"].as_array().is_some_and(|files| files.iter().any(|f| f["path"] == format!("log-{n}")));
    assert!(named, "its file is not named: {context}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_is_answered_truthfully_without_leaks() {
    let seed = std::env::var("KILL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    let kills = how_many(2, 20);
    println!("seed {seed}, {kills} kills");
    let mut engine = PrivateEngine::start().await;
    // The image of Bash has everything in it and takes a minute to copy; this one has Bash too.
    engine.copy_image("runner-javascript:latest").await;
    let bash = "FROM runner-javascript\nLABEL sandbox.language=bash sandbox.aliases=\n\
                ENTRYPOINT [\"/sandbox-init\", \"--program\", \"/tmp/main.sh\", \"--\", \"bash\", \"/tmp/main.sh\"]\n";
    engine.derive_image("runner-bash:latest", bash).await;
    let plain = "FROM runner-bash\nLABEL sandbox.language=plain sandbox.protocol=\n\
                 ENTRYPOINT [\"sh\", \"-c\", \"cat >/tmp/main.sh; bash /tmp/main.sh; exit $?\"]\n";
    engine.derive_image("runner-plain:latest", plain).await;
    let (host, slots, wall) = (engine.host(), SLOTS.to_string(), WALL.as_millis().to_string());
    let server = Process::start(&[
        ("DOCKER_HOST", &host),
        ("SANDBOX_ADMISSION__SLOTS", &slots),
        ("SANDBOX_LIMITS__WALL_MS", &wall),
        ("SANDBOX_STANDBY__TOTAL_MAX", "2"),
    ])
    .await;
    let load = Load {
        server: &server,
        seed,
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        ends: Mutex::default(),
        step: Notify::new(),
    };
    let killing = async {
        let mut slowest = Duration::ZERO;
        for kill in 0..kills {
            slowest = slowest.max(load.kill(&mut engine, kill).await);
        }
        load.over.store(true, Ordering::SeqCst);
        slowest
    };
    let (recovery, _) = tokio::join!(killing, join_all((0..SLOTS).map(|worker| load.work(worker))));
    report(&load, recovery);
    let (runs, mut whole) = (load.next.load(Ordering::SeqCst), 0);
    for (worker, n) in (0..SLOTS).flat_map(|worker| (0..runs).map(move |n| (worker, n))) {
        let log = server.root().join(conversation(worker)).join("files").join(format!("log-{n}"));
        let written = std::fs::read_to_string(log).unwrap_or_default();
        assert!(["", "1", "12"].contains(&written.as_str()), "seed {seed}: run {n} ran twice: {written}");
        whole += usize::from(written == "12");
    }
    let exited = load.ends.lock().expect("the list").iter().filter(|(end, _)| end.ends_with("exited")).count();
    assert!(whole >= exited, "seed {seed}: {exited} runs ended well, and {whole} files are whole");
    everything_is_back(&server, &engine).await;
    let instance = server.instance();
    server.stop().await;
    assert_eq!(containers(&engine.docker(), &instance).await, 0, "seed {seed}: a container is left");
}

fn report(load: &Load<'_>, recovery: Duration) {
    let ends = load.ends.lock().expect("the list");
    let mut words = BTreeMap::new();
    for (word, _) in ends.iter() {
        *words.entry(word).or_insert(0) += 1;
    }
    let slowest = ends.iter().map(|(_, took)| *took).max().unwrap_or_default();
    println!("{words:?}, slowest answer {slowest:?}, slowest recovery {recovery:?}");
    // What breaks nothing, or everything, would show nothing.
    assert!(words.keys().any(|word| word.ends_with("engine_lost")), "seed {}: no run was lost", load.seed);
    assert!(words.keys().any(|word| word.ends_with("exited")), "seed {}: no run ended well", load.seed);
}

/// Every slot runs a program; then slots, leases and sandboxes are back but for those that stand by.
async fn everything_is_back(server: &Process, engine: &PrivateEngine) {
    let codes = (0..SLOTS).map(|n| async move {
        let body = json!({"conversationId": conversation(n), "language": "bash", "code": "sleep 100000", "wait": 0});
        let begun = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body).send().await;
        assert_eq!(begun.expect("an answer").status(), 202);
    });
    join_all(codes).await;
    until("every slot runs a program", async || metric(server, "sandbox_slots_taken").await == SLOTS as u64).await;
    let instance = server.instance();
    until("everything is back", async || {
        let mut held = 0;
        for series in ["slots_taken", "queue_length", "runs_under_way", "sandboxes_unwanted"] {
            held += metric(server, &format!("sandbox_{series}")).await;
        }
        let stand_by = metric(server, "sandbox_sandboxes_held").await;
        held == 0 && stand_by <= 2 && containers(&engine.docker(), &instance).await as u64 == stand_by
    })
    .await;
}

/// Sessions are programs too: a cell that runs is answered, its session ends, and the next one begins with nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_engine_and_says_so() {
    let mut engine = PrivateEngine::start().await;
    engine.copy_image("runner-javascript:latest").await;
    let host = engine.host();
    let server = Process::start(&[("DOCKER_HOST", &host), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let call = async |path: String, body: Value| {
        let answer =
            server.http.post(server.url(&path)).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    for (death, live_restore) in [(Death::WithShims, false), (Death::Daemon, true), (Death::InOrder, false)] {
        let wanted = json!({"conversationId": "s", "language": "javascript"});
        let (status, session) = call("/v1/sessions".to_owned(), wanted).await;
        assert_eq!(status, 201, "{session}");
        let cells = format!("/v1/sessions/{}/cells", session["sessionId"].as_str().expect("an id"));
        let (_, before) = call(cells.clone(), json!({"code": "typeof a"})).await;
        assert_eq!(before["result"]["stdout"].as_str().map(|text| text.contains("undefined")), Some(true), "{before}");
        let (_, set) = call(cells.clone(), json!({"code": "var a = 41; a"})).await;
        assert_eq!(set["outcome"]["ended"], "exited", "{set}");
        let running = call(cells.clone(), json!({"code": "console.log('begun'); await new Promise(() => {})"}));
        let killing = async {
            sleep(Duration::from_millis(700)).await;
            engine.die(death).await;
            sleep(Duration::from_millis(500)).await;
            engine.start_again(live_restore).await;
        };
        let started = Instant::now();
        let ((_, run), ()) = tokio::join!(running, killing);
        assert!(started.elapsed() < WALL + BEYOND_MAX, "{:?}", started.elapsed());
        let word = word(&run);
        println!("{death:?}: the cell was answered after {:?}: {word}", started.elapsed());
        assert!(ENGINE_FAILED.contains(&word.as_str()), "{run}");
        let ended = async || call(cells.clone(), json!({"code": "a"})).await;
        let told = within(BEYOND_MAX, async || ended().await.0 == 410).await;
        told.unwrap_or_else(|_| panic!("{death:?}: the session goes on"));
        let (_, why) = ended().await;
        let sentence = why["detail"].as_str().expect("a sentence");
        assert!(why["code"] == "session_ended" && sentence.contains("its variables are gone"), "{why}");
    }
    server.stop().await;
}
