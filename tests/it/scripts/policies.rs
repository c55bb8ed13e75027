//! What the agent of the test cluster makes of network policies.

use super::*;

/// Prints `free` or `closed` for a pod of the labels that each line has, or why the policies are refused.
const VERDICTS: &str = r#"
import json, policies, sys
rules = [json.loads(line) for line in open("policies.json")]
for line in open("pods.json"):
    namespace, labels = json.loads(line)
    try:
        pod = {"metadata": {"namespace": namespace, "name": "p", "labels": labels}}
        print("closed" if policies.is_closed(pod, rules) else "free")
    except policies.Refused as why:
        print(why)
"#;

fn verdicts(policies: &str, pods: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [("policies.json", policies), ("pods.json", pods)] {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kubernetes");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", VERDICTS]).env("PYTHONPATH", scripts).current_dir(folder.path());
    let output = python.output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// As in the manifests: all pods of the namespace, and servers alone are let out.
const MANIFESTS: [&str; 2] = [
    r#""podSelector": {}, "policyTypes": ["Ingress", "Egress"]"#,
    r#""podSelector": {"matchLabels": {"is": "server"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{}], "egress": [{}]"#,
];

fn policy(spec: &str) -> String {
    let spec = spec.replace('\n', "");
    format!(r#"{{"metadata": {{"namespace": "a", "name": "p"}}, "spec": {{{spec}}}}}"#)
}

#[test]
fn policies_of_the_manifests_close_sandboxes_and_let_servers_out() {
    let pods = r#"["a", {}]
["a", {"is": "sandbox"}]
["a", {"is": "server", "x": "y"}]
["b", {}]
"#;
    assert_eq!(verdicts(&MANIFESTS.map(policy).join("\n"), pods), "closed\nclosed\nfree\nfree\n");
}

#[test]
fn policies_that_are_not_enforced_are_refused_for_the_pods_that_they_select() {
    let pods = "[\"a\", {\"is\": \"x\"}]\n[\"a\", {}]\n[\"b\", {\"is\": \"x\"}]\n";
    let of_x = r#""podSelector": {"matchLabels": {"is": "x"}}"#;
    for (spec, why) in [
        (
            format!(r#"{of_x}, "policyTypes": ["Ingress", "Egress"], "egress": [{{"ports": [{{"port": 53}}]}}]"#),
            "ports",
        ),
        (format!(r#"{of_x}, "policyTypes": ["Ingress"], "ingress": [{{"from": [{{"podSelector": {{}}}}]}}]"#), "peers"),
        (format!(r#"{of_x}, "policyTypes": ["Egress"]"#), "one direction only"),
    ] {
        let found = verdicts(&policy(&spec), pods);
        let lines: Vec<_> = found.lines().collect();
        assert!(lines[0].contains(why) && lines[1..] == ["free", "free"], "{found}");
    }
    let expressions =
        r#""podSelector": {"matchExpressions": [{"key": "is", "operator": "Exists"}]}, "policyTypes": ["Egress"]"#;
    let found = verdicts(&policy(expressions), pods);
    let lines: Vec<_> = found.lines().collect();
    assert!(lines[..2].iter().all(|line| line.contains("expressions")) && lines[2] == "free", "{found}");
}
