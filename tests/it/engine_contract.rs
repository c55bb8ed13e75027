//! The engine contract: every promise of `ports::engine`, held by every engine.
//!
//! Each test is one function over a world; the list at the end runs all of them on each engine.

use std::time::Duration;

use futures_util::StreamExt;
use mcp_sandbox_server::{
    domain::id::SandboxId,
    ports::engine::{EngineError, Exit, ImageId, SandboxSpec},
};
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::support::engines::{World, feed_and_see, read_until, see};

/// Within this everything that is at once has happened, also on a busy machine.
const SOON: Duration = Duration::from_secs(30);

async fn prints_on_both_streams_and_exits(world: &World) {
    let p = world.programs;
    let seen = world.run(&format!("{}{}", p.print("out"), p.complain("err"))).await;
    assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(seen.exit, Exit { status: 0, oom_killed: false, process_limit_hit: false, broke_off: false });
}

async fn exit_has_the_status_of_the_program(world: &World) {
    for code in [0, 1, 2, 3, 125, 255] {
        let seen = world.run(&world.programs.exit(code)).await;
        assert_eq!(seen.exit.status, i32::from(code));
    }
}

async fn takes_a_program_in_pieces_and_prints_after_the_input_is_closed(world: &World) {
    let mut sandbox = world.start().await;
    let id = sandbox.id;
    for piece in [world.programs.print("one"), world.programs.print("two")] {
        sandbox.stdin.write_all(piece.as_bytes()).await.expect("written");
        sandbox.stdin.flush().await.expect("flushed");
    }
    sandbox.stdin.shutdown().await.expect("closed");
    assert_eq!(see(sandbox).await.stdout, "one\ntwo\n");
    world.engine.destroy(id).await.expect("destroyed");
}

async fn a_kill_ends_it_at_once(world: &World) {
    let p = world.programs;
    let sandbox = world.start_ready(&format!("{}{}", p.print("ready"), p.hang())).await;
    let id = sandbox.id;
    let ((), seen) = tokio::join!(async { world.engine.kill(id).await.expect("killed") }, async {
        timeout(SOON, see(sandbox)).await.expect("ended soon")
    },);
    assert_eq!(seen.exit.status, 137);
    world.engine.kill(id).await.expect("killed again");
    world.engine.destroy(id).await.expect("destroyed");
    world.engine.kill(id).await.expect("killed when it is gone");
}

async fn destroying_is_idempotent_and_ends_what_runs(world: &World) {
    let mut sandbox = world.start().await;
    let id = sandbox.id;
    sandbox.stdin.write_all(world.programs.hang().as_bytes()).await.expect("written");
    sandbox.stdin.shutdown().await.expect("closed");
    let mut exit = sandbox.exit;
    let mut output = sandbox.output;
    // The exit is being waited for when another caller destroys it.
    assert!(futures_util::poll!(&mut exit).is_pending());
    let destroyed = async { world.engine.destroy(id).await.expect("destroyed") };
    let drained = async { while output.next().await.is_some() {} };
    let ((), (), ended) = tokio::join!(destroyed, drained, timeout(SOON, exit));
    match ended.expect("ended soon") {
        Ok(exit) => assert_eq!(exit.status, 137),
        Err(error) => assert!(matches!(error, EngineError::Lost { id: lost } if lost == id), "{error:?}"),
    }
    world.engine.destroy(id).await.expect("destroyed again");
    world.engine.destroy(SandboxId::new()).await.expect("there never was one");
    assert_eq!(world.listed().await, []);
}

async fn destroying_twice_at_once_is_fine(world: &World) {
    let sandbox = world.start().await;
    let id = sandbox.id;
    drop(sandbox);
    let (one, two) = tokio::join!(world.engine.destroy(id), world.engine.destroy(id));
    one.expect("destroyed");
    two.expect("destroyed");
    assert_eq!(world.listed().await, []);
}

async fn destroying_while_it_starts_is_fine(world: &World) {
    let spec = world.spec();
    let (started, destroyed) = tokio::join!(world.engine.start(&spec), world.engine.destroy(spec.id));
    destroyed.expect("destroyed");
    drop(started);
    world.engine.destroy(spec.id).await.expect("destroyed");
    assert_eq!(world.listed().await, []);
}

