//! A pod from a [`SandboxSpec`] and the pod template of its runner, and pods back to port values. Pure.
//!
//! The pod is made as JSON, not as the vendor's struct, so that fields of a template that this version of the vendor's
//! crate does not know are kept. What the operator wrote is kept where it does not loosen the isolation: node
//! selectors, tolerations, the runtime class, pull secrets, extended resources, plain variables, more volumes. What
//! isolates is written over it, and what cannot be written over makes the template invalid ([`check`]).
//!
//! No code of a user is in a pod: the kubelet expands `$(NAME)` in `command` and `args`.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use super::{super::labels, KILL_GRACE_S, KubernetesOptions};
use crate::ports::engine::{Listed, SandboxSpec, Volume};

/// The name of the only container.
pub(super) const CONTAINER: &str = "sandbox";
/// The variable that makes process 1 report that it is ready only when the server has attached.
const WAITS_FOR_SERVER: &str = "SANDBOX_ATTACHED_LATER";

/// Names of the two volumes of ours.
const VOLUME_DATA: &str = "sandbox-data";
const VOLUME_TMP: &str = "sandbox-tmp";
/// What a pod may keep on the disk of its node. Its root is read-only, so this is the log of its output.
const DISK_BYTES_MAX: u64 = 1 << 30;
/// The log that is reserved.
const DISK_BYTES_MIN: u64 = 16 << 20;
/// Reserved where the template says nothing: programs use a processor in bursts, and memory decides what fits.
const CPU_REQUEST_MILLIS: u32 = 20;
/// How long a pod stays on a node that does not answer, in seconds: then the cluster deletes it, and it counts as lost.
const UNREACHABLE_S: u32 = 60;
/// Volumes of a template that show nothing of a node, of the API server or of secrets.
const VOLUME_KINDS: [&str; 6] = ["configMap", "csi", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"];
/// What a template may say for the pod; anything else is left out.
const POD_FIELDS: [&str; 13] = [
    "affinity",
    "hostUsers",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "resourceClaims",
    "runtimeClassName",
    "schedulerName",
    "topologySpreadConstraints",
];
/// What a template may say for the container.
const CONTAINER_FIELDS: [&str; 4] = ["args", "command", "image", "imagePullPolicy"];

/// Checks the `template` of a pod template.
///
/// # Errors
/// Why it cannot be a runner's, for the operator.
pub(super) fn check(template: &Value) -> Result<(), String> {
    let spec = &template["spec"];
    let count = |name: &str| spec[name].as_array().map_or(0, Vec::len);
    let containers = count("containers") + count("initContainers") + count("ephemeralContainers");
    if containers != 1 || count("containers") != 1 {
        return Err(format!("it must have one container and no init containers (it has {containers})"));
    }
    let container = &spec["containers"][0];
    if container["image"].as_str().is_none_or(str::is_empty) {
        return Err("its container has no image".to_owned());
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let kinds = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        let mut kinds = kinds.filter(|key| *key != "name").peekable();
        let name = volume["name"].as_str().unwrap_or_default();
        let is_ours = matches!(name, VOLUME_DATA | VOLUME_TMP);
        if is_ours || kinds.peek().is_none() || !kinds.all(|kind| VOLUME_KINDS.contains(&kind)) {
            let kinds = VOLUME_KINDS.join(", ");
            return Err(format!("its volume {name} is of a kind that a sandbox must not see (allowed: {kinds})"));
        }
    }
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let path = mount["mountPath"].as_str().unwrap_or_default().trim_end_matches('/');
        let is_ours = ["/data", "/tmp"].iter().any(|own| path == *own || path.starts_with(&format!("{own}/")));
        // The kubelet resolves `/x/../data`.
        let is_plain = path.starts_with('/') && path.split('/').skip(1).all(|part| !matches!(part, "" | "." | ".."));
        if is_ours || !is_plain {
            let why = "which is the sandbox's own or is not a plain absolute path";
            return Err(format!("it mounts something at {path}, {why}"));
        }
    }
    Ok(())
}

/// Checks that a template shows a program no more of the claim of the conversations than folders that it names.
///
/// # Errors
/// As [`check`].
pub(super) fn check_claim(template: &Value, data: &Volume) -> Result<(), String> {
    let Volume::Claim { claim, .. } = data else { return Ok(()) };
    let spec = &template["spec"];
    let volumes = spec["volumes"].as_array().into_iter().flatten();
    let of_claim = volumes.filter(|volume| volume["persistentVolumeClaim"]["claimName"] == claim.as_str());
    let names: Vec<_> = of_claim.map(|volume| &volume["name"]).collect();
    let mut mounts = spec["containers"][0]["volumeMounts"].as_array().into_iter().flatten();
    // A `subPathExpr` may expand to nothing.
    let is_whole = |mount: &&Value| {
        let sub_path = mount["subPath"].as_str().unwrap_or_default();
        names.contains(&&mount["name"]) && sub_path.split('/').all(|part| matches!(part, "" | "."))
    };
    mounts.find(is_whole).map_or(Ok(()), |mount| {
        let path = mount["mountPath"].as_str().unwrap_or_default();
        Err(format!(
            "it mounts the claim {claim} at {path}, where a program would see the files of every conversation: give \
             the mount a subPath, or use another claim"
        ))
    })
}

