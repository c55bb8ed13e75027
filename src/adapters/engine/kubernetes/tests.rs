//! The engine against a scripted API server: what it asks, and what each answer becomes.

use std::{io, pin::pin, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use super::*;
use crate::{
    domain::{
        InstanceId,
        clock::{Clock as _, SystemClock},
    },
    ports::{
        engine::{ImageId, Volume},
        runner::Runner,
    },
};

mod created;
mod rights;
mod started;
mod watches;

type Answer = UnsyncBoxBody<Bytes, io::Error>;
type ApiServer = Handle<Request<Body>, Response<Answer>>;

fn scene() -> (KubernetesEngine, ApiServer) {
    let (service, handle) = mock::pair::<Request<Body>, Response<Answer>>();
    let options = KubernetesOptions {
        time: TimeLimits { unscheduled: Duration::from_secs(3), ..TimeLimits::default() },
        ..KubernetesOptions::default()
    };
    (KubernetesEngine::with(Client::new(service, "boxes"), "boxes".to_owned(), Vec::new(), options), handle)
}

fn spec(image: &str) -> SandboxSpec {
    let data = Volume::Claim { claim: "files".to_owned(), sub_path: "c/files".to_owned() };
    let example = SandboxSpec::example(ImageId(image.to_owned()), data);
    SandboxSpec { own_init: true, deadline_unix_s: 4_000_000_000, ..example }
}

/// Answers the next call, which has to be this one, and returns its body.
async fn answer(server: &mut ApiServer, method: Method, path: &str, status: u16, body: &Value) -> Value {
    answer_lines(server, method, path, status, std::slice::from_ref(body)).await
}

fn whole(text: String) -> Answer {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

async fn answer_lines(server: &mut ApiServer, method: Method, path: &str, status: u16, lines: &[Value]) -> Value {
    let (request, reply) = server.next_request().await.expect("a call");
    let asked = request.uri().path_and_query().expect("a path").as_str().to_owned();
    assert_eq!((request.method(), asked.as_str()), (&method, path));
    let text: String = lines.iter().flat_map(|line| [line.to_string(), "\n".to_owned()]).collect();
    let body = request.into_body().collect_bytes().await.expect("a body");
    reply.send_response(Response::builder().status(status).body(whole(text)).expect("an answer"));
    serde_json::from_slice(&body).unwrap_or(Value::Null)
}

fn templates() -> Value {
    let of = |name: &str, version: &str, spec: Value| {
        json!({"metadata": {"name": name, "resourceVersion": version, "labels": {"sandbox.runner": "true",
            "sandbox.language": name}}, "template": {"spec": spec}})
    };
    json!({"metadata": {}, "items": [
        of("ruby", "7", json!({"containers": [{"name": "a", "image": "runner-ruby:1"}]})),
        of("bad", "8", json!({"containers": [{"image": "x"}], "volumes": [{"name": "v", "hostPath": {}}]})),
    ]})
}

const TEMPLATES: &str = "/api/v1/namespaces/boxes/podtemplates?&labelSelector=sandbox.runner%3Dtrue";

fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn pod(id: SandboxId, version: &str, status: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": id.to_string(), "resourceVersion": version},
        "status": status})
}

/// The same with what makes it one of ours.
fn labelled(id: SandboxId, status: &Value, deadline_unix_s: i64) -> Value {
    let mut pod = pod(id, "11", status);
    pod["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
    pod["metadata"]["labels"] = json!({"sandbox.id": id.to_string(), "sandbox.deadline": deadline_unix_s.to_string(),
        "sandbox.instance": InstanceId::new().to_string()});
    pod
}

fn waiting(reason: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{"name": "sandbox", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "why"}}}]})
}

fn watch_path(id: SandboxId, version: &str) -> String {
    format!(
        "/api/v1/namespaces/boxes/pods?&watch=true&timeoutSeconds=290&fieldSelector=metadata.name%3D{id}\
         &allowWatchBookmarks=true&resourceVersion={version}"
    )
}

