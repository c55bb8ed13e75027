//! A cluster of which a part is away for a while: a node, the API server, the connections to it. They break every other
//! test of the cluster, so each runs alone, and they stop and start what `scripts/kubernetes-cluster.sh` made.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Config, api::ListParams};
use mcp_sandbox_server::ports::engine::{EngineError, ImageId, Sandbox, SandboxSpec};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::lookup_host,
    time::{sleep, timeout},
};

use super::{container, framed, settings, world};
use crate::support::{
    cable::Cable,
    calls::{get, post},
    cluster::Cluster,
    engines::{World, read_until, see},
    process::Process,
    server::TOKEN,
    until,
    until::within,
};

/// How long the API server is away.
const AWAY: Duration = Duration::from_mins(1);
/// Within this the cluster has given up a node: after 40 s it is not ready, and 60 s later its pods are deleted.
const LOST_MAX: Duration = Duration::from_mins(4);
/// Within this everything has found the API server again.
const BACK_MAX: Duration = Duration::from_mins(2);

/// A part of the cluster that is away until this is dropped.
struct Outage(String);

impl Outage {
    fn of(part: &str) -> Self {
        let outage = Self(part.to_owned());
        outage.command("stop").expect("it is away");
        outage
    }

    fn command(&self, word: &str) -> Result<(), String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kubernetes-cluster.sh");
        let output = Command::new(script).args([word, &self.0]).stdin(Stdio::null()).output().expect("a shell");
        let said = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said()) }
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        let started = self.command("start");
        assert!(started.is_ok() || std::thread::panicking(), "{started:?}");
    }
}

/// Two nodes that take pods.
async fn two_nodes(cluster: &Cluster) -> [String; 2] {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let listed = nodes.list(&ListParams::default()).await.expect("nodes").items.into_iter();
    let is_open = |node: &Node| node.spec.as_ref().is_none_or(|spec| spec.taints.iter().flatten().next().is_none());
    let mut names = listed.filter(is_open).filter_map(|node| node.metadata.name);
    [names.next().expect("a node"), names.next().expect("a second node")]
}

