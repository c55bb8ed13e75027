//! One tool server: its connection, which is made at the first need, and the definitions of its tools, which are read
//! at the first need and cached while they are valid.

#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex as Lock;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Map, Value};
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::sandboxed::SandboxedServers;
use crate::{
    domain::{
        Principal,
        tools::{Endpoint, Rule, Schema, ServerText, Tool, ToolServer, module_names},
    },
    ports::tools::{Answer, ProgressSink, Transport, Upstream, UpstreamError, Upstreams},
    services::shares::Shares,
};

/// Calls of one server at once, of all owners and of one; more wait.
const AT_ONCE_MAX: usize = 64;
const OWNER_AT_ONCE_MAX: usize = 16;
/// How long one in a sandbox stays connected without a call.
const IDLE_MAX: Duration = Duration::from_mins(15);
/// How long a server that is away is not asked again.
const AWAY: Duration = Duration::from_secs(2);
/// Parts of all schemas of a server that are kept ready. A schema beyond them is made for each call.
const SCHEMA_PARTS_MAX: u64 = 200_000;
/// What takes a few milliseconds at most, as the bytes of arguments times the parts of all schemas for them.
const QUICK_STEPS_MAX: u64 = 10_000;
/// How long its description of itself counts where the server does not say that it has changed.
const FRESH: Duration = Duration::from_mins(5);
/// How long a read that failed is not repeated, so that callers that waited for it do not wait for as many reads.
const FAILED: Duration = Duration::from_secs(2);

/// How servers are reached.
#[derive(Clone)]
pub struct ServerConnectors {
    pub(super) upstreams: Arc<dyn Upstreams>,
    pub(super) sandboxed: SandboxedServers,
}

impl ServerConnectors {
    fn transport(&self, server: &Arc<ToolServer>, secret: &SecretString) -> Transport {
        let ServerText { headers, env, .. } = &server.text;
        let filled = |values| {
            let filled = ServerText::filled(values, secret.expose_secret());
            filled.into_iter().map(|(name, value)| (name, value.into())).collect()
        };
        match server.endpoint.clone() {
            Endpoint::Url(url) => Transport::Http { url, headers: filled(headers) },
            Endpoint::Command(program, arguments) => Transport::Command { program, arguments, env: filled(env) },
            Endpoint::Sandbox(language) => self.sandboxed.transport(Arc::clone(server), language, secret.clone()),
        }
    }
}

/// A tool server, and its connection where there is one.
pub struct ServerHandle {
    pub server: Arc<ToolServer>,
    secret: SecretString,
    upstreams: Arc<dyn Upstreams>,
    transport: Transport,
    connection: Mutex<Option<Arc<dyn Upstream>>>,
    used: Lock<Instant>,
    /// Why it could not be reached, and when.
    away: Lock<Option<(Instant, UpstreamError)>>,
    definitions: Cached<Definitions>,
    /// The right to read them without a caller who waits.
    reading: Arc<Semaphore>,
    at_once: Semaphore,
    /// A share for each owner that has calls under way, so that none waits for the calls of another.
    shares: Shares<Principal>,
    /// It sends no call any more: it was changed, so that another one replaced it, or removed.
    pub(super) replaced: CancellationToken,
    /// Ends its calls, and those that were sent before it was changed: it was removed. Those that replace it share it.
    pub(super) removed: CancellationToken,
}

/// A tool as it can be called.
pub(super) struct Defined {
    pub(super) tool: Tool,
    /// Its module's name.
    pub(super) module: String,
    pub(super) hash: String,
    /// `None` where it cannot be used.
    schema: OnceLock<Option<Schema>>,
    /// Parts of the schemas that are kept, of all tools.
    parts_kept: Arc<Lock<u64>>,
}

impl Defined {
    /// Whether arguments are valid by the tool's own schema. One that cannot be used refuses nothing: its server
    /// checks.
    pub(super) fn check(&self, arguments: &Value) -> Result<(), String> {
        let by = |schema: Option<&Schema>| schema.map_or(Ok(()), |schema| schema.check(arguments));
        if let Some(kept) = self.schema.get() {
            return by(kept.as_ref());
        }
        let schema = Schema::new(&self.tool.input).ok();
        let checked = by(schema.as_ref());
        let parts = schema.as_ref().map_or(0, Schema::parts);
        let mut kept = self.parts_kept.lock();
        // Another call may have kept it.
        if *kept + parts <= SCHEMA_PARTS_MAX && self.schema.set(schema).is_ok() {
            *kept += parts;
        }
        checked
    }

