//! The whole pod as a literal, and templates that try to loosen it.

use serde_json::{Value, json};

use super::*;
use crate::ports::engine::ImageId;

fn spec() -> SandboxSpec {
    SandboxSpec {
        id: "sandbox-00000000000000000000000000000001".parse().expect("an id"),
        own_init: true,
        ..SandboxSpec::example(
            ImageId("runner-python@1".to_owned()),
            Volume::Claim { claim: "files".to_owned(), sub_path: "c/files".to_owned() },
        )
    }
}

fn plain() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "runner-python:1"}]}})
}

fn made(template: &Value) -> Value {
    check(template).expect("a runner");
    body(&KubernetesOptions::default(), template, &spec(), 90)
}

#[test]
fn pod_with_its_own_data_has_a_sized_folder_of_its_node() {
    let streamed = SandboxSpec { data: Volume::Streamed { bytes: 5 << 20 }, ..spec() };
    let pod = body(&KubernetesOptions::default(), &plain(), &streamed, 90);
    is_restricted(&pod);
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    assert!(volumes.contains(&json!({"name": "sandbox-data", "emptyDir": {"sizeLimit": "5242880"}})), "{volumes:?}");
    let container = &pod["spec"]["containers"][0];
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    assert!(mounts.contains(&json!({"name": "sandbox-data", "mountPath": "/data"})), "{mounts:?}");
    let disk =
        |kind: &str| container["resources"][kind]["ephemeral-storage"].as_str().and_then(|text| text.parse().ok());
    assert_eq!((disk("limits"), disk("requests")), (Some((1 << 30) + (5 << 20)), Some(21_u64 << 20)));
}

/// The rules of Pod Security's level `restricted`, as its documentation lists them.
fn is_restricted(pod: &Value) {
    let spec = &pod["spec"];
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(spec[host].is_null() || spec[host] == json!(false), "{host}");
    }
    assert_eq!(spec["securityContext"]["runAsNonRoot"], json!(true));
    assert!(matches!(spec["securityContext"]["seccompProfile"]["type"].as_str(), Some("RuntimeDefault" | "Localhost")));
    let allowed =
        ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
    for volume in spec["volumes"].as_array().expect("volumes") {
        let mut kinds = volume.as_object().expect("a volume").keys().filter(|key| *key != "name");
        assert!(kinds.all(|kind| allowed.contains(&kind.as_str())), "{volume}");
    }
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec[kind].as_array().into_iter().flatten() {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], json!(false));
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!((&context["privileged"], &context["runAsNonRoot"]), (&json!(false), &json!(true)));
            assert_eq!(context["procMount"], json!("Default"));
            assert_ne!(context["runAsUser"], json!(0));
            for port in container["ports"].as_array().into_iter().flatten() {
                assert!(port["hostPort"].is_null());
            }
        }
    }
}

/// How long a node is waited for, where the template does not say.
fn shortly(taint: &str) -> Value {
    let key = format!("node.kubernetes.io/{taint}");
    json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60})
}

#[test]
fn a_node_that_does_not_answer_is_waited_for_as_long_as_the_template_says() {
    let tolerated = |of_template: Value| {
        let mut template = plain();
        template["spec"]["tolerations"] = of_template;
        made(&template)["spec"]["tolerations"].clone()
    };
    let other = json!({"key": "sandbox", "operator": "Exists"});
    assert_eq!(tolerated(json!([other])), json!([other, shortly("not-ready"), shortly("unreachable")]));
    let longer = json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 600});
    assert_eq!(tolerated(json!([longer])), json!([longer, shortly("not-ready")]));
    for everything in [json!({"operator": "Exists"}), json!({"key": "", "operator": "Exists", "effect": "NoExecute"})] {
        assert_eq!(tolerated(json!([everything])), json!([everything]));
    }
    let only_starts = json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoSchedule"});
    let all = json!([only_starts, shortly("not-ready"), shortly("unreachable")]);
    assert_eq!(tolerated(json!([only_starts])), all);
}