/// The pod of a sandbox, which is needed for at most `life_s`. Its `/data` is a sub-path of a claim, or a folder on the
/// disk of its node that ends with it.
pub(super) fn body(options: &KubernetesOptions, template: &Value, spec: &SandboxSpec, life_s: i64) -> Value {
    let of_template = &template["spec"];
    let mut pod = picked(of_template, &POD_FIELDS);
    if let Some(class) = &options.runtime_class {
        pod.insert("runtimeClassName".to_owned(), class.as_str().into());
    }
    let tmp = json!({"name": VOLUME_TMP, "emptyDir":
        {"medium": "Memory", "sizeLimit": spec.limits.tmp_bytes.to_string()}});
    let data = match &spec.data {
        Volume::Claim { claim, .. } => json!({"name": VOLUME_DATA, "persistentVolumeClaim": {"claimName": claim}}),
        Volume::Streamed { bytes } => json!({"name": VOLUME_DATA, "emptyDir": {"sizeLimit": bytes.to_string()}}),
        // Refused before.
        Volume::HostFolder(_) => json!({"name": VOLUME_DATA}),
    };
    let own = [
        ("restartPolicy", json!("Never")),
        ("automountServiceAccountToken", json!(false)),
        ("enableServiceLinks", json!(false)),
        ("setHostnameAsFQDN", json!(false)),
        ("hostname", json!("sandbox")),
        // Nothing answers there, and the names of the cluster are not in /etc/resolv.conf.
        ("dnsPolicy", json!("None")),
        ("dnsConfig", json!({"nameservers": ["127.0.0.1"]})),
        // With 0, the eviction from a node that is cut off would hide a program that goes on there.
        ("terminationGracePeriodSeconds", json!(KILL_GRACE_S)),
        ("activeDeadlineSeconds", json!(life_s.clamp(1, i32::MAX.into()))),
        ("securityContext", pod_security(options.seccomp.as_deref(), spec.uid)),
        ("tolerations", json!(tolerations(&of_template["tolerations"]))),
        ("volumes", json!(with(&of_template["volumes"], [data, tmp]))),
        ("containers", json!([container(&of_template["containers"][0], spec)])),
    ];
    pod.extend(own.map(|(name, value)| (name.to_owned(), value)));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(&template["metadata"], spec), "spec": pod})
}

/// Those of the template, and how long nodes that do not answer are waited for, where it does not say. The cluster's
/// default is 300 s, and of several tolerations the shortest time counts.
fn tolerations(of_template: &Value) -> Vec<Value> {
    let mut all = of_template.as_array().cloned().unwrap_or_default();
    let any_or = |value: &Value, wanted: &str| value.as_str().is_none_or(|text| text.is_empty() || text == wanted);
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        if !all.iter().any(|one| any_or(&one["key"], key) && any_or(&one["effect"], "NoExecute")) {
            all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": UNREACHABLE_S}));
        }
    }
    all
}

/// The user is set, and not a group for the volumes: for that the kubelet would walk over the whole claim. The server
/// has made the folder as the program's user.
fn pod_security(seccomp: Option<&str>, uid: u32) -> Value {
    let seccomp = match seccomp {
        Some(file) => json!({"type": "Localhost", "localhostProfile": file}),
        None => json!({"type": "RuntimeDefault"}),
    };
    json!({"runAsNonRoot": true, "runAsUser": uid, "runAsGroup": uid, "seccompProfile": seccomp})
}

fn container(of_template: &Value, spec: &SandboxSpec) -> Value {
    let mut container = picked(of_template, &CONTAINER_FIELDS);
    container.entry("imagePullPolicy").or_insert_with(|| "IfNotPresent".into());
    let data = match &spec.data {
        Volume::Claim { sub_path, .. } => json!({"name": VOLUME_DATA, "mountPath": "/data", "subPath": sub_path}),
        _ => json!({"name": VOLUME_DATA, "mountPath": "/data"}),
    };
    let tmp = json!({"name": VOLUME_TMP, "mountPath": "/tmp"});
    let own = [
        ("name", json!(CONTAINER)),
        ("workingDir", json!("/data")),
        ("env", json!(environment(&of_template["env"], spec))),
        ("stdin", json!(true)),
        ("stdinOnce", json!(true)),
        ("tty", json!(false)),
        ("volumeMounts", json!(with(&of_template["volumeMounts"], [data, tmp]))),
        ("resources", resources(&of_template["resources"], spec)),
        (
            "securityContext",
            json!({
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "privileged": false,
                "procMount": "Default",
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": true,
                "runAsUser": spec.uid,
                "runAsGroup": spec.uid,
            }),
        ),
    ];
    container.extend(own.map(|(name, value)| (name.to_owned(), value)));
    container.into()
}

