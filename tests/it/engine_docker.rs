//! Facts about Docker that other engines need not share: which limits are told, what the profile forbids, how images
//! come and go, and what happens when the engine breaks off.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use bollard::query_parameters::{RemoveImageOptions, TagImageOptionsBuilder};
use futures_util::StreamExt;
use mcp_sandbox_server::{
    adapters::engine::docker::{ConnectError, DockerEngine, DockerOptions, TimeLimits},
    domain::{
        id::{InstanceId, SandboxId},
        outcome::Limits,
        shared_folder::SharedFolder,
    },
    ports::{
        engine::{EngineError, SandboxSpec},
        runner::Runner,
    },
};
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use crate::support::engines::{World, build, docker, docker_host, feed_and_see, read_until, see};

const SOON: Duration = Duration::from_secs(30);

fn with_limits(world: &World, change: impl FnOnce(&mut Limits)) -> SandboxSpec {
    let mut spec = world.spec();
    change(&mut spec.limits);
    spec
}

/// Of process 1 itself, which ends the control group too. With version 1 of control groups containerd reports a kill
/// only if the group is still there when it learns of it (`process` in its `pkg/oom/v1/v1.go`), which a busy machine
/// decides.
#[tokio::test]
async fn memory_exhaustion_by_the_program_is_reported() {
    let test = async |world: &World| {
        let mut reported = 0;
        for _ in 0..5 {
            let spec = with_limits(world, |limits| limits.memory_bytes = 32 << 20);
            let seen = world.run_in(&spec, "exec tail /dev/zero\n").await;
            assert_eq!(seen.exit.status, 137, "{seen:?}");
            reported += u32::from(seen.exit.oom_killed);
        }
        let is_version_2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        assert!(reported >= if is_version_2 { 4 } else { 1 }, "{reported} of 5");
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn memory_exhaustion_by_a_child_is_reported_with_the_programs_status() {
    let test = async |world: &World| {
        let spec = with_limits(world, |limits| limits.memory_bytes = 32 << 20);
        let seen = world.run_in(&spec, "tail /dev/zero\nexit 4\n").await;
        assert!(seen.exit.oom_killed, "{seen:?}");
        assert_eq!(seen.exit.status, 4);
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn shared_folders_are_readable_and_changed_only_where_that_is_allowed() {
    let test = async |world: &World| {
        let folder = |name: &str, writable: bool| {
            let source = world.root.path().join(name);
            std::fs::create_dir(&source).expect("a folder");
            std::fs::write(source.join("file"), name).expect("a file");
            std::fs::set_permissions(&source, Permissions::from_mode(0o777)).expect("open to all");
            SharedFolder { name: name.to_owned(), source, writable, owners: Vec::new() }
        };
        let folders = vec![folder("docs", false), folder("work", true)];
        let spec = SandboxSpec { folders, ..world.spec() };
        let program = "cat /mnt/*/file; touch /mnt/docs/new; touch /mnt/work/new; ls /mnt/*; \
                       mount -o remount,rw /mnt/docs; touch /mnt/docs/new && echo changed\n";
        let seen = world.run_in(&spec, program).await;
        assert!(seen.stdout.starts_with("docswork/mnt/docs:\nfile\n\n/mnt/work:\nfile\nnew\n"), "{seen:?}");
        assert!(!seen.stdout.contains("changed") && seen.stderr.contains("Read-only file system"), "{seen:?}");
        let folders = vec![SharedFolder {
            name: "gone".to_owned(),
            source: world.root.path().join("gone"),
            writable: false,
            owners: Vec::new(),
        }];
        let spec = SandboxSpec { folders, ..world.spec() };
        let error = world.engine.start(&spec).await.expect_err("there is no such folder");
        assert!(matches!(error, EngineError::Refused { .. }), "{error:?}");
        assert!(!world.root.path().join("gone").exists(), "the engine made the folder");
    };
    World::docker().await.hold(test).await;
}

/// Needs the control groups of the engine's host.
#[tokio::test]
async fn fork_bomb_is_reported() {
    let test = async |world: &World| {
        for _ in 0..5 {
            let spec = with_limits(world, |limits| limits.processes_max = 16);
            let bomb = "for i in {1..40}; do sleep 1000 & done\n";
            // bash tries again for seconds when it is refused; the kernel has told us by then.
            let mut sandbox = world.engine.start(&spec).await.expect("started");
            sandbox.stdin.write_all(bomb.as_bytes()).await.expect("written");
            sandbox.stdin.shutdown().await.expect("closed");
            read_until(&mut sandbox, "fork").await;
            let kill = async { world.engine.kill(spec.id).await.expect("killed") };
            let ((), seen) = tokio::join!(kill, see(sandbox));
            assert!(seen.exit.process_limit_hit, "{seen:?}");
            world.engine.destroy(spec.id).await.expect("destroyed");
        }
        let calm = with_limits(world, |limits| limits.processes_max = 16);
        let seen = world.run_in(&calm, "for i in 1 2 3; do true & done; wait\n").await;
        assert!(!seen.exit.process_limit_hit, "{seen:?}");
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn profile_is_effective_inside_the_container() {
    let test = async |world: &World| {
        let program = "
            id -u; id -g; hostname; pwd; echo $HOME; ulimit -n; ulimit -c
            grep -c . /proc/net/dev
            grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t'
            touch /x 2>&1 | grep -o 'Read-only'
            cat /proc/self/oom_score_adj
            unshare -r true 2>&1 | grep -o 'not permitted'
            stat -f -c %T /tmp
        ";
        let seen = world.run(program).await;
        let lines: Vec<_> = seen.stdout.lines().collect();
        let expected = [
            "1000",
            "1000",
            "sandbox",
            "/data",
            "/tmp",
            "1024",
            "0",
            "3",
            "CapBnd:0000000000000000",
            "NoNewPrivs:1",
            "Seccomp:2",
            "Read-only",
            "1000",
            "not permitted",
            "tmpfs",
        ];
        assert_eq!(lines, expected, "{seen:?}");
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn image_changes_are_reported() {
    let world = World::docker().await;
    let test = async |world: &World| {
        let (docker, language) =
            (docker().await, format!("t{}", InstanceId::new()).replace("instance-", "")[..20].to_owned());
        let found = async || {
            let images = world.engine.runners().await.expect("runners");
            images.into_iter().find(|image| image.labels.get("sandbox.language") == Some(&language))
        };
        let mut changes = world.engine.changes();
        timeout(SOON, changes.next()).await.expect("soon");
        assert_eq!(found().await, None);

        let (one, two) = (format!("mcp-sandbox-test-{language}:one"), format!("mcp-sandbox-test-{language}:two"));
        let label = format!("FROM scratch\nLABEL sandbox.runner=true sandbox.language={language}\n");
        let id = build(&one, &label).await;
        timeout(SOON, changes.next()).await.expect("soon");
        let image = found().await.expect("a runner");
        assert_eq!((&image.id.0, image.reference.as_deref()), (&id, Some(one.as_str())));
        assert!(image.created_unix_s > 0);
        Runner::from_image(&image).expect("a runner");

        // The old image of a rebuilt name keeps its labels and is no runner any more.
        let rebuilt = build(&one, &format!("{label}LABEL sandbox.version=2\n")).await;
        assert_eq!(found().await.map(|image| image.id.0), Some(rebuilt.clone()));
        let tag = TagImageOptionsBuilder::new().repo(two.trim_end_matches(":two")).tag("two").build();
        docker.tag_image(&rebuilt, Some(tag)).await.expect("tagged");
        for name in [&one, &two] {
            assert!(found().await.is_some());
            docker.remove_image(name, None::<RemoveImageOptions>, None).await.expect("removed");
        }
        assert_eq!(found().await, None);
        timeout(SOON, changes.next()).await.expect("soon");
        let _ = docker.remove_image(&id, None::<RemoveImageOptions>, None).await;
    };
    world.hold(test).await;
}

/// An engine on a socket of our own that lets through, cuts or stalls what goes to the real one.
struct Between {
    folder: tempfile::TempDir,
    cuts: watch::Sender<u32>,
    _task: JoinSet<()>,
}

impl Between {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("engine.sock")).expect("a socket");
        let (cuts, cut) = watch::channel(0);
        let real = docker_host().trim_start_matches("unix://").to_owned();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((mut ours, _)) = listener.accept().await {
                let (real, mut cut) = (real.clone(), cut.clone());
                cut.mark_unchanged();
                open.spawn(async move {
                    let Ok(mut theirs) = UnixStream::connect(real).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut ours, &mut theirs) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { folder, cuts, _task: task }
    }

    fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("engine.sock").display())
    }

    /// Ends every connection that is open now.
    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[tokio::test]
async fn broken_connection_is_not_reported_as_an_exit() {
    let between = Between::new();
    let test = async |world: &World| {
        let mut sandbox = world.start_ready("echo ready; while [ ! -e /data/go ]; do sleep 0.02; done; exit 7\n").await;
        let id = sandbox.id;
        let mut exit = sandbox.exit;
        assert!(timeout(Duration::from_millis(50), &mut exit).await.is_err(), "it runs");
        between.cut();
        assert!(timeout(Duration::from_millis(300), &mut exit).await.is_err(), "it runs still");
        std::fs::write(world.root.path().join(id.to_string()).join("go"), "").expect("told to end");
        let exit = timeout(SOON, exit).await.expect("soon").expect("known");
        assert_eq!((exit.status, exit.broke_off), (7, true), "what was printed meanwhile is not known");
        let ended = sandbox.output.next().await;
        assert!(!matches!(ended, Some(Ok(_))), "{ended:?}");
        world.engine.destroy(id).await.expect("destroyed");
    };
    World::docker_at(&between.host(), |_| {}).await.hold(test).await;
}

#[tokio::test]
async fn sandbox_with_broken_streams_is_lost_while_it_runs() {
    let between = Between::new();
    let test = async |world: &World| {
        let mut sandbox = world.start_ready("echo ready; exec sleep 100000\n").await;
        let id = sandbox.id;
        let mut exit = sandbox.exit;
        assert!(timeout(Duration::from_millis(50), &mut exit).await.is_err(), "it runs");
        between.cut();
        let ended = sandbox.output.next().await;
        assert!(!matches!(ended, Some(Ok(_))), "{ended:?}");
        let error = timeout(SOON, exit).await.expect("soon").expect_err("it cannot be observed any more");
        assert!(matches!(error, EngineError::Lost { id: lost } if lost == id), "{error:?}");
        assert!(matches!(&world.listed().await[..], [one] if one.running), "it is for the caller to end it");
        world.engine.destroy(id).await.expect("destroyed");
    };
    World::docker_at(&between.host(), |_| {}).await.hold(test).await;
}

#[tokio::test]
async fn vanished_sandbox_is_lost() {
    let between = Between::new();
    let test = async |world: &World| {
        let sandbox = world.start().await;
        let id = sandbox.id;
        drop((sandbox.stdin, sandbox.output));
        world.engine.destroy(id).await.expect("destroyed");
        let error = timeout(SOON, sandbox.exit).await.expect("soon").expect_err("gone before the first look");
        assert!(matches!(error, EngineError::Lost { id: lost } if lost == id), "{error:?}");
    };
    World::docker_at(&between.host(), |_| {}).await.hold(test).await;
}

#[tokio::test]
async fn changes_resume_after_a_disconnect() {
    let between = Between::new();
    let test = async |world: &World| {
        let mut changes = world.engine.changes();
        timeout(SOON, changes.next()).await.expect("soon").expect("endless");
        between.cut();
        timeout(SOON, changes.next()).await.expect("soon").expect("endless");
    };
    World::docker_at(&between.host(), |_| {}).await.hold(test).await;
}

#[tokio::test]
async fn connect_fails_in_time_when_the_engine_hangs_or_is_absent() {
    let folder = tempfile::tempdir().expect("a folder");
    let silent = folder.path().join("silent.sock");
    let listener = UnixListener::bind(&silent).expect("a socket");
    let mut options = DockerOptions::new(folder.path());
    options.time = TimeLimits { answer: Duration::from_secs(1), ..TimeLimits::default() };
    options.host = Some(format!("unix://{}", silent.display()));
    let hung = DockerEngine::connect(options.clone()).await.expect_err("it does not answer");
    assert!(matches!(&hung, ConnectError::Engine { source: EngineError::Timeout { act: "ping", .. }, .. }), "{hung:?}");
    drop(listener);
    let closed = DockerEngine::connect(options.clone()).await.expect_err("nothing listens");
    assert!(matches!(&closed, ConnectError::Engine { source: EngineError::Unavailable { .. }, .. }), "{closed:?}");
    for host in ["unix:///nowhere/docker.sock", "gopher://x"] {
        options.host = Some(host.to_owned());
        let error = DockerEngine::connect(options.clone()).await.expect_err("no engine");
        assert!(matches!(&error, ConnectError::Host { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn container_with_copied_labels_is_not_listed() {
    let test = async |world: &World| {
        let docker = docker().await;
        let labels = [
            ("sandbox.managed", "true".to_owned()),
            ("sandbox.id", SandboxId::new().to_string()),
            ("sandbox.instance", world.instance.to_string()),
            ("sandbox.deadline", "1".to_owned()),
        ];
        let body = bollard::models::ContainerCreateBody {
            image: Some(world.image.0.clone()),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
            ..Default::default()
        };
        let made = docker.create_container(None, body).await.expect("made");
        let listed = world.listed().await;
        docker.remove_container(&made.id, None).await.expect("removed");
        assert_eq!(listed, []);
    };
    World::docker().await.hold(test).await;
}

/// Not a promise, a figure: run with `--ignored --nocapture` on a quiet machine.
#[tokio::test]
#[ignore = "measures"]
async fn engine_call_durations_are_measured() {
    let test = async |world: &World| {
        let (mut start, mut run, mut kill, mut destroy) = (vec![], vec![], vec![], vec![]);
        for round in 0..24 {
            let spec = world.spec();
            let from = Instant::now();
            let mut sandbox = world.engine.start(&spec).await.expect("started");
            start.push(from.elapsed());
            if round % 2 == 0 {
                let from = Instant::now();
                feed_and_see(sandbox, "echo hello\n").await;
                run.push(from.elapsed());
            } else {
                sandbox.stdin.write_all(b"echo ready; exec sleep 1000\n").await.expect("written");
                sandbox.stdin.shutdown().await.expect("closed");
                read_until(&mut sandbox, "ready").await;
                let from = Instant::now();
                let kills = async { world.engine.kill(spec.id).await.expect("killed") };
                tokio::join!(kills, see(sandbox));
                kill.push(from.elapsed());
            }
            let from = Instant::now();
            world.engine.destroy(spec.id).await.expect("destroyed");
            destroy.push(from.elapsed());
        }
        for (name, mut times) in [("start", start), ("run", run), ("kill", kill), ("destroy", destroy)] {
            times.sort();
            println!(
                "{name}: median {:?}, worst {:?}, of {}",
                times[times.len() / 2],
                times[times.len() - 1],
                times.len()
            );
        }
    };
    World::docker().await.hold(test).await;
}
