//! A socket in front of the engine's that passes on only the calls of this adapter, so that a compromised server
//! controls sandboxes and not the host.
//!
//! A request is parsed into one of the calls of [`rules`], and a new request is made of that; of a client's bytes only
//! those of an attached stream are passed on. A container is created only if it is exactly what [`super::convert`]
//! would make, for a folder below the root, of an image with the runner label. Of other servers' sandboxes it lists and
//! removes only those that were left behind.
//!
//! ```text
//! serve ── one task a connection ─┬ one task for each attached stream, until both of its ends are closed
//!                                 └ one timer for each list, until it has been read
//!          all of them end with `serve`, which ends with `shutdown`
//! ```

mod checks;
mod folder;
mod forward;
mod listing;
mod ownership;
mod profile;
mod rules;
#[cfg(test)]
pub(super) mod tests;

use std::{
    convert::Infallible,
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bollard::{Docker, models::ContainerCreateResponse};
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{OnceCell, Semaphore},
    task::JoinSet,
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{debug, warn};

use self::{
    checks::{Container, Known},
    folder::Root,
    forward::{Attached, Body},
    profile::Form,
    rules::{Act, Allowed, Call, Denied},
};
use super::{AllowedImages, RuntimeSetting};
use crate::domain::{
    RunnerUsers, SandboxId,
    clock::{Clock as _, SystemClock},
    shared_folder::SharedFolder,
};

/// Connections at once, attached streams among them. The server has two for each sandbox.
const CONNECTIONS_MAX: usize = 4096;
/// What is read of a connection before it is used: the head of a request, of which ours take a tenth.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The largest body; ours are a tenth of it.
const BODY_BYTES_MAX: usize = 256 << 10;
/// How long a client may take to send a head, or a body. It ends idle connections too; the adapter uses each once.
const RECEIVE_MAX: Duration = Duration::from_secs(30);
/// Bodies that are received and compared at once.
const BODIES_MAX: usize = 64;
/// Lists that are filtered at once, each until its client has read it, and how long that may take.
const LISTS_MAX: usize = 2;
const READ_MAX: Duration = Duration::from_secs(30);
/// How long the engine may take to describe itself or an image.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What the proxy allows.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// The engine's own socket: `unix://…`.
    pub engine: String,
    /// The folder that all data folders are in, by the same path here and on the engine's host.
    pub root: PathBuf,
    /// The users and groups inside sandboxes.
    pub users: RunnerUsers,
    /// The same as the server's setting.
    pub runtime: RuntimeSetting,
    /// The parent of the control groups of sandboxes: the same as the server's setting.
    pub cgroup_parent: Option<String>,
    /// Which images may be runners: the same as the server's setting.
    pub images: AllowedImages,
    /// Folders of the engine's host that sandboxes may see: the same as the server's setting.
    pub folders: Vec<SharedFolder>,
    /// The folder of all folders of skills, by the same path here and on the engine's host.
    pub skills: Option<PathBuf>,
}

/// Why the socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The engine's address is no socket of this machine.
    #[error("{host} is not the path of a socket: write unix:///var/run/docker.sock or such")]
    Host { host: String },
    /// A root cannot be opened.
    #[error("{root:?} cannot be opened: create it, mount it here too, or name the server's {setting}")]
    Root { root: PathBuf, setting: &'static str, source: io::Error },
    /// The socket cannot be made.
    #[error("{path:?} cannot be listened on: its folder has to be there and this user has to be able to write it")]
    Listen { path: PathBuf, source: io::Error },
}

/// The proxy. A clone is the same proxy.
#[derive(Clone)]
pub struct Proxy(Arc<Inner>);

struct Inner {
    socket: PathBuf,
    docker: Docker,
    root: Root,
    skills: Option<Root>,
    options: ProxyOptions,
    /// What containers must look like on this engine, read from the engine at the first need.
    form: OnceCell<Form>,
    known: Mutex<Known>,
    bodies: Semaphore,
    lists: Arc<Semaphore>,
}

impl Proxy {
    /// A proxy in front of an engine, which is not called yet.
    ///
    /// # Errors
    /// When the engine's address is no socket, or a root cannot be opened.
    pub fn new(options: ProxyOptions) -> Result<Self, ProxyError> {
        let host = || ProxyError::Host { host: options.engine.clone() };
        let socket = options.engine.strip_prefix("unix://").map(PathBuf::from).ok_or_else(host)?;
        let docker = Docker::connect_with_unix(&options.engine, LOOK_MAX.as_secs(), bollard::API_DEFAULT_VERSION)
            .map_err(|_| host())?;
        let unusable = |root: &Path, setting| {
            let root = root.to_owned();
            move |source: rustix::io::Errno| ProxyError::Root { root, setting, source: source.into() }
        };
        let root = Root::of_data(&options.root).map_err(unusable(&options.root, "SANDBOX_ROOT"))?;
        let skills = options.skills.as_deref();
        let skills = skills.map(|path| Root::of_skills(path).map_err(unusable(path, "SANDBOX_SKILLS__ROOT")));
        let skills = skills.transpose()?;
        let (form, known) = (OnceCell::new(), Mutex::default());
        let (bodies, lists) = (Semaphore::new(BODIES_MAX), Arc::new(Semaphore::new(LISTS_MAX)));
        Ok(Self(Arc::new(Inner { socket, docker, root, skills, options, form, known, bodies, lists })))
    }

