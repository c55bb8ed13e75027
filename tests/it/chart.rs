//! The Helm chart and what is made from it, without a renderer: `scripts/chart.sh check` renders.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use mcp_sandbox_server::{
    domain::text::hex,
    ports::runner::{LABEL_LANGUAGE, LABEL_RUNNER},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{FakeServer, calls::metrics};

const CHART: &str = "deploy/kubernetes/chart";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file below a folder, by its path from the root of the repository.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).expect("a folder").flatten() {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The labels of a Dockerfile's last `LABEL`; those without a value are none.
fn labels(dockerfile: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(dockerfile).unwrap_or_default().replace("\\\n", " ");
    let line = text.lines().filter_map(|line| line.strip_prefix("LABEL ")).next_back().unwrap_or_default();
    let mut labels = BTreeMap::new();
    let mut rest = line.trim();
    while let Some((name, after)) = rest.split_once('=') {
        let quoted = after.strip_prefix('"').and_then(|text| text.split_once('"'));
        let (value, next) = quoted.unwrap_or_else(|| after.split_once(' ').unwrap_or((after, "")));
        labels.insert(name.trim().to_owned(), value.to_owned());
        rest = next.trim_start();
    }
    labels.retain(|_, value| !value.is_empty());
    labels
}

#[test]
fn manifests_are_made_from_this_chart() {
    let all: String = files(CHART).iter().map(|path| read(path)).collect();
    let digest = hex(&Sha256::digest(all));
    for name in ["sandbox", "monitoring"] {
        let manifest = read(&format!("deploy/kubernetes/manifests/{name}.yaml"));
        let first = manifest.lines().next().unwrap_or_default();
        assert!(first.ends_with(&digest), "{name}.yaml: run scripts/chart.sh render after a change of the chart");
    }
}

#[test]
fn runners_of_the_chart_are_those_of_the_images() {
    let mut runners = BTreeMap::new();
    for entry in fs::read_dir(root().join("runners")).expect("runners").flatten() {
        let labels = labels(&entry.path().join("Dockerfile"));
        if labels.get(LABEL_RUNNER).is_some_and(|value| value == "true") {
            assert!(labels.contains_key(LABEL_LANGUAGE), "{}: {labels:?}", entry.path().display());
            runners.insert(entry.file_name().to_string_lossy().into_owned(), labels);
        }
    }
    assert!(runners.len() >= 4, "{runners:?}");
    let path = format!("{CHART}/runners.json");
    if std::env::var_os("UPDATE").is_some() {
        let text = serde_json::to_string_pretty(&runners).expect("JSON");
        fs::write(root().join(&path), text + "\n").expect("written");
    }
    let stored: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_str(&read(&path)).expect("JSON");
    assert_eq!(stored, runners, "run UPDATE=1 cargo test --test it chart, then scripts/chart.sh render");
}

/// A second variable of one name would hide the first, and a secret would be in the values that Helm stores.
#[test]
fn settings_that_the_chart_makes_and_secrets_are_refused() {
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let accepts = |name: &str| {
        let (files, image, settings) = (json!({}), json!({}), json!({name: "1"}));
        let values = json!({"secret": "s", "publicUrl": "http://x", "files": files, "image": image,
                            "settings": settings});
        schema.is_valid(&values)
    };
    let server = read(&format!("{CHART}/templates/server.yaml"));
    let made: Vec<_> = server.split("{name: SANDBOX_").skip(1).filter_map(|rest| rest.split(',').next()).collect();
    assert!(made.contains(&"ENGINE__FILES") && made.len() >= 8, "{made:?}");
    let secrets = ["SECRETS__KEY", "TOOLS__KEY", "SIGN_IN__OPENID_CLIENT_SECRET", "TRACES__OTLP_HEADERS"];
    for name in made.iter().chain(&secrets) {
        assert!(!accepts(&format!("SANDBOX_{name}")), "{name}");
    }
    assert!(accepts("SANDBOX_ADMISSION__SLOTS") && accepts("SANDBOX_SIGN_IN__OPENID_CLIENT_SECRET_FILE"));
}

/// Helm reads numbers as floats, which are printed with an exponent, and no setting is read with one.
#[test]
fn numbers_among_the_settings_are_printed_whole() {
    let server = read(&format!("{CHART}/templates/server.yaml"));
    let whole = r#"ternary (int64 $value) $value (kindIs "float64" $value) | toString"#;
    assert!(server.contains(whole), "{server}");
}

/// Older clusters and most shared file systems cannot do it, so it is asked for.
#[test]
fn sandboxes_have_user_namespaces_where_the_operator_says_so() {
    let runners = read(&format!("{CHART}/templates/runners.yaml"));
    let asked = "{{- if $.Values.sandboxes.userNamespaces }}\n    hostUsers: false\n    {{- end }}\n";
    assert!(runners.contains(asked), "{runners}");
    assert!(read(&format!("{CHART}/values.yaml")).contains("\n  userNamespaces: false\n"));
    assert!(!read("deploy/kubernetes/manifests/sandbox.yaml").contains("hostUsers"));
}

#[test]
fn one_server_ends_before_its_successor_starts() {
    let read = |name: &str| read(&format!("{CHART}/templates/{name}.yaml"));
    let (server, availability) = (read("server"), read("availability"));
    // Up to the `else` or `end` of each.
    let several = |text: &str| -> String {
        let parts = text.split("{{- if include \"sandbox.several\" . }}\n").skip(1);
        parts.map(|part| part.split("{{- e").next().unwrap_or_default()).collect()
    };
    for only in ["maxSurge", "podAntiAffinity", "PEER_URL", "preStop"] {
        assert!(several(&server).contains(only), "{only}");
        assert_eq!(server.matches(only).count(), 1, "{only}");
    }
    assert!(server.contains("{{- else }}\n  strategy: {type: Recreate}\n"), "{server}");
    assert!(several(&availability).contains("PodDisruptionBudget"), "{availability}");
}

#[test]
fn role_of_the_server_has_these_rights_and_no_more() {
    let text = read(&format!("{CHART}/templates/rights.yaml"));
    let rules = text.split("\nrules:\n").nth(1).and_then(|rest| rest.split("---").next()).expect("rules");
    let rules: String = rules.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "- apiGroups: [\"\"] resources: [pods] verbs: [create, get, list, watch, delete] \
                    - apiGroups: [\"\"] resources: [pods/attach] verbs: [get, create] \
                    - apiGroups: [\"\"] resources: [podtemplates] verbs: [get, list, watch]";
    assert_eq!(rules, expected);
    assert!(!text.contains("ClusterRole"), "its rights are in one namespace");
}

/// The objects of a kind in the manifests.
fn made(manifest: &str, kind: &str) -> Vec<String> {
    let text = read(&format!("deploy/kubernetes/manifests/{manifest}.yaml"));
    let is_one = |object: &&str| object.lines().any(|line| line == format!("kind: {kind}"));
    text.split("\n---\n").filter(is_one).map(|object| object.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The labels that servers alone have.
const SERVER: &str = "app.kubernetes.io/name: mcp-sandbox-server app.kubernetes.io/instance: mcp-sandbox-server \
                      app.kubernetes.io/component: server";

#[test]
fn traffic_of_every_pod_is_denied_and_servers_alone_are_let_out() {
    let policies = made("sandbox", "NetworkPolicy");
    let [all, servers] = &policies[..] else { panic!("{policies:?}") };
    assert!(all.ends_with("spec: podSelector: {} policyTypes: [Ingress, Egress]"), "{all}");
    let let_out = "policyTypes: [Ingress, Egress] ingress: [{}] egress: [{}]";
    assert!(servers.ends_with(&format!("spec: podSelector: matchLabels: {SERVER} {let_out}")), "{servers}");
    for template in made("sandbox", "PodTemplate") {
        assert!(!template.contains("component: server"), "{template}");
    }
}

#[test]
fn every_runner_is_fetched_on_every_node_and_a_server_is_kept_and_monitored() {
    let images = |text: &str| -> BTreeSet<String> {
        let all = text.split("image: \"").skip(1).filter_map(|rest| rest.split('"').next());
        all.filter(|image| image.contains("runner-")).map(str::to_owned).collect()
    };
    let [daemons] = &made("sandbox", "DaemonSet")[..] else { panic!("one DaemonSet") };
    let runners = images(&made("sandbox", "PodTemplate").concat());
    assert!(runners.len() >= 4 && images(daemons) == runners, "{runners:?} in\n{daemons}");
    let [budget] = &made("sandbox", "PodDisruptionBudget")[..] else { panic!("one PodDisruptionBudget") };
    assert!(budget.ends_with(&format!("spec: minAvailable: 1 selector: matchLabels: {SERVER}")), "{budget}");
    let [monitor] = &made("monitoring", "ServiceMonitor")[..] else { panic!("one ServiceMonitor") };
    let endpoints = "endpoints: - {port: metrics, interval: 15s}";
    assert!(monitor.ends_with(&format!("spec: selector: matchLabels: {SERVER} {endpoints}")), "{monitor}");
    let named = made("monitoring", "Service").into_iter().filter(|service| service.contains("- {name: metrics, "));
    assert_eq!(named.count(), 1);
}

/// Nodes send connections to a pod until they have learned that it is leaving.
#[test]
fn a_server_that_leaves_serves_for_some_seconds_before_its_time_to_stop_begins() {
    for manifest in ["sandbox", "monitoring"] {
        let [server] = &made(manifest, "Deployment")[..] else { panic!("one Deployment") };
        assert!(server.contains("lifecycle: preStop: {sleep: {seconds: 5}}"), "{server}");
        // With those 5 s, and 30 s after the programs' time, in which it deletes its pods.
        assert!(server.contains(r#"{name: SANDBOX_SERVER__SHUTDOWN_GRACE_MS, value: "30000"}"#), "{server}");
        assert!(server.contains("terminationGracePeriodSeconds: 65"), "{server}");
    }
}

/// They need no token, and the server's own Service may be reached from outside of the cluster.
#[test]
fn metrics_have_a_service_inside_of_the_cluster() {
    let text = read(&format!("{CHART}/templates/service.yaml"));
    let (server, metrics) = text.split_once("{{- if .Values.monitoring.enabled }}\n---\n").expect("a second Service");
    assert!(!server.contains("targetPort: metrics"), "{server}");
    assert!(metrics.contains("clusterIP: None") && metrics.contains("targetPort: metrics"), "{metrics}");
}

/// An autoscaler on a metric that does not exist never scales, and says so only in its own status.
#[tokio::test(flavor = "multi_thread")]
async fn autoscaler_scales_by_a_metric_that_the_server_has() {
    let text = read(&format!("{CHART}/templates/availability.yaml"));
    let named: Vec<_> = text.split("metric: {name: ").skip(1).filter_map(|rest| rest.split('}').next()).collect();
    assert_eq!(named.len(), 1, "{text}");
    let server = FakeServer::start().await;
    let told = metrics(&server).await;
    assert!(told.lines().any(|line| line == format!("# TYPE {} gauge", named[0])), "{named:?} in\n{told}");
    server.stop().await;
}
