//! Creations that the API server answers with a conflict.

use super::*;

const PODS: &str = "/api/v1/namespaces/boxes/pods?";

/// The error of a start whose creations are answered so; then the pod is listed, which waits.
async fn failed_creation(reasons: &[&str]) -> EngineError {
    let (engine, server) = scene();
    let spec = spec("ruby@7");
    let mut server = pin!(server);
    let answers = async {
        answer(&mut server, Method::GET, TEMPLATES, 200, &templates()).await;
        for reason in reasons {
            answer(&mut server, Method::POST, PODS, 409, &refusal(409, reason, "the quota was modified")).await;
        }
        let waits = pod(spec.id, "10", &waiting("ErrImageNeverPull"));
        answer(&mut server, Method::GET, &list_path(spec.id), 200, &list_of(&waits, "12")).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        started = engine.start(&spec) => started.expect_err("a failure"),
        () = answers => unreachable!("it waits"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_in_conflict_is_tried_again_and_a_pod_that_is_there_is_this_sandboxs() {
    let error = failed_creation(&["Conflict", "AlreadyExists"]).await;
    assert!(sentence(&error).contains("ErrImageNeverPull"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_stays_in_conflict_is_refused() {
    let error = failed_creation(&["Conflict"; 5]).await;
    assert!(sentence(&error).contains("409 Conflict"), "{error:?}");
}
