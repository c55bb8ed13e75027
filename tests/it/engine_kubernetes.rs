//! What only a real cluster shows: how it ends, refuses and starts sandboxes, and whether the isolation check tells a
//! cluster that takes the network away from one that does not: `./test.sh --kubernetes`.

use std::{process::Stdio, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::PostParams;
use mcp_sandbox_server::ports::engine::{EngineError, Exit, ImageId, Sandbox, SandboxSpec};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use crate::support::{
    cluster::Cluster,
    engines::{World, base_image},
};

/// Within this everything that is at once has happened, also on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A runner on the nodes: process 1 is `sandbox-init` with Bash.
const FRAMED_IMAGE: &str = "runner-bash:latest";

/// The world and the cluster below it.
async fn world() -> (World, Cluster) {
    (World::kubernetes().await, Cluster::get().await)
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
        ("contract-nowhere", elsewhere, "no node has a place"),
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
    let spec = json!({"containers": [{"name": "any", "image": FRAMED_IMAGE, "imagePullPolicy": "Never"}]});
    let image = cluster.template("contract-framed", spec).await;
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

/// What `doctor` says of the cluster, with a runtime class or none.
async fn doctor(cluster: &Cluster, class: &str) -> String {
    let root = tempfile::tempdir_in(&cluster.claim.mount).expect("a folder of the claim");
    let output = Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
        .arg("doctor")
        .env("MCP_API_TOKEN", "0123456789abcdef0123456789abcdef")
        .env("FILE_SECRET", "fedcba9876543210fedcba9876543210")
        .env("MCP_HTTP_ADDR", "127.0.0.1:0")
        .env("SANDBOX_ROOT", &cluster.claim.mount)
        .env("SANDBOX_ENGINE__KIND", "kubernetes")
        .env("SANDBOX_ENGINE__NAMESPACE", &cluster.namespace)
        .env("SANDBOX_ENGINE__CLAIM", &cluster.claim.claim)
        .env("SANDBOX_ENGINE__RUNTIME", class)
        .current_dir(root.path())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("doctor");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn the_isolation_check_refuses_a_cluster_whose_pods_reach_the_network() {
    let cluster = Cluster::get().await;
    let closed = cluster.closed_class.clone().expect("CLUSTER_CLOSED_CLASS: a runtime class without a network");
    let spec = json!({"containers": [{"name": "any", "image": FRAMED_IMAGE, "imagePullPolicy": "Never"}]});
    cluster.runner("contract-bash", "bash", spec).await;
    let open = doctor(&cluster, "").await;
    assert!(open.contains("FAIL  isolation: bash"), "{open}");
    assert!(open.contains("programs can reach the network"), "{open}");
    assert!(open.contains("install a network plugin that enforces NetworkPolicy"), "{open}");
    let closed = doctor(&cluster, &closed).await;
    assert!(!closed.contains("programs can reach the network"), "{closed}");
    assert!(closed.contains("ok    isolation"), "{closed}");
    cluster.remove_template("contract-bash").await;
}
