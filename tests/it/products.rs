//! What the interfaces of other products refuse, each in its own form.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{FakeServer, calls::ask};

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_a_path_or_a_query_have_the_form_of_the_product() {
    let server = FakeServer::start().await;
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    for (method, path, expected, member) in [
        (Method::GET, "/openai/v1/containers?limit=x", 400, "/error/message"),
        (Method::GET, "/openai/v1/containers?after=a&after=b", 400, "/error/message"),
        (Method::GET, "/openai/v1/containers/%ff", 404, "/error/message"),
        (Method::GET, "/openai/v1/containers/c/files/%ff", 404, "/error/message"),
        (Method::DELETE, "/e2b/sandboxes/%ff", 404, "/message"),
        (Method::GET, "/librechat/v1/files/%ff", 404, "/message"),
        (Method::GET, "/v1/executions/%ff", 404, "/stderr"),
        (Method::GET, "/v1/sessions/session/%ff", 404, "/detail"),
        (Method::GET, "/v1/sessions/session?session_id=a&session_id=b", 400, "/detail"),
        (Method::DELETE, "/v1/connections/%ff", 404, "/detail"),
    ] {
        let (status, why) = ask(&server, method, path, None).await;
        assert_eq!(status, expected, "{path}: {why}");
        assert!(why.pointer(member).is_some_and(text), "{path}: {why}");
    }
    server.stop().await;
}
