//! The fake engine's own promises; what it shares with every engine is in the contract suite.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, TryStreamExt};
use mcp_sandbox_server::{
    domain::{InstanceId, Limits, SandboxId, clock::ManualClock, skills::SkillFolders},
    ports::engine::{Engine, EngineError, Exit, ImageId, Output, SandboxSpec, Volume},
};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep},
};

use crate::fake::{FakeEngine, STALL_MAX, StartFault};

struct Scene {
    engine: FakeEngine,
    image: ImageId,
    folder: tempfile::TempDir,
}

fn scene() -> Scene {
    let engine = FakeEngine::new(Arc::new(ManualClock::at(1000)));
    let image = engine.add_runner("python");
    Scene { engine, image, folder: tempfile::tempdir().expect("a folder") }
}

impl Scene {
    fn spec(&self) -> SandboxSpec {
        SandboxSpec {
            id: SandboxId::new(),
            instance: InstanceId::new(),
            image: self.image.clone(),
            data: Volume::HostFolder(self.folder.path().to_owned()),
            folders: Vec::new(),
            skills: SkillFolders::default(),
            limits: Limits::default(),
            loading_cpu_millis: None,
            uid: 1000,
            own_init: false,
            deadline_unix_s: 1_800_000_000,
        }
    }

    async fn run(&self, program: &str) -> (Result<Vec<Output>, EngineError>, Result<Exit, EngineError>) {
        let mut sandbox = self.engine.start(&self.spec()).await.expect("started");
        sandbox.stdin.write_all(program.as_bytes()).await.expect("written");
        sandbox.stdin.shutdown().await.expect("closed");
        let seen = tokio::join!(sandbox.output.try_collect(), sandbox.exit);
        self.engine.destroy(sandbox.id).await.expect("destroyed");
        seen
    }
}