/// A runner of lines whose pods are on one node.
async fn on_node(cluster: &Cluster, node: &str) -> ImageId {
    let mut pod = container(&json!({}));
    pod["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    cluster.template(&format!("contract-{node}"), pod).await
}

/// A sandbox that has begun to run lines.
async fn begun(world: &World, image: &ImageId, line: &str) -> (SandboxSpec, Sandbox) {
    let spec = SandboxSpec { image: image.clone(), ..world.spec() };
    let mut sandbox = world.engine.start(&spec).await.expect("started");
    sandbox.stdin.write_all(format!("echo ready; {line}\n").as_bytes()).await.expect("written");
    sandbox.stdin.flush().await.expect("flushed");
    read_until(&mut sandbox, "ready").await;
    (spec, sandbox)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_whose_node_is_gone_is_lost_and_others_go_on() {
    let (world, cluster) = world().await;
    let [stays, goes] = two_nodes(&cluster).await;
    let (stays, gone) = (on_node(&cluster, &stays).await, on_node(&cluster, &goes).await);
    world
        .hold(async |world: &World| {
            let (kept_spec, mut kept) = begun(world, &stays, "true").await;
            let (lost_spec, lost) = begun(world, &gone, "sleep 1000000").await;
            let outage = Outage::of(&goes);
            let end = timeout(LOST_MAX, lost.exit).await.expect("an end");
            assert!(matches!(end, Err(EngineError::Lost { id }) if id == lost_spec.id), "{end:?}");
            let spec = SandboxSpec { image: stays.clone(), ..world.spec() };
            assert_eq!(world.run_in(&spec, "echo new\n").await.stdout, "new\n");
            kept.stdin.write_all(b"echo after; exit 7\n").await.expect("written");
            kept.stdin.flush().await.expect("flushed");
            let seen = see(kept).await;
            assert_eq!((seen.stdout.as_str(), seen.exit.status), ("after\n", 7));
            drop(outage);
            for id in [kept_spec.id, lost_spec.id] {
                world.engine.destroy(id).await.expect("destroyed");
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_goes_on_without_an_api_server_and_its_status_is_known_afterwards() {
    let (world, _) = world().await;
    world
        .hold(async |world: &World| {
            // One line: with its stream the input of the shell ends.
            let line = "until [ -e /data/go ]; do sleep 0.1; done; touch /data/went; exit 7";
            let (spec, sandbox) = begun(world, &world.image, line).await;
            let outage = Outage::of("apiserver");
            let other = world.spec();
            let refused = world.engine.start(&other).await.expect_err("nothing answers");
            let is_away = matches!(refused, EngineError::Unavailable { .. } | EngineError::Timeout { .. });
            assert!(is_away, "{refused:?}");
            sleep(AWAY).await;
            let folder = world.folder(&spec);
            std::fs::write(folder.join("go"), "").expect("written");
            until("the program went on", async || folder.join("went").exists()).await;
            drop(outage);
            let exit = timeout(BACK_MAX, sandbox.exit).await.expect("an end").expect("an exit");
            assert_eq!(exit.status, 7);
            for id in [spec.id, other.id] {
                world.engine.destroy(id).await.expect("destroyed");
            }
            let starts = async || {
                let spec = world.spec();
                let is_started = world.engine.start(&spec).await.is_ok();
                world.engine.destroy(spec.id).await.is_ok() && is_started
            };
            within(BACK_MAX, starts).await.expect("sandboxes start again");
        })
        .await;
}

/// The connections of a server alone: its watches and its streams.
#[tokio::test(flavor = "multi_thread")]
async fn watches_that_break_hide_no_new_runner_and_streams_that_break_leave_no_pod() {
    let cluster = Cluster::get().await;
    cluster.runner("contract-early", "early", framed()).await;
    // One that a failed attempt left would be known before the connections break.
    cluster.remove_template("contract-late").await;
    let api = Config::infer().await.expect("KUBECONFIG is valid").cluster_url;
    let mut addresses =
        lookup_host((api.host().expect("a host"), api.port_u16().unwrap_or(443))).await.expect("a host");
    let cable = Cable::to(addresses.next().expect("an address")).await;
    let text = std::fs::read_to_string(std::env::var("KUBECONFIG").expect("a cluster")).expect("a file");
    let url = api.to_string();
    let through = text.replace(url.trim_end_matches('/'), &format!("https://{}", cable.address));
    assert_ne!(through, text, "the certificate of the API server names 127.0.0.1, and KUBECONFIG its address");
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig").display().to_string();
    std::fs::write(&kubeconfig, through).expect("written");
    let server = Process::start(&settings(&cluster, &kubeconfig)).await;

    let body = json!({"conversationId": "c", "language": "early", "code": "echo begun; sleep 10", "wait": 0});
    let run = post(&server, "/v1/runs", body).await;
    let run = format!("/v1/runs/{}", run["runId"].as_str().unwrap_or_else(|| panic!("{run}")));
    let events = server.http.get(server.url(&format!("{run}/events"))).bearer_auth(TOKEN).send();
    let mut events = events.await.expect("events");
    let mut seen = String::new();
    until("the program runs", async || {
        let more = events.chunk().await.expect("events").expect("no end yet");
        seen.push_str(&String::from_utf8_lossy(&more));
        seen.contains("begun")
    })
    .await;
    drop(events);
    cable.pull();
    cluster.runner("contract-late", "late", framed()).await;
    cable.plug();
    let mut told = Value::Null;
    until("the run is over", async || {
        told = get(&server, &run).await;
        told["state"] != "running"
    })
    .await;
    assert!(told.to_string().contains("\"engine_"), "{told}");
    until("the new runner is known", async || get(&server, "/v1/runners").await.to_string().contains("\"late\"")).await;
    let run = post(&server, "/v1/runs", json!({"conversationId": "d", "language": "late", "code": "echo hello"})).await;
    assert_eq!(run["result"]["stdout"], "hello\n", "{run}");

    let instance = server.instance();
    server.stop().await;
    let left = cluster.engine().await.list().await.expect("a list");
    assert!(left.iter().all(|one| one.instance.to_string() != instance), "{left:?}");
    for name in ["contract-early", "contract-late"] {
        cluster.remove_template(name).await;
    }
}