#[test]
fn the_pod_is_the_whole_profile() {
    let pod = made(&plain());
    is_restricted(&pod);
    let instance = pod["metadata"]["labels"]["sandbox.instance"].clone();
    let environment = |name: &str, value: &str| json!({"name": name, "value": value});
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "sandbox-00000000000000000000000000000001",
            "labels": {
                "sandbox.managed": "true",
                "sandbox.id": "sandbox-00000000000000000000000000000001",
                "sandbox.instance": instance,
                "sandbox.deadline": "1800000000",
            },
            "annotations": {},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "setHostnameAsFQDN": false,
            "hostname": "sandbox",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": 90,
            "tolerations": [shortly("not-ready"), shortly("unreachable")],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [
                {"name": "sandbox-data", "persistentVolumeClaim": {"claimName": "files"}},
                {"name": "sandbox-tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "67108864"}},
            ],
            "containers": [{
                "image": "runner-python:1",
                "imagePullPolicy": "IfNotPresent",
                "name": "sandbox",
                "workingDir": "/data",
                "env": [
                    environment("HOME", "/tmp"),
                    environment("LANG", "C.UTF-8"),
                    environment("OMP_NUM_THREADS", "1"),
                    environment("OPENBLAS_NUM_THREADS", "1"),
                    environment("MKL_NUM_THREADS", "1"),
                    environment("NUMEXPR_NUM_THREADS", "1"),
                    environment("SANDBOX_ATTACHED_LATER", "1"),
                ],
                "stdin": true,
                "stdinOnce": true,
                "tty": false,
                "volumeMounts": [
                    {"name": "sandbox-data", "mountPath": "/data", "subPath": "c/files"},
                    {"name": "sandbox-tmp", "mountPath": "/tmp"},
                ],
                "resources": {
                    "limits": {"memory": "268435456", "ephemeral-storage": "1073741824", "cpu": "500m"},
                    "requests": {"cpu": "20m", "memory": "268435456", "ephemeral-storage": "16777216"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": false,
                    "procMount": "Default",
                    "readOnlyRootFilesystem": true,
                    "runAsNonRoot": true,
                    "runAsUser": 1000,
                    "runAsGroup": 1000,
                },
            }],
        },
    });
    assert_eq!(pod, expected);
}

#[test]
fn what_the_operator_adds_is_kept() {
    let mut template = plain();
    let kept = json!({
        "nodeSelector": {"disk": "ssd"},
        "runtimeClassName": "gvisor",
        "imagePullSecrets": [{"name": "registry"}],
        "hostUsers": false,
        "affinity": {"nodeAffinity": {"of-a-later-version": true}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    });
    for (name, value) in kept.as_object().expect("fields") {
        template["spec"][name] = value.clone();
    }
    template["metadata"] = json!({"labels": {"team": "a"}, "annotations": {"example.org/x": "y"}});
    let container = &mut template["spec"]["containers"][0];
    container["imagePullPolicy"] = json!("Never");
    container["env"] = json!([{"name": "TZ", "value": "UTC"}]);
    container["resources"] = json!({"limits": {"nvidia.com/gpu": "1", "memory": "64Gi"}, "requests": {"cpu": "250m"},
        "claims": [{"name": "gpu"}]});
    container["volumeMounts"] = json!([{"name": "models", "mountPath": "/models", "readOnly": true}]);
    template["spec"]["volumes"] = json!([{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]);
    let pod = made(&template);
    is_restricted(&pod);
    for (name, value) in kept.as_object().expect("fields") {
        assert_eq!(pod["spec"][name], *value, "{name}");
    }
    assert_eq!(pod["metadata"]["labels"]["team"], json!("a"));
    assert_eq!(pod["metadata"]["annotations"], json!({"example.org/x": "y"}));
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], json!("Never"));
    assert_eq!(container["env"][0], json!({"name": "TZ", "value": "UTC"}));
    assert_eq!(container["volumeMounts"][0]["mountPath"], json!("/models"));
    assert_eq!(pod["spec"]["volumes"].as_array().map(Vec::len), Some(3));
    let resources = &container["resources"];
    assert_eq!(resources["limits"]["nvidia.com/gpu"], json!("1"));
    // The run's own limit, whatever the template says.
    assert_eq!(resources["limits"]["memory"], json!("268435456"));
    assert_eq!(resources["requests"]["cpu"], json!("250m"));
    assert_eq!(resources["claims"], json!([{"name": "gpu"}]));
    let named = KubernetesOptions {
        runtime_class: Some("closed".to_owned()),
        seccomp: Some("sandbox.json".to_owned()),
        ..KubernetesOptions::default()
    };
    let pod = body(&named, &template, &spec(), 0);
    assert_eq!(pod["spec"]["runtimeClassName"], json!("closed"));
    let seccomp = json!({"type": "Localhost", "localhostProfile": "sandbox.json"});
    assert_eq!(pod["spec"]["securityContext"]["seccompProfile"], seccomp);
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], json!(1));
}

