//! Servers made with rmcp's server side, over streams and over HTTP, with sessions and without.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use mcp_sandbox_server::ports::tools::{Transport, UpstreamError};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult, PaginatedRequestParams,
        ProgressNotificationParam, Resource, ResourceContents, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::{call, call_with, connect, error_of, http, serve, soon, streams};

#[derive(Clone, Default)]
struct Server {
    /// A call of `wait` has begun.
    waiting: Arc<Notify>,
    /// A call of `wait` was cancelled.
    cancelled: Arc<Notify>,
    /// What the client answered when it was asked.
    asked: Arc<Mutex<Vec<i32>>>,
}

fn tool(name: impl Into<String>) -> Tool {
    Tool::new(name.into(), "does it", Arc::new(Map::new()))
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let page: usize = cursor.map_or(0, |cursor| cursor.parse().expect("a cursor of this server"));
        let mut tools = vec![tool(format!("tool-{page}")), tool("same").with_title(format!("of page {page}"))];
        if page == 0 {
            tools[0].annotations = Some(ToolAnnotations::new().read_only(true));
            tools.push(tool("x".repeat(129)));
        }
        let mut list = ListToolsResult::with_all_items(tools);
        list.next_cursor = (page < 2).then(|| (page + 1).to_string());
        Ok(list)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let result = match request.name.as_ref() {
            "echo" => CallToolResult::structured(Value::Object(request.arguments.unwrap_or_default())),
            "kinds" => kinds(),
            "fail" => CallToolResult::error(vec![ContentBlock::text("it broke")]),
            "wait" => {
                self.waiting.notify_one();
                context.ct.cancelled().await;
                self.cancelled.notify_one();
                CallToolResult::success(Vec::new())
            }
            "progress" => {
                let token = context.meta.get_progress_token().expect("a token");
                for step in 1..=3 {
                    let message = format!("step {step}");
                    let params = ProgressNotificationParam::new(token.clone(), f64::from(step))
                        .with_total(3.0)
                        .with_message(message);
                    context.peer.notify_progress(params).await.expect("it is sent");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                CallToolResult::success(Vec::new())
            }
            "change" => {
                context.peer.notify_tool_list_changed().await.expect("it is sent");
                CallToolResult::success(Vec::new())
            }
            "ask" => {
                #[expect(deprecated, reason = "servers of older revisions ask for roots")]
                let refused = context.peer.list_roots().await.expect_err("it is refused");
                let rmcp::ServiceError::McpError(refused) = refused else { panic!("{refused}") };
                self.asked.lock().expect("a lock").push(refused.code.0);
                CallToolResult::success(Vec::new())
            }
            other => return Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        };
        Ok(result.into())
    }
}

fn kinds() -> CallToolResult {
    let mut result = CallToolResult::success(vec![
        ContentBlock::text("one"),
        ContentBlock::image("AQID", "image/png"),
        ContentBlock::audio("BAU=", "audio/wav"),
        ContentBlock::embedded_text("file:///a", "two"),
        ContentBlock::resource(ResourceContents::blob("Bg==", "file:///b").with_mime_type("a/b")),
        ContentBlock::resource_link(Resource::new("https://example.com/c", "c")),
    ]);
    result.structured_content = Some(json!([1, null, "x"]));
    result
}

fn over_streams(server: &Server) -> Transport {
    let server = server.clone();
    streams(move |io| {
        let server = server.clone();
        tokio::spawn(async move {
            if let Ok(running) = server.serve(io).await {
                let _ = running.waiting().await;
            }
        });
    })
}

async fn over_http(server: &Server, config: StreamableHttpServerConfig, is_old: bool) -> Transport {
    let server = server.clone();
    let service = StreamableHttpService::new(move || Ok(server.clone()), Arc::<LocalSessionManager>::default(), config);
    let mut router = axum::Router::new().route_service("/mcp", service);
    if is_old {
        router = router.layer(axum::middleware::from_fn(without_discovery));
    }
    http(serve(router).await, &[("Authorization", "Bearer token-1")])
}

/// As servers do that are older than `server/discover`.
async fn without_discovery(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    if String::from_utf8_lossy(&body).contains("server/discover") {
        return (StatusCode::BAD_REQUEST, "no session").into_response();
    }
    next.run(Request::from_parts(head, body.into())).await
}

