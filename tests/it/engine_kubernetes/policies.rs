//! A cluster whose nodes enforce network policies, or do not: `scripts/kubernetes-cluster.sh policies`. That breaks
//! every other test of pods with a network, so each runs alone. Of a cluster that was not made here nothing is switched
//! and no policy is removed; `CLUSTER_POLICIES=enforced` says that its nodes enforce them.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Config, api::ListParams};
use mcp_sandbox_server::ports::engine::Engine as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::{framed, isolation::refusal_to_serve, settings};
use crate::support::{
    calls::{ask, post},
    cluster::{ByLines, Cluster},
    engines::{World, feed_and_see},
    process::Process,
    until,
};

/// The language of the runner, which no other test has.
const LANGUAGE: &str = "policed";
const TEMPLATE: &str = "contract-policed";
/// Where kubelets listen.
const KUBELET_PORT: u16 = 10250;

/// Runs a command of the script, with something to read.
fn script(words: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/kubernetes-cluster.sh"));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a shell");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("an end");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Whether the cluster is the script's own, whose nodes enforce policies where a test has them do it.
fn is_switched() -> bool {
    let policies = std::env::var("CLUSTER_POLICIES").unwrap_or_default();
    assert!(["switched", "enforced"].contains(&policies.as_str()), "CLUSTER_POLICIES says that they are enforced");
    policies == "switched"
}

/// Nodes that enforce policies until this is dropped.
struct Enforced;

impl Enforced {
    fn begin() -> Self {
        script(&["policies", "on"], "").expect("they are enforced");
        Self
    }
}

impl Drop for Enforced {
    fn drop(&mut self) {
        let ended = script(&["policies", "off"], "");
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

/// Policies of a namespace, which are not in the cluster until this is dropped.
struct Removed(Value);

impl Removed {
    fn of(namespace: &str) -> Self {
        let all = ["kubectl", "-n", namespace, "get", "networkpolicies", "-o", "json"];
        let mut all: Value = serde_json::from_str(&script(&all, "").expect("policies")).expect("JSON");
        let items = all["items"].as_array_mut().expect("a list");
        assert!(!items.is_empty(), "the policies of the manifests");
        for metadata in items.iter_mut().filter_map(|policy| policy["metadata"].as_object_mut()) {
            metadata.retain(|name, _| !["resourceVersion", "uid"].contains(&name.as_str()));
        }
        script(&["kubectl", "-n", namespace, "delete", "networkpolicies", "--all"], "").expect("removed");
        Self(all)
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        let made = script(&["kubectl", "create", "-f", "-"], &self.0.to_string());
        assert!(made.is_ok() || std::thread::panicking(), "{made:?}");
    }
}

async fn program(server: &Process) -> Value {
    post(server, "/v1/runs", json!({"conversationId": "c", "language": LANGUAGE, "code": "echo hello"})).await
}

/// With pods of the usual runtime class.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_serves_where_its_policies_are_enforced_and_only_there() {
    let cluster = Cluster::get().await;
    cluster.runner(TEMPLATE, LANGUAGE, framed()).await;
    let is_switched = is_switched();
    if is_switched {
        let told = refusal_to_serve(&cluster).await;
        assert!(told.contains("install a network plugin that enforces NetworkPolicy"), "{told}");
    }
    let enforced = is_switched.then(Enforced::begin);
    let kubeconfig = std::env::var("KUBECONFIG").expect("a cluster");
    let usual = Cluster { closed_class: None, ..Cluster::get().await };
    let server = Process::start(&settings(&usual, &kubeconfig)).await;
    let run = program(&server).await;
    assert_eq!(run["result"]["stdout"], "hello\n", "{run}");
    if is_switched {
        // A server that serves learns of it at its next check: that of a template that has changed.
        let removed = Removed::of(&cluster.namespace);
        cluster.remove_template(TEMPLATE).await;
        cluster.runner(TEMPLATE, LANGUAGE, framed()).await;
        let reason = async || ask(&server, Method::GET, "/readyz", None).await.1["reason"].to_string();
        until("it does not serve", async || reason().await.contains("does not isolate programs")).await;
        let run = program(&server).await;
        assert_eq!(run["code"], "engine_failed", "{run}");
        drop(removed);
        server.ready().await;
        let run = program(&server).await;
        assert_eq!(run["result"]["stdout"], "hello\n", "{run}");
    }
    server.stop().await;
    drop(enforced);
    cluster.remove_template(TEMPLATE).await;
}

/// Which of some places pods of the usual runtime class reach.
async fn reached(world: &World, cluster: &Cluster, places: &[String]) -> Vec<String> {
    let engine = ByLines(cluster.engine().await);
    let tries = "timeout 2 bash -c 'exec 3<>/dev/tcp/'$place 2>/dev/null && echo $place";
    let line = format!("for place in {}; do {tries}; done\n", places.join(" "));
    let spec = world.spec();
    let seen = feed_and_see(engine.start(&spec).await.expect("started"), &line).await;
    engine.destroy(spec.id).await.expect("destroyed");
    seen.stdout.lines().map(str::to_owned).collect()
}

/// Of the script's own cluster. Elsewhere a pod may reach its node, and the isolation check is all that is asked.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_the_own_cluster_reach_nodes_and_the_api_server_unless_policies_are_enforced_and_select_them() {
    let cluster = Cluster { closed_class: None, ..Cluster::get().await };
    let api = Config::infer().await.expect("KUBECONFIG is valid").cluster_url;
    let mut places = vec![format!("{}/{}", api.host().expect("a host"), api.port_u16().unwrap_or(443))];
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for node in nodes.list(&ListParams::default()).await.expect("nodes") {
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        let internal = addresses.into_iter().find(|address| address.type_ == "InternalIP").expect("an address");
        places.push(format!("{}/{KUBELET_PORT}", internal.address));
    }
    World::kubernetes()
        .await
        .hold(async |world: &World| {
            assert_eq!(reached(world, &cluster, &places).await, places, "nothing is enforced");
            let enforced = Enforced::begin();
            assert!(reached(world, &cluster, &places).await.is_empty());
            let removed = Removed::of(&cluster.namespace);
            assert_eq!(reached(world, &cluster, &places).await, places, "no policy");
            drop((removed, enforced));
        })
        .await;
}
