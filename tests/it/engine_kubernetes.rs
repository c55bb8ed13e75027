//! What only a real cluster shows: how it ends, refuses and starts sandboxes: `./test.sh --kubernetes`.

mod isolation;
mod outages;
mod policies;

use std::time::Duration;

use futures_util::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::PostParams;
use mcp_sandbox_server::ports::engine::{EngineError, Exit, ImageId, Sandbox, SandboxSpec, Volume};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{
    crash::{one_is_killed, one_of_two_is_killed},
    support::{
        cluster::Cluster,
        engines::{World, base_image},
    },
};

/// Within this everything that is at once has happened, also on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// Within this a kubelet has seen that a volume is too full: it measures them once a minute.
const EVICTED_MAX: Duration = Duration::from_mins(4);

/// A runner on the nodes: process 1 is `sandbox-init` with Bash.
const FRAMED_IMAGE: &str = "runner-bash:latest";

/// The world and the cluster below it.
async fn world() -> (World, Cluster) {
    (World::kubernetes().await, Cluster::get().await)
}

/// The pod of a framed runner.
fn framed() -> Value {
    json!({"containers": [{"name": "any", "image": FRAMED_IMAGE, "imagePullPolicy": "Never"}]})
}

/// The settings of servers that are processes. Their files travel: the claim would have to be the root of these alone.
fn settings<'a>(cluster: &'a Cluster, kubeconfig: &'a str) -> [(&'static str, &'a str); 5] {
    [
        ("KUBECONFIG", kubeconfig),
        ("SANDBOX_ENGINE__KIND", "kubernetes"),
        ("SANDBOX_ENGINE__NAMESPACE", cluster.namespace.as_str()),
        ("SANDBOX_ENGINE__RUNTIME", cluster.closed_class.as_deref().unwrap_or_default()),
        ("SANDBOX_ENGINE__FILES", "streamed"),
    ]
}

fn container(fields: &Value) -> Value {
    let mut container = json!({"name": "any", "image": base_image(), "command": ["bash"]});
    for (name, value) in fields.as_object().expect("fields") {
        container[name] = value.clone();
    }
    json!({"containers": [container]})
}

/// The sentence of a start that is refused.
async fn refusal(world: &World, image: ImageId) -> String {
    let spec = SandboxSpec { image, ..world.spec() };
    let error = timeout(SOON, world.engine.start(&spec)).await.expect("soon").expect_err("refused");
    world.engine.destroy(spec.id).await.expect("destroyed");
    let EngineError::Refused { source, .. } = error else { panic!("{error:?}") };
    source.to_string()
}

#[tokio::test]
async fn memory_that_is_too_much_is_told_as_such() {
    let (world, _) = world().await;
    world
        .hold(async |world: &World| {
            let seen = world.run("exec tail /dev/zero\n").await;
            assert_eq!(seen.exit, Exit { status: 137, oom_killed: true, process_limit_hit: false, broke_off: false });
        })
        .await;
}

/// More than one node takes them, and each folder of the claim is this machine's.
#[tokio::test]
async fn fifty_at_once_have_their_own_output_files_and_status() {
    let (world, _) = world().await;
    world
        .hold(async |world: &World| {
            let runs = (1..=50_u8).map(|n| async move {
                let mut spec = world.spec();
                spec.limits.memory_bytes = 64 << 20;
                let seen = world.run_in(&spec, &format!("echo {n} > own; cat own; exit {n}\n")).await;
                assert_eq!((seen.stdout, seen.exit.status), (format!("{n}\n"), i32::from(n)));
                let own = std::fs::read_to_string(world.folder(&spec).join("own")).expect("written");
                assert_eq!(own, format!("{n}\n"));
            });
            join_all(runs).await;
        })
        .await;
}

