//! A faster runtime is used where the isolation check passes under it; otherwise it is ignored.

use mcp_sandbox_server::adapters::engine::docker::proxy::{Proxy, ProxyOptions};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{fake::Offered, support::renaming::Renaming};

/// The engine's second name for its own runtime becomes the name of one that it does not have.
const HAS_CRUN: (&str, &str) = ("\"io.containerd.runc.v2\"", "\"crun\"                 ");
const ASKS_FOR_CRUN: &str = "\"Runtime\":\"crun\"";
const ASKS_FOR_RUNC: &str = "\"Runtime\":\"runc\"";

/// An engine that has crun.
fn having_crun() -> Renaming {
    Renaming::new(&[(ASKS_FOR_CRUN, ASKS_FOR_RUNC)], &[HAS_CRUN, (ASKS_FOR_RUNC, ASKS_FOR_CRUN)])
}

/// An engine that says so and has not.
fn claiming_crun() -> Renaming {
    Renaming::new(&[(ASKS_FOR_CRUN, ASKS_FOR_CRUN)], &[HAS_CRUN])
}

/// The runtime of each sandbox of a server whose engine offers a faster one, after one run. Two standbys are wanted
/// from the start, and the trial is slow.
async fn started_by(behaviour: Option<Offered>) -> Vec<Option<String>> {
    let engine = saying(INSIDE);
    engine.add_runner("bash");
    engine.faults().start_delay = Duration::from_millis(100);
    if let Some(behaviour) = behaviour {
        engine.offer("quick", behaviour);
    }
    let server = Testing::with_standbys(engine).await;
    assert_eq!(server.run("bash").await["outcome"]["ended"], "exited");
    let engine = server.engine.clone();
    server.shutdown.cancel();
    server.ended().await.expect("it served");
    engine.started_by()
}

#[tokio::test(flavor = "multi_thread")]
async fn faster_runtime_starts_every_sandbox_when_it_passes() {
    let quick = Some("quick".to_owned());
    let without = started_by(None).await;
    assert!(without.len() >= 2 && without.iter().all(Option::is_none), "{without:?}");
    let sound = started_by(Some(Offered::Sound)).await;
    assert!(sound.len() >= 2 && sound.iter().all(|by| *by == quick), "{sound:?}");
    let open = INSIDE.replace("    lo: 0", "    lo: 0\n  eth0: 0");
    let loose = format!("{INSIDE}== groups\nopen\n");
    let saying = |text| Offered::Saying("== ".to_owned(), text);
    for behaviour in [Offered::Refusing, saying(open), saying(loose)] {
        // The trial, then the test, the run and whatever stands by.
        let fallen_back = started_by(Some(behaviour)).await;
        assert!(fallen_back.len() >= 3 && fallen_back[0] == quick, "{fallen_back:?}");
        assert!(fallen_back[1..].iter().all(Option::is_none), "{fallen_back:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crun_is_chosen_when_available_unless_the_setting_differs() {
    for (engine, setting, asked) in [
        // The self-test and the run.
        (having_crun(), "", 2),
        // The trial.
        (claiming_crun(), "", 1),
        (having_crun(), "default", 0),
        (claiming_crun(), "runc", 0),
    ] {
        let more = [("DOCKER_HOST", engine.host.as_str()), ("SANDBOX_ENGINE__RUNTIME", setting)];
        let server = Server::with(&[more.as_slice(), &[("SANDBOX_STANDBY__TOTAL_MAX", "0")]].concat()).await;
        let result = server.run("c", "bash", "echo hello").await;
        assert_eq!(result["structuredContent"]["stdout"], "hello\n", "{result}");
        assert_eq!(engine.changed(), asked, "{setting}");
        server.settled().await;
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faster_runtime_is_chosen_behind_the_proxy() {
    let (engine, folder) = (having_crun(), tempfile::tempdir().expect("a folder"));
    let socket = folder.path().join("proxy.sock");
    let front = async |runtime: RuntimeSetting| {
        let root = folder.path().to_owned();
        let proxy = Proxy::new(ProxyOptions {
            engine: engine.host.clone(),
            root,
            users: RunnerUsers::each(1000, DEFAULT_RANGE),
            runtime,
            cgroup_parent: None,
            images: "".into(),
            folders: Vec::new(),
            skills: None,
        });
        let (listener, shutdown) = (Proxy::listen(&socket).expect("a socket"), CancellationToken::new());
        let serving = tokio::spawn(proxy.expect("a proxy").serve(listener, shutdown.clone()));
        let host = format!("unix://{}", socket.display());
        let more = [("DOCKER_HOST", host.as_str()), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
        let server = Server::in_folder(folder.path(), &more).await;
        let result = server.run("c", "bash", "echo hello").await;
        assert_eq!(result["structuredContent"]["stdout"], "hello\n", "{result}");
        server.settled().await;
        server.stop().await;
        shutdown.cancel();
        serving.await.expect("it ends");
    };
    front(RuntimeSetting::Automatic).await;
    assert_eq!(engine.changed(), 2, "the self-test and the run");
    // A proxy that was told otherwise refuses the trial, and the server does without.
    front(RuntimeSetting::Default).await;
    assert_eq!(engine.changed(), 2);
}

#[tokio::test]
async fn default_runtime_starts_sandboxes_after_a_failed_trial() {
    let engine = claiming_crun();
    let test = async |world: &World| {
        assert_eq!(world.engine.candidates().await.expect("an answer"), ["crun"]);
        let usual = world.engine.probe().await.expect("probed").runtime;
        world.engine.select(Some("crun"));
        assert_eq!(world.engine.probe().await.expect("probed").runtime, "crun");
        let spec = world.spec();
        drop(world.engine.start(&spec).await.expect_err("there is none"));
        world.engine.destroy(spec.id).await.expect("destroyed");
        world.engine.select(None);
        assert_eq!(world.engine.probe().await.expect("probed").runtime, usual);
        assert_eq!(world.run(&world.programs.exit(3)).await.exit.status, 3);
    };
    World::docker_at(&engine.host, |_| {}).await.hold(test).await;
}