    /// Whether arguments of so many bytes are checked within a few milliseconds, by the conditions of the rules too.
    pub(super) fn is_quick(&self, rules: &[Rule], bytes: usize) -> bool {
        let Some(schema) = self.schema.get() else { return false };
        let parts = schema.as_ref().map_or(0, Schema::parts) + rules.iter().map(Rule::parts).sum::<u64>();
        parts.saturating_mul(bytes as u64) <= QUICK_STEPS_MAX
    }
}

/// All tools of a server.
pub(super) struct Definitions {
    pub(super) tools: Vec<Arc<Defined>>,
    /// Names them all: others have another hash.
    pub(super) hash: String,
}

impl Definitions {
    fn new(server: &ToolServer, tools: Vec<Tool>) -> Self {
        let modules = module_names(tools.iter().map(|tool| tool.name.as_str()));
        let (identity, parts_kept) = (server.identity(), Arc::<Lock<u64>>::default());
        let defined = |(tool, module): (Tool, String)| {
            let hash = tool.hash(&identity);
            Arc::new(Defined { tool, module, hash, schema: OnceLock::new(), parts_kept: Arc::clone(&parts_kept) })
        };
        let tools: Vec<_> = tools.into_iter().zip(modules).map(defined).collect();
        let hashes: Vec<_> = tools.iter().map(|one| (&one.hash, &one.module)).collect();
        let hash =
            crate::domain::text::sha256(&serde_json::to_vec(&(server.name.as_str(), hashes)).unwrap_or_default());
        Self { tools, hash }
    }

    /// The tool of this name, or of this module.
    pub(super) fn find(&self, name: &str) -> Option<&Arc<Defined>> {
        let named = self.tools.iter().find(|one| one.tool.name == name);
        named.or_else(|| self.tools.iter().find(|one| one.module == name))
    }

    /// The tool that a program imports by this name: another tool may have the name of a module.
    pub(super) fn imported(&self, name: &str) -> Option<&Arc<Defined>> {
        let of_module = self.tools.iter().find(|one| one.module == name);
        of_module.or_else(|| self.tools.iter().find(|one| one.tool.name == name))
    }
}

/// What a read gave, and when.
type Read<T> = (Instant, Result<Arc<T>, UpstreamError>);

/// A server's description of itself. Callers that arrive during a read wait for it.
struct Cached<T> {
    last: Mutex<Option<Read<T>>>,
    /// The server says that it is another now.
    is_stale: Arc<AtomicBool>,
}

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self { last: Mutex::new(None), is_stale: Arc::default() }
    }
}

impl<T> Cached<T> {
    /// Says that what is known does not count any more.
    fn forgetter(&self) -> Arc<dyn Fn() + Send + Sync> {
        let is_stale = Arc::clone(&self.is_stale);
        Arc::new(move || is_stale.store(true, Ordering::Release))
    }

    /// As it is now, as far as the server said so; `read` asks it.
    ///
    /// # Errors
    /// Those of `read`.
    async fn get(&self, read: impl Future<Output = Result<T, UpstreamError>>) -> Result<Arc<T>, UpstreamError> {
        let mut last = self.last.lock().await;
        // Before it is read again: the read may fail, or be dropped with its caller.
        if self.is_stale.swap(false, Ordering::AcqRel) {
            *last = None;
        }
        if let Some((at, known)) = &*last
            && at.elapsed() < if known.is_ok() { FRESH } else { FAILED }
        {
            return known.clone();
        }
        let known = read.await.map(Arc::new);
        *last = Some((Instant::now(), known.clone()));
        known
    }
}

/// A server whose tools programs may call.
#[serde_with::skip_serializing_none]
#[derive(Debug, serde::Serialize, utoipa::ToSchema)]
#[schema(as = ToolServerState)]
pub struct ServerState {
    #[schema(example = "github")]
    pub name: String,
    pub description: String,
    /// How many tools it has; absent while that is not known.
    pub tools: Option<usize>,
    /// Why the number of tools is not known.
    pub error: Option<String>,
}

impl ServerHandle {
    pub(super) fn new(
        server: ToolServer,
        secret: SecretString,
        connectors: &ServerConnectors,
        removed: CancellationToken,
    ) -> Self {
        let server = Arc::new(server);
        let transport = connectors.transport(&server, &secret);
        Self::by(server, secret, (Arc::clone(&connectors.upstreams), transport), removed)
    }

    fn by(
        server: Arc<ToolServer>,
        secret: SecretString,
        (upstreams, transport): (Arc<dyn Upstreams>, Transport),
        removed: CancellationToken,
    ) -> Self {
        Self {
            server,
            secret,
            upstreams,
            transport,
            connection: Mutex::new(None),
            used: Lock::new(Instant::now()),
            away: Lock::new(None),
            definitions: Cached::default(),
            reading: Arc::new(Semaphore::new(1)),
            at_once: Semaphore::new(AT_ONCE_MAX),
            shares: Shares::new(OWNER_AT_ONCE_MAX),
            replaced: removed.child_token(),
            removed,
        }
    }