#[test]
fn no_more_of_a_processor_is_reserved_than_the_limit() {
    let reserved = |cpu_millis: u32, request: Option<&str>| {
        let mut template = plain();
        if let Some(request) = request {
            template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(request);
        }
        let mut spec = spec();
        spec.limits.cpu_millis = cpu_millis;
        let pod = body(&KubernetesOptions::default(), &template, &spec, 90);
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(resources["limits"]["cpu"], json!(format!("{cpu_millis}m")));
        resources["requests"]["cpu"].as_str().expect("a quantity").to_owned()
    };
    for (cpu_millis, by_default) in [(10, "10m"), (19, "19m"), (20, "20m"), (500, "20m")] {
        assert_eq!(reserved(cpu_millis, None), by_default);
        // The last ones are more than any limit, or in units that are not read.
        for request in ["2", "250m", "0.5", "500m", "2k", "1e3", "1Gi", "inf", "NaN", ""] {
            let is_kept = cpu_millis == 500 && ["250m", "0.5", "500m"].contains(&request);
            let expected = if is_kept { request.to_owned() } else { format!("{cpu_millis}m") };
            assert_eq!(reserved(cpu_millis, Some(request)), expected, "{request} of {cpu_millis}");
        }
    }
    assert_eq!(reserved(10, Some("5m")), "5m");
    assert_eq!(reserved(3000, Some("2")), "2");
}

#[test]
fn a_template_does_not_loosen_the_isolation() {
    let loose = json!({
        "metadata": {
            "labels": {"sandbox.managed": "false", "sandbox.id": "x"},
            "annotations": {"container.apparmor.security.beta.kubernetes.io/sandbox": "unconfined",
                "seccomp.security.alpha.kubernetes.io/pod": "unconfined"},
            "finalizers": ["example.org/never"],
        },
        "spec": {
            "hostNetwork": true, "hostPID": true, "hostIPC": true, "shareProcessNamespace": true,
            "serviceAccountName": "admin", "automountServiceAccountToken": true, "enableServiceLinks": true,
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "hostAliases": [{"ip": "10.0.0.1"}],
            "terminationGracePeriodSeconds": 3600,
            "securityContext": {"runAsUser": 0, "sysctls": [{"name": "x", "value": "1"}], "supplementalGroups": [0]},
            "containers": [{
                "name": "main", "image": "x", "stdin": false, "tty": true, "workingDir": "/",
                "securityContext": {"privileged": true, "capabilities": {"add": ["SYS_ADMIN"]}, "runAsUser": 0,
                    "procMount": "Unmasked", "seccompProfile": {"type": "Unconfined"}},
                "ports": [{"containerPort": 80, "hostPort": 80}],
                "lifecycle": {"postStart": {"exec": {"command": ["x"]}}},
                "livenessProbe": {"exec": {"command": ["x"]}},
                "volumeDevices": [{"name": "disk", "devicePath": "/dev/sda"}],
                "envFrom": [{"secretRef": {"name": "s"}}],
                "env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "HOME", "value": "/data"}],
            }],
        },
    });
    let mut tight = plain();
    tight["spec"]["containers"][0]["image"] = json!("x");
    let of = |template: &Value| {
        check(template).expect("a runner");
        let spec =
            SandboxSpec { instance: "instance-00000000000000000000000000000002".parse().expect("an id"), ..spec() };
        body(&KubernetesOptions::default(), template, &spec, 90)
    };
    assert_eq!(of(&loose), of(&tight));
}

