//! A connection to a server: its tools, and calls of them, as types of the port. Does not know the transport.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use rmcp::{
    RoleClient,
    model::{
        self, CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotificationParam, ClientRequest,
        ContentBlock, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, RequestId, ResourceContents,
        ServerResult, SubscriptionFilter,
    },
    service::{ClientLifecycleMode, ClientServiceExt as _, Peer, PeerRequestOptions, RunningService, ServiceError},
    transport::IntoTransport,
};
use serde_json::{Map, Value};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::DropGuard, task::AbortOnDropHandle};

use super::{
    failure::Secrets,
    handler::{Handler, Sinks},
    streams::Link,
};
use crate::{
    domain::tools::{Hints, TOOL_NAME_BYTES_MAX, Tool},
    ports::tools::{
        Answer, Attachment, DEFINITIONS_BYTES_MAX, MESSAGE_BYTES_MAX, ProgressSink, TOOLS_MAX, Upstream, UpstreamError,
    },
};

/// The longest that all pages of tools take, and how many pages there may be.
const TOOLS_TIME_MAX: Duration = Duration::from_secs(30);
const PAGES_MAX: usize = 100;
/// How long it waits until it listens again, at first and at most.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
const LISTEN_AGAIN_MAX: Duration = Duration::from_mins(1);
/// In place of a part that rmcp does not know.
const UNKNOWN: &str = "[a part of the answer is of a kind that this server does not know]";

pub(super) struct Connection {
    service: RunningService<RoleClient, Handler>,
    sinks: Arc<Sinks>,
    secrets: Arc<Secrets>,
    link: Link,
    /// It has failed once, so another one is to be made.
    failed: AtomicBool,
    _listening: Option<AbortOnDropHandle<()>>,
    /// Ends the streams and the process, also where rmcp waits for a server that does not read.
    _end: DropGuard,
}

impl Connection {
    pub(super) async fn begin<T, E, A>(
        transport: T,
        changed: Arc<dyn Fn() + Send + Sync>,
        secrets: Arc<Secrets>,
        link: Link,
    ) -> Result<Self, UpstreamError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let end = link.ended.clone().drop_guard();
        let sinks = Arc::<Sinks>::default();
        let handler =
            Handler { changed: Arc::clone(&changed), sinks: Arc::clone(&sinks), secrets: Arc::clone(&secrets) };
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        };
        let begun = handler.serve_with_lifecycle(transport, lifecycle).await;
        let service =
            begun.map_err(|error| if link.too_long.is_cancelled() { too_long() } else { secrets.not_begun(error) })?;
        let listens = service.peer_info().is_some_and(|peer| {
            let tools = peer.capabilities.tools.as_ref();
            !peer.protocol_version.has_initialize() && tools.is_some_and(|tools| tools.list_changed == Some(true))
        });
        let listening = listens.then(|| AbortOnDropHandle::new(tokio::spawn(listen(service.peer().clone(), changed))));
        Ok(Self { service, sinks, secrets, link, failed: false.into(), _listening: listening, _end: end })
    }

    /// Sends a request once. When this is dropped before the answer, the server gets a cancellation.
    async fn ask(&self, request: ClientRequest, progress: ProgressSink) -> Result<ServerResult, UpstreamError> {
        let options = PeerRequestOptions::no_options();
        let sent = self.service.peer().send_cancellable_request(request, options).await;
        let sent = sent.map_err(|error| self.failure(&error))?;
        let _progress = self.sinks.register(sent.progress_token.clone(), progress);
        let mut unanswered = Unanswered { peer: self.service.peer(), id: Some(sent.id.clone()) };
        let answer = sent.await_response().await;
        unanswered.id = None;
        answer.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &ServiceError) -> UpstreamError {
        let error = if self.link.too_long.is_cancelled() { too_long() } else { self.secrets.failed(error) };
        if matches!(error, UpstreamError::Away(_)) || self.link.too_long.is_cancelled() {
            self.failed.store(true, Ordering::Relaxed);
        }
        error
    }

    async fn page(&self, cursor: Option<String>) -> Result<(Vec<Tool>, Option<String>), UpstreamError> {
        let params = Some(PaginatedRequestParams::default().with_cursor(cursor));
        let request = ListToolsRequest { params, ..ListToolsRequest::default() };
        match self.ask(ClientRequest::ListToolsRequest(request), Arc::new(|_| ())).await? {
            ServerResult::ListToolsResult(page) => {
                Ok((page.tools.into_iter().filter_map(tool).collect(), page.next_cursor))
            }
            // One of them is none; the others are used.
            ServerResult::CustomResult(page) => readable_tools(page.0),
            _ => Err(UpstreamError::Unusable("it is not a list of tools".to_owned())),
        }
    }

    async fn pages(&self) -> Result<Vec<Tool>, UpstreamError> {
        let (mut tools, mut names, mut cursors, mut bytes) = (Vec::new(), HashSet::new(), HashSet::new(), 0);
        let mut cursor = None;
        for _ in 0..PAGES_MAX {
            let (page, next) = self.page(cursor).await?;
            for tool in page {
                bytes += serde_json::to_vec(&tool).map_or(0, |json| json.len());
                if bytes > DEFINITIONS_BYTES_MAX {
                    let why = format!("its tools have more than {DEFINITIONS_BYTES_MAX} bytes");
                    return Err(UpstreamError::Unusable(why));
                }
                if names.insert(tool.name.clone()) {
                    tools.push(tool);
                }
                if tools.len() == TOOLS_MAX {
                    return Ok(tools);
                }
            }
            let Some(next) = next else { return Ok(tools) };
            if !cursors.insert(next.clone()) {
                return Err(UpstreamError::Unusable("a page of its tools leads back to an earlier one".to_owned()));
            }
            cursor = Some(next);
        }
        Err(UpstreamError::Unusable(format!("its tools have more than {PAGES_MAX} pages")))
    }
}