    pub(super) fn secret(&self) -> &str {
        self.secret.expose_secret()
    }

    /// A connection that calls can be made by.
    async fn connected(&self) -> Result<Arc<dyn Upstream>, UpstreamError> {
        let mut connection = self.connection.lock().await;
        *self.used.lock() = Instant::now();
        if let Some(open) = connection.as_ref().filter(|open| open.is_open()) {
            return Ok(Arc::clone(open));
        }
        if let Some((at, error)) = &*self.away.lock()
            && at.elapsed() < AWAY
        {
            return Err(error.clone());
        }
        *connection = None;
        let changed = self.definitions.forgetter();
        let connected = self.upstreams.connect(&self.transport, Arc::clone(&changed)).await;
        let open = connected.inspect_err(|error| {
            info!(server = %self.server.name, %error, "a tool server could not be reached");
            *self.away.lock() = Some((Instant::now(), error.clone()));
        })?;
        // Its tools may be others since the last connection.
        changed();
        Ok(Arc::clone(connection.insert(open)))
    }

    /// Its tools as they are now, as far as it said so.
    pub(super) async fn definitions(&self) -> Result<Arc<Definitions>, UpstreamError> {
        let upstream = self.connected().await?;
        let read = async { upstream.tools().await.map(|tools| Definitions::new(&self.server, tools)) };
        self.definitions.get(read).await
    }

    /// The same, or why they are not known, within a time. A read goes on after it, once, for the next caller; it ends
    /// as the connection's own limits say.
    pub(super) async fn definitions_within(self: &Arc<Self>, max: Duration) -> Result<Arc<Definitions>, String> {
        let read = if let Ok(turn) = Arc::clone(&self.reading).try_acquire_owned() {
            let live = Arc::clone(self);
            let read = async move {
                let _turn = turn;
                live.definitions().await
            };
            let failed = |_| Err(UpstreamError::Away("its tools could not be read".to_owned()));
            timeout(max, tokio::spawn(read)).await.map(|read| read.unwrap_or_else(failed))
        } else {
            timeout(max, self.definitions()).await
        };
        match read {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err("it has not answered yet".to_owned()),
        }
    }

    /// Ends the connection to one in a sandbox that is not used. It is called every few seconds, so a call counts as a
    /// use until about its end.
    pub(super) fn close_idle(&self) {
        if self.at_once.available_permits() < AT_ONCE_MAX {
            *self.used.lock() = Instant::now();
        }
        let is_sandboxed = matches!(self.transport, Transport::Streams { .. });
        let is_unused = self.used.lock().elapsed() > IDLE_MAX;
        if is_sandboxed
            && is_unused
            && let Ok(mut connection) = self.connection.try_lock()
        {
            *connection = None;
        }
    }

    /// Calls a tool, once. The permit is of its owner's share: it is held until the program has taken the answer, which
    /// bounds answers that are not read.
    pub(super) async fn call(
        &self,
        owner: &Principal,
        tool: &str,
        arguments: Map<String, Value>,
        progress: ProgressSink,
    ) -> Result<(Answer, OwnedSemaphorePermit), UpstreamError> {
        let ready = async {
            // In this order, so that what waits for its owner's room takes none of the others'.
            let own = self.shares.of(owner).acquire_owned().await.ok()?;
            let one = self.at_once.acquire().await.ok()?;
            Some(self.connected().await.map(|upstream| (own, one, upstream)))
        };
        let replaced = || UpstreamError::Away("it was changed or removed before the call was sent".to_owned());
        let ready = self.replaced.run_until_cancelled(ready).await.flatten().ok_or_else(replaced)?;
        let (own, _one, upstream) = ready?;
        let call_max = self.server.call_max();
        let call = timeout(call_max, upstream.call(tool, arguments, progress));
        let answer = tokio::select! {
            biased;
            () = self.removed.cancelled() => Err(UpstreamError::Away("it was removed".to_owned())),
            answered = call => answered.unwrap_or(Err(UpstreamError::Late(call_max))),
        };
        answer.map(|answer| (answer, own))
    }

    pub(super) async fn state(&self) -> ServerState {
        let tools = self.definitions().await.map(|all| all.tools.len());
        self.with_tools(tools.map_err(|error| error.to_string()))
    }

    pub(super) fn with_tools(&self, tools: Result<usize, String>) -> ServerState {
        let (name, description) = (self.server.name.to_string(), self.server.text.description.clone());
        let (tools, error) = tools.map_or_else(|why| (None, Some(why)), |count| (Some(count), None));
        ServerState { name, description, tools, error }
    }
}