/// What is limited, and what is reserved. Resources of other names, such as those of a graphics processor, and claims
/// of resources are the template's.
fn resources(of_template: &Value, spec: &SandboxSpec) -> Value {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let (mut limits, mut requests) = (object(&of_template["limits"]), object(&of_template["requests"]));
    let cpu_millis = spec.loading_cpu_millis.unwrap_or(spec.limits.cpu_millis);
    let memory = spec.limits.memory_bytes.to_string();
    let data = if let Volume::Streamed { bytes } = spec.data { bytes } else { 0 };
    let cpu_request = cpu_request(requests.get("cpu"), cpu_millis);
    let disk = |own: u64| Value::from((own + data).to_string());
    limits.insert("memory".to_owned(), memory.clone().into());
    limits.insert("ephemeral-storage".to_owned(), disk(DISK_BYTES_MAX));
    limits.insert("cpu".to_owned(), format!("{cpu_millis}m").into());
    requests.insert("cpu".to_owned(), cpu_request);
    requests.insert("memory".to_owned(), memory.into());
    requests.insert("ephemeral-storage".to_owned(), disk(DISK_BYTES_MIN));
    let mut all = json!({"limits": limits, "requests": requests});
    if let Some(claims) = of_template.get("claims") {
        all["claims"] = claims.clone();
    }
    all
}

/// What is reserved of a processor: at most the limit, since the API server refuses more.
fn cpu_request(of_template: Option<&Value>, limit_millis: u32) -> Value {
    let Some(wanted) = of_template else { return format!("{}m", CPU_REQUEST_MILLIS.min(limit_millis)).into() };
    let fits = wanted.as_str().and_then(millis).is_some_and(|millis| millis <= f64::from(limit_millis));
    if fits { wanted.clone() } else { format!("{limit_millis}m").into() }
}

/// Thousandths of a processor in a quantity such as `2`, `0.5` or `250m`; `None` for another unit.
fn millis(quantity: &str) -> Option<f64> {
    match quantity.strip_suffix('m') {
        Some(millis) => millis.parse().ok(),
        None => quantity.parse::<f64>().ok().map(|cores| cores * 1000.0),
    }
}

/// Plain variables of the template, without those that come from elsewhere, and ours over them.
fn environment(of_template: &Value, spec: &SandboxSpec) -> Vec<Value> {
    let mut own = labels::environment(&spec.limits);
    if spec.own_init {
        own.push((WAITS_FOR_SERVER.to_owned(), "1".to_owned()));
    }
    let is_kept = |variable: &&Value| {
        let name = variable["name"].as_str().unwrap_or_default();
        variable["value"].is_string() && !own.iter().any(|(own, _)| own == name)
    };
    let kept = of_template.as_array().into_iter().flatten().filter(is_kept);
    let mut all: Vec<_> = kept.map(|one| json!({"name": one["name"], "value": one["value"]})).collect();
    all.extend(own.iter().map(|(name, value)| json!({"name": name, "value": value})));
    all
}

/// Labels and annotations of the template, except ours and those that are older forms of a profile.
fn metadata(of_template: &Value, spec: &SandboxSpec) -> Value {
    let kept = |value: &Value| -> Map<String, Value> {
        let is_kept = |name: &str| {
            !name.starts_with("sandbox.")
                && !name.starts_with("seccomp.security.alpha.kubernetes.io/")
                && !name.starts_with("container.")
        };
        let all = value.as_object().into_iter().flatten().filter(|(name, _)| is_kept(name));
        all.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let mut labels = kept(&of_template["labels"]);
    labels.extend(labels::of(spec).map(|(name, value)| (name, value.into())));
    json!({"name": spec.id.to_string(), "labels": labels, "annotations": kept(&of_template["annotations"])})
}

fn picked(from: &Value, names: &[&str]) -> Map<String, Value> {
    let field = |name: &&str| Some(((*name).to_owned(), from.get(name)?.clone()));
    names.iter().filter_map(field).collect()
}

fn with<const N: usize>(all: &Value, more: [Value; N]) -> Vec<Value> {
    all.as_array().into_iter().flatten().cloned().chain(more).collect()
}

/// A pod as a sandbox of ours; `None` when it only looks like one.
pub(super) fn listed(pod: &Pod) -> Option<Listed> {
    let labels = pod.metadata.labels.as_ref()?;
    let is_named = |id: &str| pod.metadata.name.as_deref() == Some(id);
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let running = statuses.flat_map(|one| &one.state).any(|state| state.running.is_some());
    labels::listed(|name| labels.get(name), is_named, running)
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
