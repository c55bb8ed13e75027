//! Nothing runs before the engine was seen to isolate, and a server on one that does not ends.

mod processes;
mod runtimes;

use std::{collections::HashSet, sync::Arc, time::Duration};

use mcp_sandbox_server::{
    adapters::{
        engine::docker::{ConnectError, DockerEngine, DockerOptions, RuntimeSetting},
        storage::DiskStorage,
    },
    app::{App, StartError},
    domain::users::{DEFAULT_RANGE, RunnerUsers},
    ports::{
        engine::{Engine, ImageId},
        storage::Storage as _,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{FakeEngine, StartFault},
    support::{
        Server,
        engines::{World, docker_host},
        renaming::Renaming,
        server::{TOKEN, settings},
        until,
    },
};

/// The report of a properly isolated sandbox.
const INSIDE: &str = "== /proc/self/status\nUid:\t1000\t1000\t1000\t1000\nCapInh:\t0\nCapPrm:\t0\n\
    CapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\n== /proc/net/dev\n    lo: 0\n\
    == /proc/self/mountinfo\n\
    1 0 0:1 / / ro - overlay o rw\n== /sys/fs/cgroup/memory.max\n268435456\n== /sys/fs/cgroup/pids.max\n128\n\
    == processes\nlimited\n== writable\nyes\n";

/// A server on a fake engine whose sandboxes say what a test wants them to.
struct Testing {
    url: String,
    engine: FakeEngine,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), StartError>>,
    _folder: TempDir,
}