fn list_path(id: SandboxId) -> String {
    format!("/api/v1/namespaces/boxes/pods?&fieldSelector=metadata.name%3D{id}")
}

fn list_of(pod: &Value, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": version}, "items": [pod]})
}

/// The error of a start whose calls are answered so: the creation, then a watch.
async fn failed_start(created: (u16, Value), events: impl FnOnce(SandboxId) -> Vec<Value>) -> EngineError {
    let (engine, server) = scene();
    let spec = spec("ruby@7");
    let mut server = pin!(server);
    let answers = async {
        answer(&mut server, Method::GET, TEMPLATES, 200, &templates()).await;
        let (status, body) = created;
        let body = if body.is_null() { pod(spec.id, "10", &Value::Null) } else { body };
        let asked = answer(&mut server, Method::POST, "/api/v1/namespaces/boxes/pods?", status, &body).await;
        assert_eq!(asked["spec"]["containers"][0]["image"], json!("runner-ruby:1"));
        let events = events(spec.id);
        if !events.is_empty() {
            answer_lines(&mut server, Method::GET, &watch_path(spec.id, "10"), 200, &events).await;
        }
        // Whatever follows is not answered.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        started = engine.start(&spec) => started.expect_err("a failure"),
        () = answers => unreachable!("it waits"),
    }
}

fn sentence(error: &EngineError) -> String {
    let EngineError::Refused { source, .. } = error else { panic!("{error:?}") };
    source.to_string()
}

#[tokio::test]
async fn runners_are_the_templates_that_can_be_one() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let templates = templates();
    let (runners, _) = tokio::join!(engine.runners(), answer(&mut server, Method::GET, TEMPLATES, 200, &templates));
    let [bad, ruby] = &runners.expect("runners")[..] else { panic!("not two") };
    let why = Runner::from_image(bad).expect_err("it mounts a folder of its node");
    assert!(bad.id.0 == "bad@8" && why.contains("the pod template cannot be used: its volume v"), "{bad:?}: {why}");
    let runner = Runner::from_image(ruby).expect("a runner");
    assert_eq!((runner.language.as_str(), runner.image.0.as_str()), ("ruby", "ruby@7"));
}

#[tokio::test]
async fn a_template_of_another_version_is_an_image_that_is_gone() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let spec = spec("ruby@6");
    let templates = templates();
    let answered = answer(&mut server, Method::GET, TEMPLATES, 200, &templates);
    let (started, _) = tokio::join!(engine.start(&spec), answered);
    let error = started.expect_err("no such template");
    assert!(matches!(&error, EngineError::ImageGone { image } if image.0 == "ruby@6"), "{error:?}");
}

#[tokio::test]
async fn a_template_that_mounts_the_whole_claim_is_refused_before_a_pod_is_made() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let spec = spec("ruby@7");
    let mut templates = templates();
    let pod = &mut templates["items"][0]["template"]["spec"];
    pod["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "files"}}]);
    pod["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/all"}]);
    let answered = answer(&mut server, Method::GET, TEMPLATES, 200, &templates);
    let (started, _) = tokio::join!(engine.start(&spec), answered);
    let text = sentence(&started.expect_err("refused"));
    assert!(text.contains("the claim files at /all") && text.contains("subPath"), "{text}");
}

#[tokio::test]
async fn a_refused_pod_is_the_answer_of_the_api_server_with_what_to_do() {
    let quota = refusal(403, "Forbidden", "exceeded quota: memory");
    let error = failed_start((403, quota), |_| Vec::new()).await;
    let text = sentence(&error);
    assert!(text.contains("exceeded quota: memory") && text.contains("raise the ResourceQuota"), "{text}");
    let away = failed_start((503, refusal(503, "ServiceUnavailable", "no leader")), |_| Vec::new()).await;
    assert!(matches!(away, EngineError::Unavailable { act: "create", .. }), "{away:?}");
}

