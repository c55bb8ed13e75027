//! What a probe says about the rights of the server, and when it asks.

use super::*;

/// Whether a right is there, or the status of an error.
type Allows = fn(&str) -> Result<bool, u16>;

/// Answers the question for each right.
async fn answer_reviews(server: &mut ApiServer, allows: Allows) {
    for _ in 0..9 {
        let (request, reply) = server.next_request().await.expect("a call");
        assert_eq!(request.uri().path(), "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
        let body = request.into_body().collect_bytes().await.expect("a body");
        let mut review: Value = serde_json::from_slice(&body).expect("JSON");
        let asked = &review["spec"]["resourceAttributes"];
        assert_eq!(asked["namespace"], "boxes");
        let word = |name: &str| asked[name].as_str().unwrap_or_default();
        let right = format!("{} {}/{}", word("verb"), word("resource"), word("subresource"));
        let (status, body) = match allows(right.trim_end_matches('/')) {
            Ok(allowed) => {
                review["status"] = json!({"allowed": allowed});
                (201, review)
            }
            Err(code) => (code, refusal(code, "Error", "no review")),
        };
        reply.send_response(Response::builder().status(status).body(whole(body.to_string())).expect("an answer"));
    }
}

/// The warnings of a probe that asks for rights, or for none.
async fn warnings(engine: &KubernetesEngine, server: &mut ApiServer, allows: Option<Allows>) -> Vec<String> {
    let version = json!({"major": "1", "minor": "30", "gitVersion": "v1.30.0", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "linux/amd64"});
    let answers = async {
        answer(server, Method::GET, "/version", 200, &version).await;
        if let Some(allows) = allows {
            answer_reviews(server, allows).await;
        }
    };
    let (probe, ()) = tokio::join!(engine.probe(), answers);
    probe.expect("a probe").warnings
}

#[tokio::test(start_paused = true)]
async fn probe_names_the_rights_that_are_missing_and_asks_again_when_the_answer_is_old_or_not_whole() {
    let (engine, server) = scene();
    let mut server = pin!(server);
    let two_missing = |right: &str| Ok(!["get pods/attach", "watch podtemplates"].contains(&right));
    let one_unknown = |right: &str| if right == "list pods" { Err(500) } else { Ok(true) };
    let one_refused = |right: &str| if right == "list pods" { Err(403) } else { Ok(right != "get pods/attach") };
    let expected = ["The server may not get pods/attach, watch podtemplates in the namespace boxes: its Role must \
                     allow what docs/kubernetes.md lists."];
    assert_eq!(warnings(&engine, &mut server, Some(two_missing)).await, expected);
    assert_eq!(warnings(&engine, &mut server, None).await, expected);
    tokio::time::advance(RIGHTS_FRESH).await;
    // The Role was applied.
    assert_eq!(warnings(&engine, &mut server, Some(one_unknown)).await, [""; 0]);
    assert_eq!(warnings(&engine, &mut server, Some(two_missing)).await, expected);
    assert_eq!(warnings(&engine, &mut server, None).await, expected);
    // A question that is refused is not repeated either.
    tokio::time::advance(RIGHTS_FRESH).await;
    let warned = warnings(&engine, &mut server, Some(one_refused)).await;
    assert!(warned[0].contains("may not get pods/attach in"), "{warned:?}");
    assert_eq!(warnings(&engine, &mut server, None).await, warned);
}