async fn a_start_that_is_given_up_leaves_what_destroy_ends(world: &World) {
    let spec = world.spec();
    let mut start = world.engine.start(&spec);
    // Given up as soon as there is something to leave behind.
    while world.listed().await.is_empty() && futures_util::poll!(&mut start).is_pending() {}
    drop(start);
    world.engine.destroy(spec.id).await.expect("destroyed");
    assert_eq!(world.listed().await, []);
}

async fn is_listed_while_it_is_there(world: &World) {
    assert_eq!(world.listed().await, []);
    let spec = world.spec();
    let sandbox = world.engine.start(&spec).await.expect("started");
    let [running] = &world.listed().await[..] else { panic!("not listed once") };
    assert_eq!((running.id, running.instance, running.deadline_unix_s), (spec.id, spec.instance, spec.deadline_unix_s));
    assert!(running.running);
    feed_and_see(sandbox, &world.programs.exit(3)).await;
    let [ended] = &world.listed().await[..] else { panic!("not listed after its end") };
    assert!(!ended.running && ended.id == spec.id);
    world.engine.destroy(spec.id).await.expect("destroyed");
    assert_eq!(world.listed().await, []);
}

async fn two_do_not_disturb_each_other(world: &World) {
    let p = world.programs;
    let (one, two) = (p.print("one") + p.exit(1).as_str(), p.print("two") + p.exit(2).as_str());
    let (one, two) = tokio::join!(world.run(&one), world.run(&two));
    assert_eq!((one.stdout.as_str(), one.exit.status), ("one\n", 1));
    assert_eq!((two.stdout.as_str(), two.exit.status), ("two\n", 2));
}

async fn one_that_was_given_no_program_can_be_killed(world: &World) {
    let sandbox = world.start().await;
    let id = sandbox.id;
    let killed = async { world.engine.kill(id).await.expect("killed") };
    let ((), seen) = tokio::join!(killed, async { timeout(SOON, see(sandbox)).await.expect("ended soon") });
    assert_eq!((seen.stdout.as_str(), seen.exit.status), ("", 137));
    world.engine.destroy(id).await.expect("destroyed");
}

async fn a_dropped_sandbox_runs_on_and_can_be_destroyed(world: &World) {
    let p = world.programs;
    let sandbox = world.start_ready(&format!("{}{}", p.print("ready"), p.hang())).await;
    let id = sandbox.id;
    drop(sandbox);
    assert!(matches!(&world.listed().await[..], [listed] if listed.running));
    timeout(SOON, world.engine.destroy(id)).await.expect("soon").expect("destroyed");
}

async fn a_reader_that_went_away_does_not_hold_up_the_kill(world: &World) {
    let p = world.programs;
    let mut sandbox = world.start().await;
    let id = sandbox.id;
    let program = p.print("ready") + p.flood(64 << 20).as_str() + p.hang().as_str();
    sandbox.stdin.write_all(program.as_bytes()).await.expect("written");
    sandbox.stdin.shutdown().await.expect("closed");
    read_until(&mut sandbox, "ready").await;
    drop(sandbox);
    timeout(SOON, world.engine.kill(id)).await.expect("soon").expect("killed");
    timeout(SOON, world.engine.destroy(id)).await.expect("soon").expect("destroyed");
}

async fn loses_no_byte_of_a_large_output(world: &World) {
    let bytes = 8 << 20;
    let seen = world.run(&(world.programs.flood(bytes) + world.programs.complain("end").as_str())).await;
    assert_eq!((seen.stdout.len(), seen.stderr.as_str(), seen.exit.status), (bytes, "end\n", 0));
}

async fn data_is_the_folder_it_was_given(world: &World) {
    let spec = world.spec();
    let seen = world.run_in(&spec, &world.programs.write("out.txt", "kept")).await;
    assert_eq!(seen.exit.status, 0, "{}", seen.stderr);
    assert_eq!(std::fs::read_to_string(world.folder(&spec).join("out.txt")).expect("written"), "kept");
}