/// What every server must do, however it is reached.
async fn works(server: &Server, transport: &Transport) {
    let (upstream, mut changes) = connect(transport).await.expect("it connects");
    let tools = soon(upstream.tools()).await.expect("tools");
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["tool-0", "same", "tool-1", "tool-2"]);
    assert_eq!((tools[0].hints.may_destroy(), tools[1].hints.may_destroy()), (false, true));
    assert_eq!(tools[1].title.as_deref(), Some("of page 0"));

    let arguments = json!({"class": null, "a": [1.5, {"b": "ü"}]});
    let given = arguments.as_object().cloned().expect("an object");
    let answer = call_with(upstream.as_ref(), "echo", given, &Arc::default()).await.expect("an answer");
    assert_eq!(answer.structured, Some(arguments));

    let answer = call(upstream.as_ref(), "kinds").await.expect("an answer");
    assert_eq!(answer.texts, ["one", "two", "https://example.com/c"]);
    let attached: Vec<_> =
        answer.attachments.iter().map(|one| (one.media_type.as_str(), one.bytes.as_slice())).collect();
    assert_eq!(attached, [("image/png", &[1, 2, 3][..]), ("audio/wav", &[4, 5]), ("a/b", &[6])]);
    assert_eq!((answer.is_error, answer.structured), (false, Some(json!([1, null, "x"]))));

    assert!(call(upstream.as_ref(), "fail").await.expect("an answer").is_error);
    let refused = error_of(call(upstream.as_ref(), "none").await);
    assert_eq!(refused, UpstreamError::Refused("no tool none".to_owned()));

    let (one, other) = (Arc::default(), Arc::default());
    let (a, b) = tokio::join!(
        call_with(upstream.as_ref(), "progress", Map::new(), &one),
        call_with(upstream.as_ref(), "echo", Map::new(), &other)
    );
    assert!(a.is_ok() && b.is_ok() && other.lock().expect("a lock").is_empty());
    {
        let steps = one.lock().expect("a lock");
        assert!(!steps.is_empty() && steps.is_sorted_by(|a, b| a.progress < b.progress), "{steps:?}");
        assert_eq!((steps[0].total, steps[0].message.as_deref()), (Some(3.0), Some("step 1")));
    }

    {
        let waits = call(upstream.as_ref(), "wait");
        tokio::select! {
            answer = waits => panic!("{answer:?}"),
            () = server.waiting.notified() => {}
        }
    }
    soon(server.cancelled.notified()).await;

    call(upstream.as_ref(), "change").await.expect("an answer");
    soon(changes.recv()).await.expect("a change");
    assert!(upstream.is_open());
}

#[tokio::test]
async fn server_over_streams_works() {
    let server = Server::default();
    works(&server, &over_streams(&server)).await;
}

#[tokio::test]
async fn server_over_http_with_sessions_works() {
    let server = Server::default();
    works(&server, &over_http(&server, StreamableHttpServerConfig::default(), true).await).await;
}

#[tokio::test]
async fn server_over_http_of_the_newest_era_works() {
    let server = Server::default();
    works(&server, &over_http(&server, StreamableHttpServerConfig::default(), false).await).await;
}

#[tokio::test]
async fn server_of_an_older_revision_works_and_is_refused_what_it_asks() {
    let server = Server::default();
    let inner = over_streams_of_old(&server);
    works(&server, &inner).await;
    let (upstream, _changes) = connect(&inner).await.expect("it connects");
    call(upstream.as_ref(), "ask").await.expect("an answer");
    assert_eq!(*server.asked.lock().expect("a lock"), [-32601]);
}

/// The server's streams, on which `server/discover` is no method.
fn over_streams_of_old(server: &Server) -> Transport {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    let server = server.clone();
    streams(move |io| {
        let (own, of_the_server) = tokio::io::duplex(1 << 16);
        let server = server.clone();
        tokio::spawn(async move {
            if let Ok(running) = server.serve(of_the_server).await {
                let _ = running.waiting().await;
            }
        });
        let (from_client, mut to_client) = tokio::io::split(io);
        let (from_server, mut to_server) = tokio::io::split(own);
        tokio::spawn(async move {
            let (mut requests, mut answers) =
                (BufReader::new(from_client).lines(), BufReader::new(from_server).lines());
            loop {
                tokio::select! {
                    Ok(Some(line)) = requests.next_line() => {
                        let message: Value = serde_json::from_str(&line).expect("JSON");
                        if message["method"] == "server/discover" {
                            let error = json!({"code": -32601, "message": "no such method"});
                            let error = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                            to_client.write_all(format!("{error}\n").as_bytes()).await.expect("written");
                        } else {
                            to_server.write_all(format!("{line}\n").as_bytes()).await.expect("written");
                        }
                    }
                    Ok(Some(line)) = answers.next_line() => {
                        if to_client.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                            return;
                        }
                    }
                    else => return,
                }
            }
        });
    })
}