impl Testing {
    async fn start(engine: FakeEngine) -> Self {
        Self::with(engine, &[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await
    }

    /// A server on whose root Bash was in use before, so that standbys are wanted from the first moment.
    async fn with_standbys(engine: FakeEngine) -> Self {
        Self::with(engine, &[("SANDBOX_STANDBY__TOTAL_MAX", "2")]).await
    }

    async fn with(engine: FakeEngine, more: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        let config = settings(&root, more);
        let users = RunnerUsers::one(rustix::process::getuid().as_raw());
        let store = Arc::new(DiskStorage::at(&root, users).expect("a root"));
        store.remember_languages(&["bash".to_owned()]).expect("written");
        let probe = engine.probe().await.expect("the fake engine");
        let mut app = App::assemble(&config, store, Arc::new(engine.clone()), probe).await.expect("a server");
        app.test_isolation();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(app.serve(listener, shutdown.clone()));
        Self { url, engine, shutdown, serving, _folder: folder }
    }

    async fn ready(&self) -> (u16, Value) {
        let answer = crate::support::http::client()
            .get(format!("{}/readyz", self.url))
            .bearer_auth(TOKEN)
            .send()
            .await
            .expect("an answer");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    async fn run(&self, language: &str) -> Value {
        let body = json!({"conversationId": "c", "language": language, "code": "print hello"});
        let call = crate::support::http::client().post(format!("{}/v1/runs", self.url)).bearer_auth(TOKEN).json(&body);
        call.send().await.expect("an answer").json().await.expect("JSON")
    }

    async fn ended(self) -> Result<(), StartError> {
        let ended = timeout(Duration::from_mins(1), self.serving).await.expect("in time").expect("no panic");
        assert_eq!(self.engine.live(), [], "a sandbox is left");
        ended
    }
}

fn saying(inside: &str) -> FakeEngine {
    let engine = FakeEngine::default();
    engine.answer("== ", inside);
    engine
}

#[tokio::test(flavor = "multi_thread")]
async fn server_exits_without_running_programs_when_the_engine_does_not_isolate() {
    for (truth, lie, named) in [
        ("    lo: 0", "    lo: 0\n  eth0: 0", "programs see a network"),
        ("268435456", "9223372036854771712", "the limit on memory does not hold"),
    ] {
        let engine = saying(&INSIDE.replace(truth, lie));
        engine.add_runner("python");
        let server = Testing::start(engine).await;
        let started = server.engine.clone();
        let ended = server.ended().await.expect_err("it does not serve");
        assert!(ended.to_string().contains(named), "{ended}");
        assert_eq!(started.started().len(), 1, "the test of the engine and nothing else");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn isolation_check_runs_when_the_first_runner_appears_and_runs_wait() {
    let server = Testing::start(saying(INSIDE)).await;
    let (status, body) = server.ready().await;
    assert_eq!((status, &body["standbys"]), (503, &json!({})));
    server.engine.faults().start_delay = Duration::from_millis(200);
    server.engine.add_runner("python");
    until("the runner is known", async || server.run("python").await["outcome"]["ended"] == "exited").await;
    let (status, body) = server.ready().await;
    assert_eq!((status, body["status"].as_str()), (200, Some("ready")), "{body}");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_with_only_unknown_languages_is_not_ready() {
    let engine = saying(INSIDE);
    engine.add_runner("cobol");
    let server = Testing::start(engine).await;
    until("the first attempt", async || server.ready().await.1["reason"].to_string().contains("Bash")).await;
    let (status, body) = server.ready().await;
    assert_eq!((status, body["status"].as_str()), (503, Some("unavailable")), "{body}");
    let refused = server.run("cobol").await;
    assert!(refused["detail"].as_str().is_some_and(|why| why.contains("install the Bash runner")), "{refused}");
    assert_eq!(server.engine.started().len(), 0, "nothing was started");
    server.engine.add_runner("bash");
    until("the check passes", async || server.ready().await.0 == 200).await;
    assert_eq!(server.run("cobol").await["outcome"]["ended"], "exited");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn isolation_check_retries_transient_failures() {
    let engine = saying(INSIDE);
    engine.add_runner("python");
    engine.fail_next_start(StartFault::Unavailable);
    let server = Testing::start(engine).await;
    until("a later attempt passes", async || server.ready().await.0 == 200).await;
    assert_eq!(server.engine.started().len(), 1, "the first start was refused before there was anything");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_that_this_engine_isolates() {
    let server = Server::start().await;
    let ready = async || server.http.get(server.url("/readyz")).send().await.is_ok_and(|answer| answer.status() == 200);
    until("it is ready", ready).await;
    let root = server.root.display().to_string();
    let doctor = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
        .args(["doctor", "--json"])
        .current_dir(std::env::temp_dir())
        .envs([("MCP_API_TOKEN", TOKEN), ("FILE_SECRET", crate::support::server::FILE_SECRET)])
        .envs([("SANDBOX_ROOT", root.as_str()), ("MCP_HTTP_ADDR", "127.0.0.1:0")])
        .envs(server.engine_settings())
        .output()
        .await
        .expect("doctor");
    let findings: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    assert!(doctor.status.success(), "{findings:#}");
    let level = |check: &str| {
        let found = findings.as_array().expect("a list").iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("no {check} in {findings:#}"))["level"].clone()
    };
    assert_eq!((level("isolation"), level("standby"), level("disk")), ("ok".into(), "ok".into(), "ok".into()));
    server.settled().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runtime_that_is_missing_or_ignored_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        DockerOptions { runtime: RuntimeSetting::from("no-such-runtime"), ..DockerOptions::new(folder.path()) };
    let error =
        DockerEngine::connect(DockerOptions { host: Some(docker_host()), ..options }).await.expect_err("refused");
    assert!(matches!(&error, ConnectError::Runtime { known, .. } if known.contains("runc")), "{error:?}");

    let deaf = Renaming::new(&[("\"Runtime\"", "\"Ignored\"")], &[]);
    // Another name for the usual runtime, which every engine has; the default has the name `runc`.
    let other = |options: &mut DockerOptions| options.runtime = RuntimeSetting::from("io.containerd.runc.v2");
    let test = async |world: &World| {
        let spec = world.spec();
        let error = world.engine.start(&spec).await.expect_err("refused");
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("uses the runtime `runc`"), "{error:?}");
        world.engine.destroy(spec.id).await.expect("destroyed");
    };
    World::docker_at(&deaf.host, other).await.hold(test).await;
    let test = async |world: &World| {
        let spec = world.spec();
        drop(world.engine.start(&spec).await.expect("an engine that hears"));
        world.engine.destroy(spec.id).await.expect("destroyed");
    };
    World::docker_at(&docker_host(), other).await.hold(test).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_runner_is_checked_where_they_differ_and_a_bad_one_is_refused_alone() {
    let engine = differing();
    // JavaScript's program alone has this in it.
    engine.answer("readFileSync", &INSIDE.replace("    lo: 0", "    lo: 0\n  eth0: 0"));
    engine.answer("== ", INSIDE);
    engine.add_runner("bash");
    let server = Testing::start(engine).await;
    assert_eq!(server.run("bash").await["outcome"]["ended"], "exited");
    server.engine.add_runner("javascript");
    until("the new runner has failed the check", async || excepts(&server.ready().await, "javascript")).await;
    let refused = server.run("javascript").await;
    assert_eq!(refused["code"], "engine_failed", "{refused}");
    assert_eq!(server.run("bash").await["outcome"]["ended"], "exited");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_takes_long_to_start_keeps_no_other_from_its_check() {
    let engine = differing();
    engine.answer("== ", INSIDE);
    engine.add_runner("bash");
    let server = Testing::start(engine).await;
    until("Bash has passed", async || server.ready().await.0 == 200).await;
    server.engine.faults().fetching.send_replace([ImageId("sha256:fake-python".to_owned())].into());
    server.engine.add_runner("python");
    until("a sandbox of Python is started", async || server.engine.attempts() >= 2).await;
    // The image of Bash is replaced.
    let mut images = server.engine.runners().await.expect("images");
    let bash = images.iter_mut().find(|image| image.id.0.ends_with("bash")).expect("Bash");
    bash.id.0.push_str("-2");
    server.engine.set_runners(images);
    until("the new image has passed", async || server.run("bash").await["outcome"]["ended"] == "exited").await;
    server.engine.faults().fetching.send_replace(HashSet::new());
    until("Python has passed", async || server.run("python").await["outcome"]["ended"] == "exited").await;
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_that_take_long_leave_the_slots_to_programs() {
    let engine = differing();
    engine.answer("== ", INSIDE);
    // Bash is checked first.
    engine.add_runner("bash");
    let fetched = ["javascript", "python"];
    let images = fetched.map(|language| engine.add_runner(language)).into();
    engine.faults().fetching.send_replace(images);
    let slots = [("SANDBOX_STANDBY__TOTAL_MAX", "0"), ("SANDBOX_ADMISSION__SLOTS", "2")];
    let server = Testing::with(engine, &slots).await;
    assert_eq!(server.run("bash").await["outcome"]["ended"], "exited");
    server.engine.faults().fetching.send_replace(HashSet::new());
    for language in fetched {
        assert_eq!(server.run(language).await["outcome"]["ended"], "exited");
    }
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_count_in_no_rate_of_runs() {
    let engine = differing();
    engine.answer("== ", INSIDE);
    for language in ["bash", "javascript", "python"] {
        engine.add_runner(language);
    }
    let rate = [
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_ADMISSION__RATE_PER_MINUTE", "1"),
        ("SANDBOX_ADMISSION__RATE_BURST", "1"),
    ];
    let server = Testing::with(engine, &rate).await;
    until("all have passed", async || {
        let (status, body) = server.ready().await;
        status == 200 && body["reason"] == "A run can start."
    })
    .await;
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_start_is_tried_again_where_runners_differ() {
    let engine = differing();
    engine.answer("== ", INSIDE);
    engine.add_runner("bash");
    // As at a cluster that is full for a moment.
    engine.fail_next_start(StartFault::Refused);
    let server = Testing::start(engine).await;
    until("Bash has passed", async || server.ready().await.0 == 200).await;
    server.engine.fail_next_start(StartFault::Refused);
    server.engine.add_runner("python");
    until("Python has passed", async || server.run("python").await["outcome"]["ended"] == "exited").await;
    assert_eq!(server.run("bash").await["outcome"]["ended"], "exited");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_language_without_a_check_is_not_served_where_runners_differ() {
    let engine = differing();
    engine.answer("== ", INSIDE);
    engine.add_runner("bash");
    engine.add_runner("ruby");
    let server = Testing::start(engine).await;
    until("Bash has passed", async || excepts(&server.ready().await, "ruby")).await;
    let refused = server.run("ruby").await;
    assert!(refused["detail"].as_str().is_some_and(|why| why.contains("sandbox.aliases")), "{refused}");
    assert_eq!(server.engine.started().len(), 1, "the check of Bash and nothing else");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_1_makes_the_check_of_a_language_without_a_program_for_it() {
    let engine = differing();
    engine.answer("#!/sandbox-init --inspect 192.0.2.1/443", INSIDE);
    engine.add_kernel("ruby");
    let server = Testing::start(engine).await;
    until("Ruby has passed", async || server.ready().await.0 == 200).await;
    assert_eq!(server.run("ruby").await["outcome"]["ended"], "exited");
    server.shutdown.cancel();
    server.ended().await.expect("it served");

    // An image of before, whose interpreter takes it for a comment.
    let engine = differing();
    engine.answer("== ", INSIDE);
    engine.answer("#!/sandbox-init", "");
    engine.add_runner("bash");
    engine.add_kernel("ruby");
    let server = Testing::start(engine).await;
    until("Bash has passed", async || excepts(&server.ready().await, "ruby")).await;
    let refused = server.run("ruby").await;
    assert!(refused["detail"].as_str().is_some_and(|why| why.contains("build its image again")), "{refused}");
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_1_makes_the_check_where_no_installed_language_has_a_program() {
    let engine = FakeEngine::default();
    engine.answer("#!/sandbox-init --inspect", INSIDE);
    engine.add_kernel("ruby");
    let server = Testing::start(engine).await;
    until("the check passes", async || server.ready().await.0 == 200).await;
    assert_eq!(server.run("ruby").await["outcome"]["ended"], "exited");
    server.shutdown.cancel();
    server.ended().await.expect("it served");

    // An image of before prints no report, which is no finding.
    let engine = saying(INSIDE);
    engine.answer("#!/sandbox-init", "");
    engine.add_kernel("ruby");
    let server = Testing::start(engine).await;
    until("the check was tried", async || server.ready().await.1["reason"].to_string().contains("could not be made"))
        .await;
    server.engine.add_runner("bash");
    until("the check passes by Bash", async || server.ready().await.0 == 200).await;
    server.shutdown.cancel();
    server.ended().await.expect("it served");
}

/// An engine whose runners differ, as pods of different templates do.
fn differing() -> FakeEngine {
    let engine = FakeEngine::default();
    engine.faults().forbidden.push(([192, 0, 2, 1], 443).into());
    engine
}

/// Whether a server is ready, but not for this language.
fn excepts((status, body): &(u16, Value), language: &str) -> bool {
    *status == 200 && body["reason"].as_str().is_some_and(|reason| reason.contains(&format!("not in {language}")))
}