async fn start_reports_a_missing_image(world: &World) {
    let image = ImageId(format!("sha256:{}", "0".repeat(64)));
    let spec = SandboxSpec { image: image.clone(), ..world.spec() };
    let error = world.engine.start(&spec).await.expect_err("no image");
    assert!(matches!(&error, EngineError::ImageGone { image: gone } if *gone == image), "{error:?}");
    world.engine.destroy(spec.id).await.expect("destroyed");
}

async fn probe_has_the_engine_and_its_size(world: &World) {
    let probe = world.engine.probe().await.expect("probed");
    assert!(!probe.engine.is_empty() && !probe.runtime.is_empty() && probe.platform.contains('/'));
    assert!(probe.cpus > 0 && probe.memory_bytes > 0);
}

async fn changes_yields_once_on_subscribe(world: &World) {
    let mut changes = world.engine.changes();
    timeout(SOON, changes.next()).await.expect("soon").expect("it never ends");
    let (one, two) = (world.engine.runners().await.expect("runners"), world.engine.runners().await.expect("runners"));
    assert_eq!(one, two);
}

async fn a_lowered_cpu_limit_holds_and_leaves_the_others(world: &World) {
    let p = world.programs;
    let spec = SandboxSpec { loading_cpu_millis: Some(1000), ..world.spec() };
    let before = world.run_in(&SandboxSpec { id: SandboxId::new(), ..spec.clone() }, &p.limits()).await.stdout;
    assert_eq!(before.lines().next(), Some("1000"), "{before}");
    let sandbox = world.engine.start(&spec).await.expect("started");
    let limited = world.engine.limit_cpu(spec.id, 250).await;
    if !world.engine.can_limit_cpu() {
        assert!(matches!(limited, Err(EngineError::Refused { .. })), "{limited:?}");
        return world.engine.destroy(spec.id).await.expect("destroyed");
    }
    limited.expect("limited");
    let after = feed_and_see(sandbox, &p.limits()).await.stdout;
    assert_eq!(after, before.replacen("1000", "250", 1));
    world.engine.destroy(spec.id).await.expect("destroyed");
    let gone = world.engine.limit_cpu(spec.id, 250).await;
    assert!(matches!(gone, Err(EngineError::Lost { id }) if id == spec.id), "{gone:?}");
}

macro_rules! contract {
    ($($promise:ident)*) => {
        mod docker {
            use super::World;

            $(#[tokio::test]
            async fn $promise() {
                World::docker().await.hold(super::$promise).await;
            })*
        }

        /// Through the socket that can start sandboxes and nothing else.
        mod proxied {
            use super::World;

            $(#[tokio::test]
            async fn $promise() {
                World::proxied().await.hold(super::$promise).await;
            })*
        }

        /// On the cluster of `KUBECONFIG`: `./test.sh --kubernetes`.
        mod kubernetes {
            use super::World;

            $(#[tokio::test]
            async fn $promise() {
                World::kubernetes().await.hold(super::$promise).await;
            })*
        }

        mod fake {
            use super::World;

            $(#[tokio::test]
            async fn $promise() {
                World::fake().hold(super::$promise).await;
            })*
        }
    };
}

contract! {
    prints_on_both_streams_and_exits
    exit_has_the_status_of_the_program
    takes_a_program_in_pieces_and_prints_after_the_input_is_closed
    a_kill_ends_it_at_once
    destroying_is_idempotent_and_ends_what_runs
    destroying_twice_at_once_is_fine
    destroying_while_it_starts_is_fine
    a_start_that_is_given_up_leaves_what_destroy_ends
    is_listed_while_it_is_there
    two_do_not_disturb_each_other
    one_that_was_given_no_program_can_be_killed
    a_dropped_sandbox_runs_on_and_can_be_destroyed
    a_reader_that_went_away_does_not_hold_up_the_kill
    loses_no_byte_of_a_large_output
    data_is_the_folder_it_was_given
    start_reports_a_missing_image
    a_lowered_cpu_limit_holds_and_leaves_the_others
    probe_has_the_engine_and_its_size
    changes_yields_once_on_subscribe
}