    /// Creates the socket, for its owner and group. One that a dead process left is replaced.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn listen(path: &Path) -> Result<UnixListener, ProxyError> {
        let failed = |source| ProxyError::Listen { path: path.to_owned(), source };
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
        Ok(listener)
    }

    /// Passes allowed calls on, until `shutdown`.
    pub async fn serve(self, listener: UnixListener, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
            };
            match accepted {
                Ok((stream, _)) => drop(connections.spawn(self.clone().connection(stream))),
                Err(error) => {
                    warn!(%error, "a connection was not accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        connections.shutdown().await;
    }

    async fn connection(self, stream: UnixStream) {
        let (attached, unread) = (Attached::default(), CancellationToken::new());
        let (streams, given_up) = (Arc::clone(&attached), unread.clone());
        let service = service_fn(move |request| {
            let (proxy, attached, unread) = (self.clone(), Arc::clone(&attached), unread.clone());
            async move {
                let answer = proxy.pass(request, &attached, unread).await;
                Ok::<_, Infallible>(answer.unwrap_or_else(|denied| forward::refusal(&denied)))
            }
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(RECEIVE_MAX).max_buf_size(HEAD_BYTES_MAX);
        let served = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
        tokio::select! {
            served = served => if let Err(error) = served {
                debug!(%error, "a connection ended badly");
            },
            () = given_up.cancelled() => warn!("a client did not read its list"),
        }
        // The connection is the stream's now, and keeps its permit.
        let mut streams = std::mem::take(&mut *streams.lock());
        while streams.join_next().await.is_some() {}
    }

    /// Cancels `unread` where the client does not read.
    async fn pass(
        &self,
        request: Request<Incoming>,
        attached: &Attached,
        unread: CancellationToken,
    ) -> Result<Response<Body>, Denied> {
        let mut allowed = rules::parse(request.method(), request.uri())?;
        let inner = &self.0;
        let (id, act) = match allowed.call {
            Call::Create(id) => return inner.create(id, &allowed, request).await,
            Call::On(id, act) => (id, act),
            Call::List(_) => return inner.list(&allowed, unread).await,
            Call::Plain(_) => return forward::send(&inner.socket, &allowed, forward::body(Vec::new())).await,
        };
        let container = inner.container(id, act).await?;
        allowed.container = Some(container.id.clone());
        match act {
            Act::Attach => return forward::attach(&inner.socket, &allowed, request, attached).await,
            Act::Start => inner.check_folders(&container.folders)?,
            _ => {}
        }
        let body = if act == Act::LimitCpu { inner.vetted_update(&container.id, request).await? } else { Vec::new() };
        let answer = forward::send(&inner.socket, &allowed, forward::body(body)).await?;
        if act == Act::Remove && (answer.status().is_success() || answer.status() == StatusCode::NOT_FOUND) {
            inner.known.lock().containers.retain(|_, known| known.id != container.id);
        }
        Ok(answer)
    }
}

impl Inner {
    /// Creates a container and remembers it once the engine has it.
    async fn create(
        &self,
        id: SandboxId,
        allowed: &Allowed,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Denied> {
        let permit = self.bodies.acquire().await;
        let (folders, made) = self.vetted(id, &checks::received(request).await?).await?;
        drop(permit);
        let answer = forward::send(&self.socket, allowed, forward::body(made)).await?;
        if answer.status() != StatusCode::CREATED {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let broken = || Denied { status: StatusCode::BAD_GATEWAY, why: "the engine's answer is unreadable".to_owned() };
        // Boxed, since the compiler cannot show that the future is `Send` inside this one.
        let body = Limited::new(body, BODY_BYTES_MAX).collect().boxed().await.map_err(|_| broken())?.to_bytes();
        let created: ContainerCreateResponse = serde_json::from_slice(&body).map_err(|_| broken())?;
        self.known.lock().remember_container(id, Container { id: created.id, folders });
        Ok(Response::from_parts(head, forward::body(body)))
    }

    /// The containers that this server may see. One that does not read them must not keep others from theirs.
    async fn list(&self, allowed: &Allowed, unread: CancellationToken) -> Result<Response<Body>, Denied> {
        let permit = Arc::clone(&self.lists).acquire_owned().await.map_err(Denied::unavailable)?;
        let answer = forward::send(&self.socket, allowed, forward::body(Vec::new())).await?;
        if answer.status() != StatusCode::OK {
            return Ok(answer);
        }
        let timer = AbortOnDropHandle::new(tokio::spawn(async move {
            sleep(READ_MAX).await;
            unread.cancel();
        }));
        let root = self.root.path.clone();
        let shown = listing::shown(answer.into_body(), root, SystemClock.unix_s(), (permit, timer));
        Ok(forward::json(StatusCode::OK, shown))
    }
}