#[tokio::test]
async fn a_pod_lives_longer_by_the_time_of_its_start() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let spec = SandboxSpec { deadline_unix_s: SystemClock.unix_s() + 1000, ..spec("ruby@7") };
    let refused = refusal(403, "Forbidden", "no right");
    let answers = async {
        answer(&mut server, Method::GET, TEMPLATES, 200, &templates()).await;
        answer(&mut server, Method::POST, "/api/v1/namespaces/boxes/pods?", 403, &refused).await
    };
    let (_, asked) = tokio::join!(engine.start(&spec), answers);
    assert!(asked["spec"]["activeDeadlineSeconds"].as_i64() > Some(1000), "{asked}");
}

#[tokio::test]
async fn an_image_that_cannot_be_had_is_a_sentence() {
    let error = failed_start((201, Value::Null), |id| {
        let event = |version, reason| json!({"type": "MODIFIED", "object": pod(id, version, &waiting(reason))});
        vec![event("11", "ContainerCreating"), event("12", "ErrImageNeverPull")]
    })
    .await;
    let text = sentence(&error);
    assert!(text.contains("ErrImageNeverPull (why)") && text.contains("onto the nodes"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_a_place_is_given_up() {
    let error = failed_start((201, Value::Null), |id| {
        let status = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/2 nodes are available"}]});
        vec![json!({"type": "MODIFIED", "object": pod(id, "11", &status)})]
    })
    .await;
    let text = sentence(&error);
    assert!(text.contains("0/2 nodes are available") && text.contains("add nodes"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_image_is_fetched_for_too_long_is_late() {
    let error = failed_start((201, Value::Null), |id| {
        vec![json!({"type": "MODIFIED", "object": pod(id, "11", &waiting("ContainerCreating"))})]
    })
    .await;
    assert!(matches!(error, EngineError::Timeout { act: "start", .. }), "{error:?}");
}

#[tokio::test]
async fn a_container_that_cannot_start_says_why() {
    let error = failed_start((201, Value::Null), |id| {
        let mut status = waiting("");
        status["containerStatuses"][0]["state"] =
            json!({"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: no such file"}});
        vec![json!({"type": "MODIFIED", "object": pod(id, "11", &status)})]
    })
    .await;
    assert!(sentence(&error).contains("StartError: exec: no such file"), "{error:?}");
}

#[tokio::test]
async fn a_folder_that_is_not_in_the_claim_is_refused_before_any_call() {
    let (engine, _server) = scene();
    let spec = SandboxSpec { data: Volume::HostFolder("/srv/x".into()), ..spec("ruby@7") };
    assert!(sentence(&engine.start(&spec).await.expect_err("refused")).contains("SANDBOX_ENGINE__CLAIM"));
}

#[tokio::test]
async fn destroying_is_a_deletion_at_once_and_not_found_is_fine() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let path = format!("/api/v1/namespaces/boxes/pods/{id}?");
    for (status, body, is_fine) in [
        (200, json!({"kind": "Status", "status": "Success"}), true),
        (404, refusal(404, "NotFound", "no pod"), true),
        (403, refusal(403, "Forbidden", "no right"), false),
        (500, refusal(500, "InternalError", "etcd"), false),
    ] {
        let (destroyed, asked) =
            tokio::join!(engine.destroy(id), answer(&mut server, Method::DELETE, &path, status, &body));
        assert_eq!(asked["gracePeriodSeconds"], json!(0));
        assert_eq!(destroyed.is_ok(), is_fine, "{status}: {destroyed:?}");
    }
}

#[tokio::test]
async fn sandboxes_are_listed_page_by_page() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let first = "/api/v1/namespaces/boxes/pods?&labelSelector=sandbox.managed%3Dtrue&limit=500";
    let ids = [SandboxId::new(), SandboxId::new()];
    let page = |id: SandboxId, token: &str| {
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"continue": token},
            "items": [labelled(id, &Value::Null, 0)]})
    };
    let answers = async {
        answer(&mut server, Method::GET, first, 200, &page(ids[0], "next")).await;
        answer(&mut server, Method::GET, &format!("{first}&continue=next"), 200, &page(ids[1], "")).await;
    };
    let (listed, ()) = tokio::join!(engine.list(), answers);
    let listed: Vec<_> = listed.expect("a list").iter().map(|one| one.id).collect();
    assert_eq!(listed, ids);
}