#[tokio::test]
async fn a_program_whose_pod_is_evicted_is_lost() {
    let (world, _) = world().await;
    world
        .hold(async |world: &World| {
            let spec = SandboxSpec { data: Volume::Streamed { bytes: 4 << 20 }, ..world.spec() };
            let mut sandbox = world.engine.start(&spec).await.expect("started");
            let program = b"head -c 64M /dev/zero > /data/much; sleep 1000000\n";
            sandbox.stdin.write_all(program).await.expect("written");
            sandbox.stdin.shutdown().await.expect("closed");
            let lost = timeout(EVICTED_MAX, sandbox.exit).await.expect("an end").expect_err("lost");
            assert!(matches!(lost, EngineError::Lost { id } if id == spec.id), "{lost:?}");
            world.engine.destroy(spec.id).await.expect("destroyed");
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_no_pod_and_loses_no_file() {
    let (world, cluster) = world().await;
    cluster.runner("contract-killed", "killed", framed()).await;
    let kubeconfig = std::env::var("KUBECONFIG").expect("a cluster");
    one_is_killed(world, "killed", &settings(&cluster, &kubeconfig)).await;
    cluster.remove_template("contract-killed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_servers_of_a_cluster_one_is_killed_and_the_other_goes_on() {
    let (world, cluster) = world().await;
    // The name of Bash is another test's.
    cluster.runner("contract-pair", "pair", framed()).await;
    let kubeconfig = std::env::var("KUBECONFIG").expect("a cluster");
    one_of_two_is_killed(world, "pair", &settings(&cluster, &kubeconfig), 200).await;
    cluster.remove_template("contract-pair").await;
}

#[tokio::test]
async fn what_the_cluster_refuses_is_a_sentence_that_says_what_to_do() {
    let (world, cluster) = world().await;
    let quota = json!({"metadata": {"name": "contract"}, "spec": {"hard": {"requests.example.org/none": "0"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).expect("a quota");
    match cluster.quotas().create(&PostParams::default(), &quota).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        made => drop(made.expect("a quota")),
    }
    let none = json!({"example.org/none": "1"});
    let mut elsewhere = container(&json!({}));
    elsewhere["nodeSelector"] = json!({"no": "such"});
    let cases = [
        ("contract-quota", container(&json!({"resources": {"limits": none, "requests": none}})), "ResourceQuota"),
        (
            "contract-image",
            container(&json!({"image": "no.such/image:1", "imagePullPolicy": "Never"})),
            "ErrImageNeverPull",
        ),
        ("contract-nowhere", elsewhere, "no node has room"),
        ("contract-command", container(&json!({"command": ["/no/such"]})), "StartError"),
    ];
    world
        .hold(async |world: &World| {
            for (name, spec, named) in cases {
                let text = refusal(world, cluster.template(name, spec).await).await;
                assert!(text.contains(named), "{name}: {text}");
            }
        })
        .await;
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    [&[kind], &length[..], payload].concat()
}

/// The next frame.
async fn next_frame(sandbox: &mut Sandbox, seen: &mut Vec<u8>) -> (u8, String) {
    loop {
        if let Some((header, rest)) = seen.split_at_checked(5) {
            let length = u32::from_be_bytes(header[1..].try_into().expect("four bytes")) as usize;
            if let Some((payload, rest)) = rest.split_at_checked(length) {
                let frame = (header[0], String::from_utf8_lossy(payload).into_owned());
                *seen = rest.to_vec();
                return frame;
            }
        }
        let piece = timeout(SOON, sandbox.output.next()).await.expect("soon").expect("it goes on").expect("output");
        seen.extend_from_slice(&piece.bytes);
    }
}

#[tokio::test]
async fn a_standby_reports_that_it_is_ready_and_runs_a_program() {
    let (world, cluster) = world().await;
    let image = cluster.template("contract-framed", framed()).await;
    // Past the adapter for lines: a framed runner needs no end of its input.
    let engine = cluster.engine().await;
    world
        .hold(async |world: &World| {
            let spec = SandboxSpec { image, own_init: true, ..world.spec() };
            let mut sandbox = engine.start(&spec).await.expect("started");
            let mut seen = Vec::new();
            // What it wrote before the server attached would be lost.
            assert_eq!(next_frame(&mut sandbox, &mut seen).await, (0x81, r#"{"protocol":1}"#.to_owned()));
            let (kind, warm) = next_frame(&mut sandbox, &mut seen).await;
            assert!(kind == 0x81 && warm.contains(r#""warm":true"#), "{warm}");
            let program = b"compgen -e | grep -E '^(KUBERNETES_|SANDBOX_)'; echo '$(HOME) $$' > /data/out; exit 3\n";
            for bytes in [frame(1, b"{}"), frame(2, program), frame(5, b""), frame(3, b"")] {
                sandbox.stdin.write_all(&bytes).await.expect("written");
            }
            sandbox.stdin.flush().await.expect("flushed");
            let (kind, exit) = next_frame(&mut sandbox, &mut seen).await;
            assert!(kind == 0x84 && exit.contains(r#""status":3"#), "{kind:x} {exit}");
            assert_eq!(timeout(SOON, sandbox.exit).await.expect("soon").expect("an exit").status, 0);
            let out = std::fs::read_to_string(world.folder(&spec).join("out")).expect("written");
            assert_eq!(out, "$(HOME) $$\n", "nothing expands a program");
            engine.destroy(spec.id).await.expect("destroyed");
        })
        .await;
}
