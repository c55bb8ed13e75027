//! Whether a server tells a cluster that takes the network away from one that does not, and that a program of a pod
//! without a network reaches what a policy names.

use std::process::Stdio;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use super::framed;
use crate::{
    network::origin::Origin,
    support::{
        calls::{ask, post},
        cluster::Cluster,
        free_port, http,
        server::Server,
        until,
    },
};

/// A command of the server's on the cluster, with a runtime class or none.
fn command(cluster: &Cluster, word: &str, class: &str, address: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"));
    command
        .arg(word)
        .env("MCP_API_TOKEN", "0123456789abcdef0123456789abcdef")
        .env("FILE_SECRET", "fedcba9876543210fedcba9876543210")
        .env("MCP_HTTP_ADDR", address)
        .env("PUBLIC_BASE_URL", format!("http://{address}"))
        .env("SANDBOX_ROOT", &cluster.mount)
        .env("SANDBOX_ENGINE__KIND", "kubernetes")
        .env("SANDBOX_ENGINE__NAMESPACE", &cluster.namespace)
        .env("SANDBOX_ENGINE__CLAIM", &cluster.claim)
        .env("SANDBOX_ENGINE__RUNTIME", class)
        .env("SANDBOX_SERVER__SHUTDOWN_GRACE_MS", "0")
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// What `doctor` says of the cluster, with a runtime class or none and more settings.
async fn doctor(cluster: &Cluster, class: &str, more: &[(&str, &str)]) -> String {
    let mut command = command(cluster, "doctor", class, "127.0.0.1:0");
    let output = command.envs(more.iter().copied()).output().await.expect("doctor");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// What a server says that ends by itself; it is never ready.
pub(super) async fn refusal_to_serve(cluster: &Cluster) -> String {
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("http://{address}/readyz");
    let mut server = command(cluster, "serve", "", &address);
    let is_ready = async || http::get(&url).await.is_ok_and(|answer| answer.status().is_success());
    let output = tokio::select! {
        output = server.output() => output.expect("a server"),
        () = until("the server has ended", is_ready) => panic!("it is ready"),
    };
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a program prints of a host that a policy names and of one that none does, on the cluster with a runtime class.
async fn asked_of_hosts(cluster: &Cluster, class: &str, origin: &Origin) -> Value {
    let (root, hosts) = (cluster.mount.display().to_string(), origin.http.to_string());
    let server = Server::with(&[
        // The claim is mounted as a whole.
        ("SANDBOX_ROOT", root.as_str()),
        ("SANDBOX_ENGINE__KIND", "kubernetes"),
        ("SANDBOX_ENGINE__NAMESPACE", cluster.namespace.as_str()),
        ("SANDBOX_ENGINE__CLAIM", cluster.claim.as_str()),
        ("SANDBOX_ENGINE__RUNTIME", class),
        ("SANDBOX_NETWORK__LOCAL", hosts.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
    ])
    .await;
    let ready = async || server.http.get(server.url("/readyz")).send().await.is_ok_and(|answer| answer.status() == 200);
    until("it is ready", ready).await;
    let code = format!("curl -sS http://{}/hello; echo; curl -sS http://{}/hello", origin.http, origin.other);
    let body = json!({"conversationId": "contract-network", "language": "bash", "code": code});
    let status = post(&server, "/v1/runs", body).await;
    assert_eq!(ask(&server, Method::DELETE, "/v1/conversations/contract-network", None).await.0, 204);
    server.stop().await;
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn the_isolation_check_refuses_a_cluster_whose_pods_reach_the_network_and_policies_hold_on_another() {
    let cluster = Cluster::get().await;
    let closed = cluster.closed_class.clone().expect("CLUSTER_CLOSED_CLASS: a runtime class without a network");
    cluster.runner("contract-bash", "bash", framed()).await;
    let open = doctor(&cluster, "", &[]).await;
    assert!(open.contains("FAIL  isolation: [bash]"), "{open}");
    for told in [open, refusal_to_serve(&cluster).await] {
        assert!(told.contains("programs can reach the network"), "{told}");
        assert!(told.contains("install a network plugin that enforces NetworkPolicy"), "{told}");
    }
    let told = doctor(&cluster, &closed, &[]).await;
    assert!(!told.contains("programs can reach the network"), "{told}");
    assert!(told.contains("ok    isolation"), "{told}");
    // The kubelets have 128.
    let told = doctor(&cluster, &closed, &[("SANDBOX_LIMITS__PROCESSES_MAX", "64")]).await;
    assert!(told.contains("FAIL  isolation: [bash]") && told.contains("set podPidsLimit: 64"), "{told}");
    let origin = Origin::start().await;
    let status = asked_of_hosts(&cluster, &closed, &origin).await;
    cluster.remove_template("contract-bash").await;
    let want = format!("hello\nno policy allows {}\n", origin.other);
    assert_eq!((&status["result"]["stdout"], origin.seen()), (&json!(want), 1), "{status}");
}
