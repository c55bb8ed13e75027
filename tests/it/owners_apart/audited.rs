//! What is done about tool servers and the questions of owners, in the audit log.

use reqwest::Method;
use serde_json::{Value, json};

use super::{World, send};
use crate::{admin::administered, support::server::TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn acts_on_tool_servers_and_questions_are_in_the_audit_log_with_the_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.log");
    let mut world = World::start(22, &[("SANDBOX_AUDIT__FILE", audit.to_str().expect("text"))]).await;
    world.ask(&format!("sqlite://{}/.state/sandbox.db", world.server.root.display())).await;
    let ids = |who: usize| world.owners[who].questions.keys().cloned().collect::<Vec<_>>();
    let (of_ann, of_bob) = (ids(0), ids(1));
    let act = async |token: &str, method: Method, path: &str, body: Option<Value>| {
        let (status, answer) = send(&world.server, token, method, path, body).await;
        assert!(matches!(status, 200 | 204), "{path}: {status}: {answer}");
    };
    // An operator answers questions of both, and an owner one of their own.
    for (token, id, word) in
        [(TOKEN, &of_ann[0], "always"), (TOKEN, &of_bob[0], "no"), (&*world.owners[1].token, &of_bob[1], "once")]
    {
        act(token, Method::POST, &format!("/v1/approvals/{id}"), Some(json!({"answer": word}))).await;
    }
    act(TOKEN, Method::DELETE, &format!("/v1/approvals/{}", of_ann[0]), None).await;
    act(TOKEN, Method::DELETE, "/v1/tool-servers/ann-tools", None).await;
    world.server.stop().await;
    let mut lines = administered(&audit);
    lines.retain(|(action, ..)| action != "token_created");
    let lines: Vec<_> = lines
        .iter()
        .map(|(action, by_token, owner, subject)| (&**action, by_token.is_empty(), &**owner, subject.clone()))
        .collect();
    let named = |name: &str| name.to_owned();
    assert_eq!(
        lines,
        [
            ("tool_server_changed", true, "", named("ann_tools")),
            ("tool_server_changed", true, "", named("bob_tools")),
            ("tool_call_allowed", true, "ann", format!("{} always", of_ann[0])),
            ("tool_call_denied", true, "bob", format!("{} no", of_bob[0])),
            ("tool_call_allowed", false, "bob", format!("{} once", of_bob[1])),
            ("approval_revoked", true, "ann", named(&of_ann[0])),
            ("tool_server_deleted", true, "", named("ann_tools")),
        ]
    );
}