#[tokio::test(start_paused = true)]
async fn run_follows_the_script() {
    let scene = scene();
    let begun = Instant::now();
    let program =
        "# a story\nprint hello there\nsleep 50ms\nbytes ff 0a\nwrite out.txt kept\nfork-limit\nexit 3\nprint no";
    let (output, exit) = scene.run(program).await;
    let output: Vec<_> = output.expect("output").into_iter().map(|piece| piece.bytes).collect();
    assert_eq!(output, [&b"hello there\n"[..], b"\xff\n"]);
    assert_eq!(
        exit.expect("an exit"),
        Exit { status: 3, oom_killed: false, process_limit_hit: true, broke_off: false }
    );
    assert_eq!(begun.elapsed(), Duration::from_millis(50));
    assert_eq!(std::fs::read_to_string(scene.folder.path().join("out.txt")).expect("written"), "kept");
    assert_eq!((scene.engine.live().len(), scene.engine.violations().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn program_waits_for_a_file_and_removes_it() {
    let scene = scene();
    let go = scene.folder.path().join("go");
    let later = async {
        sleep(Duration::from_secs(1)).await;
        std::fs::write(&go, "").expect("written");
    };
    let ((output, _), ()) = tokio::join!(scene.run("wait-file go\nprint on"), later);
    let output: Vec<_> = output.expect("output").into_iter().map(|piece| piece.bytes).collect();
    assert_eq!(output, [&b"on\n"[..]]);
    assert!(!go.exists());
}

#[tokio::test(start_paused = true)]
async fn status_and_ending_follow_the_script() {
    let scene = scene();
    let cases = [("oom", 137, true), ("oom-child\nexit 4", 4, true), ("signal 11", 139, false), ("dance", 127, false)];
    for (program, status, oom_killed) in cases {
        let exit = scene.run(program).await.1.expect("an exit");
        assert_eq!((exit.status, exit.oom_killed), (status, oom_killed), "{program}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_fail_only_as_ordered() {
    let scene = scene();
    let engine = &scene.engine;
    for fault in [StartFault::Unavailable, StartFault::Refused, StartFault::ImageGone] {
        engine.fail_next_start(fault);
        engine.start(&scene.spec()).await.expect_err("on command");
        assert_eq!(engine.live(), []);
    }
    engine.fail_next_start(StartFault::HalfWay);
    let spec = scene.spec();
    engine.start(&spec).await.expect_err("on command");
    assert_eq!(engine.live(), [spec.id]);
    engine.faults().destroys_to_fail = 2;
    for _ in 0..2 {
        engine.destroy(spec.id).await.expect_err("on command");
    }
    engine.destroy(spec.id).await.expect("destroyed");

    engine.faults().exits_to_lose += 1;
    assert!(matches!(scene.run("exit 0").await.1, Err(EngineError::Lost { .. })));
    engine.faults().streams_to_break += 1;
    let (output, exit) = scene.run("print one\nprint two").await;
    assert!(output.is_err() && exit.is_ok());
    assert!(scene.run("print one\nprint two").await.0.is_ok());

    engine.faults().away = true;
    assert!(matches!(engine.list().await, Err(EngineError::Unavailable { .. })));
    engine.faults().away = false;
    assert_eq!(engine.list().await.expect("listed"), []);
}

#[tokio::test(start_paused = true)]
async fn misuse_of_the_port_is_recorded() {
    let scene = scene();
    let spec = scene.spec();
    let mut held = scene.engine.start(&spec).await.expect("started");
    scene.engine.start(&spec).await.expect_err("the same id");
    let elsewhere = SandboxSpec { data: Volume::HostFolder("/nowhere".into()), ..scene.spec() };
    scene.engine.start(&elsewhere).await.expect_err("no folder");

    held.stdin.write_all(b"flood 10000000").await.expect("written");
    held.stdin.shutdown().await.expect("closed");
    // Time passes only when every task is blocked, so the pipe is full after this.
    sleep(Duration::from_millis(1)).await;
    let begun = Instant::now();
    assert!(matches!(scene.engine.kill(spec.id).await, Err(EngineError::Timeout { .. })));
    assert_eq!(begun.elapsed(), STALL_MAX);
    drop(held);
    scene.engine.destroy(spec.id).await.expect("destroyed");
    let notes = scene.engine.violations();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert_eq!(scene.engine.live(), []);
}

#[tokio::test(start_paused = true)]
async fn program_whose_output_is_full_ends_with_the_engine() {
    let scene = scene();
    let mut held = scene.engine.start(&scene.spec()).await.expect("started");
    held.stdin.write_all(b"flood 10000000").await.expect("written");
    held.stdin.shutdown().await.expect("closed");
    // Time passes only when every task is blocked, so the pipe is full after this.
    sleep(Duration::from_millis(1)).await;
    drop(scene);
    let exit = tokio::time::timeout(STALL_MAX, held.exit).await.expect("it ends").expect("an exit");
    assert_eq!(exit.status, 137);
}

#[tokio::test(start_paused = true)]
async fn destroy_ends_a_slow_start_that_list_reports() {
    let scene = scene();
    scene.engine.faults().start_delay = Duration::from_secs(3);
    let spec = scene.spec();
    let given_up = tokio::time::timeout(Duration::from_secs(1), scene.engine.start(&spec)).await;
    assert!(given_up.is_err());
    let [listed] = &scene.engine.list().await.expect("listed")[..] else { panic!("not listed") };
    assert_eq!((listed.id, listed.running), (spec.id, false));
    scene.engine.destroy(spec.id).await.expect("destroyed");
}

#[tokio::test(start_paused = true)]
async fn changes_yields_when_runners_change() {
    let scene = scene();
    let mut changes = scene.engine.changes();
    changes.next().await.expect("the first");
    scene.engine.add_runner("bash");
    changes.next().await.expect("a change");
    assert_eq!(scene.engine.runners().await.expect("runners").len(), 2);
    scene.engine.set_runners(Vec::new());
    changes.next().await.expect("a change");
    assert!(changes.next().now_or_never().is_none());
}
