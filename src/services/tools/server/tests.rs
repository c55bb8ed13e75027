//! What is kept of a server: its definitions, the schemas that are ready, and a read that failed.

use std::future::{pending, ready};

use async_trait::async_trait;
use serde_json::json;
use tokio::time::{advance, sleep};

use super::*;

fn definitions<const N: usize>(names: [&str; N], input: &Value) -> Definitions {
    let text = ServerText { url: "https://example.com/mcp".to_owned(), ..ServerText::default() };
    let server = ToolServer::parse("up", &text).expect("a server");
    let tool = |name: &str| Tool { name: name.to_owned(), input: input.clone(), ..Tool::default() };
    Definitions::new(&server, names.map(tool).to_vec())
}

#[test]
fn schemas_are_kept_up_to_a_number_of_parts_and_all_of_them_are_checked() {
    let pattern = |number: usize| json!({"pattern": format!("^{number}")});
    let patterns: Value = (0..90).map(pattern).collect();
    let input = json!({"type": "object", "properties": {"a": {"allOf": patterns}}, "required": ["a"]});
    let parts = Schema::new(&input).expect("a schema").parts();
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let definitions = definitions(names, &input);
    for defined in definitions.tools.iter().cycle().take(2 * names.len()) {
        assert_eq!(defined.check(&json!({"a": 1})), Ok(()));
        assert!(defined.check(&json!({})).is_err());
    }
    let kept = definitions.tools.iter().filter(|defined| defined.schema.get().is_some()).count() as u64;
    assert_eq!(kept, SCHEMA_PARTS_MAX / parts, "of {parts} parts");
    assert!(kept < names.len() as u64);
}

#[test]
fn short_arguments_are_quick_once_the_schema_is_ready() {
    let definitions = definitions(["a"], &json!({"type": "object"}));
    let tool = &definitions.tools[0];
    assert!(!tool.is_quick(&[], 2), "its schema is not ready");
    assert_eq!(tool.check(&json!({})), Ok(()));
    assert!(tool.is_quick(&[], 30) && !tool.is_quick(&[], 1 << 20));
    let when = json!({"properties": {"a": {"pattern": "^a"}}});
    let rule = serde_json::from_value(json!({"tool": "*", "action": "deny", "when": when})).expect("a rule");
    let rules = Rule::parse_all(&[rule]).expect("rules");
    assert!(tool.is_quick(&rules, 2) && !tool.is_quick(&rules, 30), "a pattern counts as many parts");
}

#[test]
fn imports_lead_to_the_tool_of_the_module() {
    let definitions = definitions(["a-b", "a_b", "A.B"], &json!({"type": "object"}));
    for defined in &definitions.tools {
        let name = &defined.tool.name;
        assert_eq!(definitions.find(name).map(|found| &found.tool.name), Some(name));
        let imported = definitions.imported(&defined.module).map(|found| &found.tool.name);
        assert_eq!(imported, Some(name), "{}", defined.module);
    }
    assert_eq!(definitions.imported("a-b").map(|found| found.module.as_str()), Some("a_b"));
}

#[tokio::test(start_paused = true)]
async fn what_is_stale_stays_stale_until_it_was_read() {
    let known = Cached::default();
    assert_eq!(known.get(ready(Ok(1))).await.as_deref(), Ok(&1));
    assert_eq!(known.get(ready(Ok(2))).await.as_deref(), Ok(&1));
    known.forgetter()();
    // A caller that gives up.
    assert!(timeout(Duration::from_secs(1), known.get(pending())).await.is_err());
    assert_eq!(known.get(ready(Ok(2))).await.as_deref(), Ok(&2));
    advance(FRESH).await;
    assert_eq!(known.get(ready(Ok(3))).await.as_deref(), Ok(&3));
}

#[tokio::test(start_paused = true)]
async fn callers_that_waited_fail_together() {
    let (known, late) = (Cached::<i32>::default(), UpstreamError::Late(Duration::from_secs(30)));
    let begun = Instant::now();
    let read = async || {
        sleep(Duration::from_secs(30)).await;
        Err(UpstreamError::Late(Duration::from_secs(30)))
    };
    let answers = futures_util::future::join_all((0..10).map(|_| known.get(read()))).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(30));
    assert!(answers.iter().all(|answer| answer.as_ref() == Err(&late)));
    advance(FAILED).await;
    assert_eq!(known.get(ready(Ok(1))).await.as_deref(), Ok(&1));
}

/// A server whose calls take long.
struct Slow;

#[async_trait]
impl Upstreams for Slow {
    async fn connect(&self, _: &Transport, _: Arc<dyn Fn() + Send + Sync>) -> Result<Arc<dyn Upstream>, UpstreamError> {
        Ok(Arc::new(Self))
    }
}

#[async_trait]
impl Upstream for Slow {
    async fn tools(&self) -> Result<Vec<Tool>, UpstreamError> {
        Ok(Vec::new())
    }

    async fn call(&self, _: &str, _: Map<String, Value>, _: ProgressSink) -> Result<Answer, UpstreamError> {
        sleep(2 * IDLE_MAX).await;
        Ok(Answer { is_error: false, structured: None, texts: Vec::new(), attachments: Vec::new() })
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_in_a_sandbox_stays_for_a_while_after_a_long_call() {
    let (image, command) = ("python".to_owned(), vec!["serve".to_owned()]);
    let text = ServerText { image, command, call_seconds: Some(3600), ..ServerText::default() };
    let server = Arc::new(ToolServer::parse("up", &text).expect("a server"));
    let transport = Transport::Streams { open: Arc::new(|| Box::pin(pending())), secrets: Vec::new() };
    let live = ServerHandle::by(server, "".into(), (Arc::new(Slow), transport), CancellationToken::new());
    let owner = Principal::default();
    let upkeep = async {
        for _ in 0..10_000 {
            sleep(Duration::from_secs(2)).await;
            live.close_idle();
        }
    };
    tokio::select! {
        called = live.call(&owner, "a", Map::new(), Arc::new(|_| ())) => drop(called.expect("an answer")),
        () = upkeep => unreachable!("the call ends before"),
    }
    live.close_idle();
    assert!(live.connection.lock().await.is_some(), "it was called until now");
    advance(IDLE_MAX + Duration::from_secs(1)).await;
    live.close_idle();
    assert!(live.connection.lock().await.is_none());
}
