//! Watches that end, break or stay silent, of one pod and of the templates.

use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::timeout;

use super::{watch::PodState, *};

/// The watch of the templates.
const CHANGES: &str = "/api/v1/namespaces/boxes/podtemplates?&watch=true&timeoutSeconds=290\
                       &labelSelector=sandbox.runner%3Dtrue&allowWatchBookmarks=true&resourceVersion=0";

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_where_it_broke_and_lists_the_pod_when_that_is_too_old() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let running = json!({"phase": "Running"});
    let mut watch = engine.watch(id, Some("10".to_owned()));
    let answers = async {
        let event = |version| json!({"type": "MODIFIED", "object": pod(id, version, &running)});
        let mark = json!({"type": "BOOKMARK", "object": {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"resourceVersion": "15"}}});
        answer_lines(&mut server, Method::GET, &watch_path(id, "10"), 200, &[event("11"), mark]).await;
        // An end, then an API server that is away, then one that has forgotten the version.
        answer(&mut server, Method::GET, &watch_path(id, "15"), 503, &refusal(503, "ServiceUnavailable", "away")).await;
        let old = json!({"type": "ERROR", "object": refusal(410, "Expired", "too old")});
        answer(&mut server, Method::GET, &watch_path(id, "15"), 200, &old).await;
        // The pod has not changed since, and its own version is as old.
        let listed = list_of(&pod(id, "11", &running), "90");
        answer(&mut server, Method::GET, &list_path(id), 200, &listed).await;
        let deleted = json!({"type": "DELETED", "object": pod(id, "91", &running)});
        answer(&mut server, Method::GET, &watch_path(id, "90"), 200, &deleted).await;
    };
    let seen = async {
        let mut versions = Vec::new();
        loop {
            match watch.next().await.expect("a state") {
                PodState::Pod(pod) => versions.push(pod.metadata.resource_version.expect("a version")),
                PodState::Gone(last) => return (versions, last.is_some()),
            }
        }
    };
    let ((versions, with_last), ()) = tokio::join!(seen, answers);
    assert_eq!((versions, with_last), (vec!["11".to_owned(), "11".to_owned()], true));

    // One that went meanwhile is not in the list.
    let mut watch = engine.watch(id, None);
    let none = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "92"}, "items": []});
    let path = list_path(id);
    let (seen, _) = tokio::join!(watch.next(), answer(&mut server, Method::GET, &path, 200, &none));
    assert!(matches!(seen, Ok(PodState::Gone(None))), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_refusals_of_an_api_server_that_comes_back() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let watched = || engine.watch(id, Some("10".to_owned()));
    let mut watch = watched();
    let answers = async {
        answer_lines(&mut server, Method::GET, &watch_path(id, "10"), 200, &[]).await;
        for (code, reason) in [(500, "InternalError"), (403, "Forbidden"), (401, "Unauthorized")] {
            answer(&mut server, Method::GET, &watch_path(id, "10"), code, &refusal(code, reason, "not yet")).await;
        }
        let deleted = json!({"type": "DELETED", "object": pod(id, "11", &Value::Null)});
        answer(&mut server, Method::GET, &watch_path(id, "10"), 200, &deleted).await;
    };
    let (seen, ()) = tokio::join!(watch.next(), answers);
    assert!(matches!(seen, Ok(PodState::Gone(Some(_)))), "{seen:?}");

    // A right that was never there does not come back.
    let mut watch = watched();
    let refused = refusal(403, "Forbidden", "no right");
    let path = watch_path(id, "10");
    let (seen, _) = tokio::join!(watch.next(), answer(&mut server, Method::GET, &path, 403, &refused));
    assert!(matches!(seen, Err(EngineError::Refused { .. })), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_lost_only_after_the_api_server_was_away_for_long() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let mut watch = engine.watch(id, None);
    let begun = tokio::time::Instant::now();
    let away = async {
        loop {
            answer(&mut server, Method::GET, &list_path(id), 503, &refusal(503, "ServiceUnavailable", "away")).await;
        }
    };
    let error = tokio::select! {
        seen = watch.next() => seen.expect_err("lost"),
        () = away => unreachable!("it goes on"),
    };
    assert!(matches!(error, EngineError::Unavailable { .. }), "{error:?}");
    assert!(begun.elapsed() >= engine.options.time.lost);
}

#[tokio::test(start_paused = true)]
async fn changes_yields_once_on_subscribe_then_for_each_group_and_after_a_break() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let mut changes = engine.changes();
    let event = json!({"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "1"}}});
    for _ in 0..2 {
        let (go, more) = tokio::sync::oneshot::channel();
        let lines = stream::iter(vec![event.clone(), event.clone()]);
        // Open until it is signalled: then one more event, and the connection ends.
        let late = event.clone();
        let lines = lines.chain(stream::once(async move { more.await.map(|()| late).unwrap_or_default() }));
        let opened = async {
            let (request, reply) = server.next_request().await.expect("a call");
            assert_eq!(request.uri().path_and_query().expect("a path").as_str(), CHANGES);
            let frames = lines.map(|line| Ok::<_, io::Error>(Frame::data(Bytes::from(format!("{line}\n")))));
            reply.send_response(Response::new(StreamBody::new(frames).boxed_unsync()));
        };
        let (first, ()) = tokio::join!(changes.next(), opened);
        assert_eq!(first, Some(()), "one for the watch, whatever it begins with");
        assert!(timeout(Duration::from_mins(1), changes.next()).await.is_err(), "nothing changes");
        go.send(()).expect("a receiver");
        assert_eq!(timeout(Duration::from_mins(1), changes.next()).await.expect("soon"), Some(()));
    }
}

/// Answers the next call, which has to be this watch, with a connection over which nothing comes.
async fn answer_silence(server: &mut ApiServer, path: &str) {
    let (request, reply) = server.next_request().await.expect("a call");
    assert_eq!(request.uri().path_and_query().expect("a path").as_str(), path);
    let silence = StreamBody::new(stream::pending::<io::Result<Frame<Bytes>>>());
    reply.send_response(Response::new(silence.boxed_unsync()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_end_is_lost_is_opened_again() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let id = SandboxId::new();
    let mut watch = engine.watch(id, Some("10".to_owned()));
    let answers = async {
        answer_silence(&mut server, &watch_path(id, "10")).await;
        let deleted = json!({"type": "DELETED", "object": pod(id, "11", &Value::Null)});
        answer(&mut server, Method::GET, &watch_path(id, "10"), 200, &deleted).await;
    };
    let both = async { tokio::join!(watch.next(), answers) };
    let (seen, ()) = timeout(2 * watch::WATCH_MAX, both).await.expect("an end");
    assert!(matches!(seen, Ok(PodState::Gone(Some(_)))), "{seen:?}");

    let mut changes = engine.changes();
    for _ in 0..2 {
        let next = timeout(2 * watch::WATCH_MAX, changes.next());
        let (next, ()) = tokio::join!(next, answer_silence(&mut server, CHANGES));
        assert_eq!(next.expect("an end"), Some(()));
    }
}

#[tokio::test]
async fn the_end_of_a_pod_that_another_deleted_or_no_kubelet_saw_is_not_its_programs() {
    let running = json!({"running": {}});
    let ended = |reason: &str| json!({"terminated": {"exitCode": 137, "reason": reason}});
    for (state, is_deleted, by_us, is_known) in [
        (ended("Error"), false, false, true),
        (ended("Error"), true, true, true),
        (ended("Error"), true, false, false),
        // Its node is cut off.
        (running, true, false, false),
        (ended("ContainerStatusUnknown"), false, false, false),
        (ended("ContainerStatusUnknown"), true, true, true),
    ] {
        let (engine, server) = scene();
        let mut server = pin!(server);
        let id = SandboxId::new();
        let life = engine.lives.of(id);
        if by_us {
            engine.lives.ending(id);
        }
        let mut status = waiting("");
        status["containerStatuses"][0]["state"] = state.clone();
        let mut seen = pod(id, "11", &status);
        if is_deleted {
            seen["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:06Z");
        }
        let until_ended = life::until_ended(id, engine.watch(id, Some("10".to_owned())), life);
        let (path, event) = (watch_path(id, "10"), json!({"type": "MODIFIED", "object": seen}));
        let answered = answer(&mut server, Method::GET, &path, 200, &event);
        let (exit, _) = tokio::join!(until_ended, answered);
        let case = format!("{state} {is_deleted} {by_us}: {exit:?}");
        assert_eq!(exit.is_ok_and(|exit| exit.status == 137), is_known, "{case}");
    }
}