#[async_trait]
impl Upstream for Connection {
    async fn tools(&self) -> Result<Vec<Tool>, UpstreamError> {
        timeout(TOOLS_TIME_MAX, self.pages()).await.unwrap_or_else(|_| {
            // What answers nothing may have stopped for ever; a process is started again by the next connection.
            self.failed.store(true, Ordering::Relaxed);
            Err(UpstreamError::Late(TOOLS_TIME_MAX))
        })
    }

    async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        progress: ProgressSink,
    ) -> Result<Answer, UpstreamError> {
        let refused = |why: &str| Err(UpstreamError::Refused(why.to_owned()));
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match self.ask(ClientRequest::CallToolRequest(CallToolRequest::new(params)), progress).await? {
            ServerResult::CallToolResult(result) => answered(result),
            ServerResult::InputRequiredResult(_) => refused("it asks for more input, which a program cannot give"),
            ServerResult::CreateTaskResult(_) => refused("it made a task of the call, which was not asked for"),
            _ => Err(UpstreamError::Unusable("it is not a result of a tool".to_owned())),
        }
    }

    fn is_open(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
            && !self.link.ended.is_cancelled()
            && !self.service.is_closed()
            && !self.service.peer().is_transport_closed()
    }
}

fn too_long() -> UpstreamError {
    UpstreamError::Unusable(format!("a message has more than {MESSAGE_BYTES_MAX} bytes"))
}

/// A request whose answer is awaited.
struct Unanswered<'a> {
    peer: &'a Peer<RoleClient>,
    id: Option<RequestId>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let peer = self.peer.clone();
            let params = CancelledNotificationParam::new(Some(id), Some("the caller gave it up".to_owned()));
            runtime.spawn(async move { peer.notify_cancelled(params).await });
        }
    }
}

/// Listens for changed tools, as the newest era asks for. What changed while it did not listen is not known, so it says
/// that they changed after each interruption.
async fn listen(peer: Peer<RoleClient>, changed: Arc<dyn Fn() + Send + Sync>) {
    let mut again = LISTEN_AGAIN;
    loop {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        match peer.listen(filter).await {
            Ok(mut subscription) => {
                while let Ok(Some(_)) = subscription.next().await {
                    again = LISTEN_AGAIN;
                    changed();
                }
            }
            // It has no such stream.
            Err(ServiceError::McpError(_)) => return,
            Err(_) => {}
        }
        if peer.is_transport_closed() {
            return;
        }
        sleep(again).await;
        again = (again * 2).min(LISTEN_AGAIN_MAX);
        changed();
    }
}

/// `None` for one whose name no client could call.
fn tool(tool: model::Tool) -> Option<Tool> {
    let name = tool.name.into_owned();
    let hints = tool
        .annotations
        .map(|hints| Hints { read_only_hint: hints.read_only_hint, destructive_hint: hints.destructive_hint });
    (!name.is_empty() && name.len() <= TOOL_NAME_BYTES_MAX).then(|| Tool {
        name,
        title: tool.title,
        description: tool.description.unwrap_or_default().into_owned(),
        input: Value::Object(tool.input_schema.as_ref().clone()),
        output: tool.output_schema.map(|schema| Value::Object(schema.as_ref().clone())),
        hints: hints.unwrap_or_default(),
    })
}

/// A page in which rmcp could not read every tool: those that it can, and where the next page is.
///
/// # Errors
/// It is no page.
fn readable_tools(mut page: Value) -> Result<(Vec<Tool>, Option<String>), UpstreamError> {
    let Some(Value::Array(tools)) = page.get_mut("tools").map(Value::take) else {
        return Err(UpstreamError::Unusable("it is not a list of tools".to_owned()));
    };
    let tools = tools.into_iter().filter_map(|value| tool(serde_json::from_value(value).ok()?)).collect();
    Ok((tools, page.get("nextCursor").and_then(Value::as_str).map(str::to_owned)))
}

/// # Errors
/// A part is not the base64 that it says.
fn answered(result: CallToolResult) -> Result<Answer, UpstreamError> {
    let mut answer = Answer {
        is_error: result.is_error == Some(true),
        structured: result.structured_content,
        texts: Vec::new(),
        attachments: Vec::new(),
    };
    for block in result.content {
        match block {
            ContentBlock::Text(text) => answer.texts.push(text.text),
            ContentBlock::Image(image) => answer.attachments.push(attachment(image.mime_type, &image.data)?),
            ContentBlock::Audio(audio) => answer.attachments.push(attachment(audio.mime_type, &audio.data)?),
            ContentBlock::Resource(resource) => match resource.resource {
                ResourceContents::TextResourceContents { text, .. } => answer.texts.push(text),
                ResourceContents::BlobResourceContents { mime_type, blob, .. } => {
                    answer.attachments.push(attachment(mime_type.unwrap_or_default(), &blob)?);
                }
                _ => answer.texts.push(UNKNOWN.to_owned()),
            },
            ContentBlock::ResourceLink(link) => answer.texts.push(link.uri),
            _ => answer.texts.push(UNKNOWN.to_owned()),
        }
    }
    Ok(answer)
}

fn attachment(media_type: String, base64: &str) -> Result<Attachment, UpstreamError> {
    let bytes = BASE64_STANDARD.decode(base64);
    let bytes = bytes.map_err(|_| UpstreamError::Unusable("a part of it is not base64".to_owned()))?;
    Ok(Attachment { media_type, bytes })
}