/// A pod that is deleted without a grace period counts as ended while its program may still write.
#[tokio::test]
async fn killing_leaves_the_pod_until_its_container_has_ended() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let path = format!("/api/v1/namespaces/boxes/pods/{id}?");
    let body = pod(id, "11", &json!({"phase": "Running"}));
    let answered = answer(&mut server, Method::DELETE, &path, 200, &body);
    let (killed, asked) = tokio::join!(engine.kill(id), answered);
    assert!(killed.is_ok(), "{killed:?}");
    assert_eq!(asked["gracePeriodSeconds"], json!(1));
}

/// Its node may be cut off and go on with the program.
#[tokio::test(start_paused = true)]
async fn a_killed_sandbox_is_destroyed_when_its_end_is_known_or_its_time_is_past() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let path = format!("/api/v1/namespaces/boxes/pods/{id}");
    let (delete, success) = (format!("{path}?"), json!({"kind": "Status", "status": "Success"}));
    let on_node = |state: Value, deadline: i64| {
        let status = json!({"phase": "Running", "containerStatuses": [{"name": "sandbox", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": state}]});
        let mut pod = labelled(id, &status, deadline);
        pod["spec"] = json!({"nodeName": "node-7", "containers": []});
        pod
    };
    let (running, later) = (json!({"running": {}}), SystemClock.unix_s() + 3600);
    let over = on_node(json!({"terminated": {"exitCode": 137}}), later);

    // A node that answers.
    let killed = answer(&mut server, Method::DELETE, &delete, 200, &success);
    assert!(tokio::join!(engine.kill(id), killed).0.is_ok());
    let reported = async {
        answer(&mut server, Method::GET, &path, 200, &on_node(running.clone(), later)).await;
        // The first one did not arrive, since there is no time of deletion.
        let again = answer(&mut server, Method::DELETE, &delete, 200, &success).await;
        let event = json!({"type": "MODIFIED", "object": over});
        answer(&mut server, Method::GET, &watch_path(id, "11"), 200, &event).await;
        (again, answer(&mut server, Method::DELETE, &delete, 200, &success).await)
    };
    let (destroyed, (again, last)) = tokio::join!(engine.destroy(id), reported);
    assert!(destroyed.is_ok(), "{destroyed:?}");
    assert_eq!((&again["gracePeriodSeconds"], &last["gracePeriodSeconds"]), (&json!(1), &json!(0)));

    // One that does not.
    for over in [over, on_node(running.clone(), 1_700_000_000)] {
        let killed = answer(&mut server, Method::DELETE, &delete, 200, &success);
        assert!(tokio::join!(engine.kill(id), killed).0.is_ok());
        tokio::time::advance(life::REPORT_MAX).await;
        let unknown = async {
            let mut leaving = on_node(running.clone(), later);
            leaving["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:06Z");
            answer(&mut server, Method::GET, &path, 200, &leaving).await;
            // Whatever is watched is not answered.
            std::future::pending::<()>().await;
        };
        let left = tokio::select! {
            left = engine.destroy(id) => left,
            () = unknown => unreachable!("it waits"),
        };
        assert!(sentence(&left.expect_err("it may go on")).contains("node-7"));
        let known = async {
            answer(&mut server, Method::GET, &path, 200, &over).await;
            answer(&mut server, Method::DELETE, &delete, 200, &success).await
        };
        let (destroyed, asked) = tokio::join!(engine.destroy(id), known);
        assert!(destroyed.is_ok(), "{destroyed:?}");
        assert_eq!(asked["gracePeriodSeconds"], json!(0));
    }
    let killed = answer(&mut server, Method::DELETE, &delete, 200, &success);
    assert!(tokio::join!(engine.kill(id), killed).0.is_ok());
    let gone = refusal(404, "NotFound", "no pod");
    let (destroyed, _) = tokio::join!(engine.destroy(id), answer(&mut server, Method::GET, &path, 404, &gone));
    assert!(destroyed.is_ok(), "its pod is gone: {destroyed:?}");
}