#[test]
fn a_template_that_cannot_be_tightened_is_refused() {
    let with = |name: &str, value: Value| {
        let mut template = plain();
        template["spec"][name] = value;
        check(&template).expect_err("refused")
    };
    let two = json!([{"image": "a"}, {"image": "b"}]);
    assert!(with("containers", two).ends_with("(it has 2)"));
    assert!(with("initContainers", json!([{"image": "a"}])).ends_with("(it has 2)"));
    assert_eq!(with("containers", json!([{"image": ""}])), "its container has no image");
    for kind in ["hostPath", "secret", "projected", "downwardAPI", "nfs"] {
        let volumes = json!([{"name": "v", kind: {}}]);
        assert!(with("volumes", volumes).starts_with("its volume v is of a kind"), "{kind}");
    }
    let ours = json!([{"name": "sandbox-tmp", "emptyDir": {}}]);
    assert!(with("volumes", ours).starts_with("its volume sandbox-tmp is of a kind"));
    for path in ["/data", "/data/", "/tmp/x", "relative", "/", "//data", "/./tmp", "/x/../data"] {
        let containers = json!([{"image": "a", "volumeMounts": [{"name": "v", "mountPath": path}]}]);
        assert!(with("containers", containers).starts_with("it mounts something at "), "{path}");
    }
    assert!(check(&Value::Null).expect_err("no container").ends_with("(it has 0)"));
}

#[test]
fn a_template_mounts_only_named_folders_of_the_claim_of_the_conversations() {
    let with = |claim: &str, mount: Value| {
        let mut template = plain();
        template["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        template["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
        check_claim(&template, &spec().data)
    };
    let mount = json!({"name": "v", "mountPath": "/all"});
    let whole = with("files", mount.clone());
    assert!(whole.as_ref().is_err_and(|why| why.contains("mounts the claim files at /all")), "{whole:?}");
    for sub_path in ["", ".", "./", "/."] {
        assert_eq!(with("files", json!({"name": "v", "mountPath": "/all", "subPath": sub_path})), whole, "{sub_path}");
    }
    assert_eq!(with("files", json!({"name": "v", "mountPath": "/all", "subPathExpr": "$(NONE)"})), whole);
    assert_eq!(with("files", json!({"name": "v", "mountPath": "/all", "subPath": "shared/models"})), Ok(()));
    assert_eq!(with("models", mount), Ok(()));
    assert_eq!(check_claim(&plain(), &spec().data), Ok(()));
}

#[test]
fn a_listed_pod_is_ours_only_by_its_name_and_labels() {
    let mut pod = made(&plain());
    pod["status"] = json!({"containerStatuses": [{"name": "sandbox", "image": "", "imageID": "", "ready": true,
        "restartCount": 0, "state": {"running": {}}}]});
    let read = |pod: &Value| listed(&serde_json::from_value(pod.clone()).expect("a pod"));
    let found = read(&pod).expect("ours");
    assert!(found.running);
    assert_eq!((found.id, found.deadline_unix_s), (spec().id, 1_800_000_000));
    pod["status"] = json!({"phase": "Pending"});
    assert!(!read(&pod).expect("ours").running);
    let mut other = pod.clone();
    other["metadata"]["name"] = json!("other");
    assert_eq!(read(&other), None);
    pod["metadata"]["labels"]["sandbox.deadline"] = json!("soon");
    assert_eq!(read(&pod), None);
}
