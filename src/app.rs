//! Builds every long-lived part once, in a straight line, and takes them down in the opposite order.
//!
//! ```text
//! App::build ── janitor (sweep, rounds) · discovery (follow) · retention (rounds) · executions (a task a run)
//! App::serve ── one accept loop, a task a connection
//! App::stop  ── connections end · runs end or are cancelled · the janitor empties its list · discovery and retention end
//!                · the audit log and traces write and send what waits
//! ```

mod listen;
mod watchers;

use std::{sync::Arc, time::Duration};

use axum::Router;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::watchers::Watchers;
use crate::{
    adapters::engine::{
        docker::{ConnectError, DockerEngine, DockerOptions, RuntimeSetting},
        observed::Observed,
    },
    ground::config::{BindAddr, Config},
    nouns::{clock::SystemClock, id::InstanceId},
    ports::{
        auth::Tokens,
        engine::{Engine, EngineError, Probe},
        observer::Observer,
        runner::Catalog,
        signed_url::UrlSigner,
        store::{Owner, Store, StoreError},
    },
    services::{
        admission::{self, Admission, AdmissionOptions},
        conversations::Conversations,
        discovery::Discovery,
        execution::{ExecutionOptions, ExecutionParts, Executions},
        files::{Files, FilesOptions},
        janitor::Janitor,
        proof::Proof,
        quota::QuotaOptions,
        readiness::Readiness,
        retention::{Retention, RetentionOptions},
        runs::{Policy, Runs, RunsOptions},
        self_test::{SelfTest, SelfTestParts},
        standby::{StandbyOptions, StandbyParts, Standbys},
        vitals::Vitals,
    },
    surfaces::{
        http::{self, HttpParts, body::Bodies, guard::Names, mcp::McpHttpOptions, piston::PistonParts, v1::V1Parts},
        mcp::{McpOptions, McpParts},
    },
};

/// How long the janitor may take to empty its list at the end.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// How long after the end of any run a conversation still counts as in use.
const IN_USE_MARGIN: Duration = Duration::from_mins(5);

/// Runtimes whose sandboxes have a kernel of their own, by what their names hold.
const OWN_KERNELS: [&str; 3] = ["runsc", "gvisor", "kata"];

/// Why the server does not start: one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The root folder cannot be used.
    #[error("SANDBOX_ROOT cannot be used: {0}")]
    Root(#[from] StoreError),
    /// The engine cannot be used.
    #[error(
        "the container engine cannot be used: start it (`systemctl start docker`), or point DOCKER_HOST at it and make \
         sure that this user may use its socket"
    )]
    Connect(#[source] ConnectError),
    /// The engine has not the runtime that is set.
    #[error(transparent)]
    Runtime(ConnectError),
    /// The engine answers and refuses what the start needs.
    #[error("the container engine does not do what is needed: `mcp-sandbox-server doctor` says more")]
    Engine(#[from] EngineError),
    /// The audit log cannot be written.
    #[error("SANDBOX_AUDIT__FILE {path} cannot be appended to: make its folder, owned by the server's user")]
    Audit {
        /// The setting.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The engine was seen not to isolate.
    #[error("programs would not be isolated, so the server does not serve: {0}")]
    Isolation(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {name} {addr}: choose another port or stop what uses it")]
    Listen {
        /// Which setting.
        name: &'static str,
        /// What it says.
        addr: BindAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Every part of the server.
pub struct App {
    /// Runs programs, and remembers them.
    pub runs: Runs,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Ends what nobody holds.
    pub janitor: Janitor,
    /// How long conversations are kept.
    pub retention: Arc<Retention>,
    /// Sandboxes that were started ahead of need.
    pub standbys: Standbys,
    /// The runners known now.
    pub catalog: Arc<Catalog>,
    /// What the engine is.
    pub probe: Probe,
    /// Whose sandboxes these are.
    pub instance: InstanceId,
    /// What the MCP surface is made of.
    pub mcp: McpParts,
    /// Whether the engine was seen to isolate. Nothing runs before.
    pub proof: Proof,
    self_test: Option<SelfTest>,
    router: Router,
    beside: Option<(TcpListener, Router)>,
    watchers: Watchers,
    discovery: JoinHandle<()>,
    keeping: JoinHandle<()>,
    tests: Option<JoinHandle<()>>,
    stop: CancellationToken,
    shutdown_grace: Duration,
    listen: listen::Limits,
}

/// The Docker engine that the settings name, and what it is.
///
/// # Errors
/// When it does not answer.
pub async fn engine(config: &Config) -> Result<(Arc<dyn Engine>, Probe), StartError> {
    let set = |text: &String| (!text.is_empty()).then(|| text.clone());
    let docker = DockerEngine::connect(DockerOptions {
        host: config.docker_host.clone(),
        runtime: RuntimeSetting::from(config.engine.runtime.as_str()),
        host_root: set(&config.engine.host_root).map(Into::into),
        cgroup_root: config.engine.cgroup_root.clone().into(),
        ..DockerOptions::new(&config.root)
    })
    .await
    .map_err(|error| match error {
        ConnectError::Runtime { .. } => StartError::Runtime(error),
        other => StartError::Connect(other),
    })?;
    let engine: Arc<dyn Engine> = Arc::new(docker);
    let probe = engine.probe().await?;
    Ok((engine, probe))
}

/// Takes away what an earlier process left. What takes long is deleted later, behind the back of the start.
async fn leftovers(store: &Arc<Store>) {
    let report = |result: Result<(), StoreError>| {
        if let Err(error) = result {
            warn!(%error, "what an earlier process left was not deleted");
        }
    };
    let nameless = Arc::clone(store);
    if let Ok(cleared) = tokio::task::spawn_blocking(move || nameless.clear_nameless()).await {
        report(cleared);
    }
}

impl App {
    /// Builds everything on the engine that the settings name.
    ///
    /// # Errors
    /// When the root folder or the engine cannot be used.
    pub async fn build(config: &Config) -> Result<Self, StartError> {
        let owner = Owner { uid: config.engine.runner_uid, gid: config.engine.runner_uid };
        let store = Arc::new(Store::open(&config.root, owner)?);
        let (engine, probe) = engine(config).await?;
        let mut app = Self::assemble(config, store, engine, probe).await?;
        app.test_the_engine();
        Ok(app)
    }

    /// Begins to test whether the engine isolates. What it finds is in `proof`.
    pub fn test_the_engine(&mut self) {
        if let Some(test) = self.self_test.take() {
            self.tests = Some(test.follow(self.stop.clone()));
        }
    }

    /// Builds everything on a given engine, which is not tested before [`Self::test_the_engine`] is called.
    ///
    /// # Errors
    /// When the engine does not list its sandboxes or images.
    pub async fn assemble(
        config: &Config,
        store: Arc<Store>,
        engine: Arc<dyn Engine>,
        probe: Probe,
    ) -> Result<Self, StartError> {
        let instance: InstanceId = store.instance();
        let watchers = Watchers::new(config, instance)?;
        let observer: Arc<dyn Observer> = Arc::new(watchers.observers());
        let engine: Arc<dyn Engine> = Arc::new(Observed::new(engine, Arc::clone(&observer)));
        let (stop, proof) = (CancellationToken::new(), Proof::default());
        let clock = Arc::new(SystemClock);
        info!(engine = %probe.engine, api = %probe.api_version, runtime = %probe.runtime, "the engine answers");
        for warning in &probe.warnings {
            warn!("{warning}");
        }

        let janitor = Janitor::start(Arc::clone(&engine), instance, clock.clone());
        janitor.reconcile().await?;
        leftovers(&store).await;
        let catalog = Arc::new(Catalog::default());
        let discovery = discover(&engine, &catalog, stop.clone()).await?;

        let secrets: Vec<_> = config.file_secrets.iter().map(|secret| secret.expose().clone()).collect();
        let base_url = config.public_base_url.to_string();
        let signer = Arc::new(UrlSigner::new(&secrets, base_url.trim_end_matches('/')));
        let files = Arc::new(Files::new(Arc::clone(&store), signer, clock.clone(), files_options(config)));
        files.trash().empty();
        let standbys = Standbys::start(
            StandbyParts {
                engine: Arc::clone(&engine),
                catalog: Arc::clone(&catalog),
                store: Arc::clone(&store),
                janitor: janitor.clone(),
                clock: clock.clone(),
                instance,
                uid: config.engine.runner_uid,
                limits: config.limits.limits(),
                proof: proof.clone(),
            },
            standby_options(config),
        );
        let executions = Executions::new(
            ExecutionParts {
                engine: Arc::clone(&engine),
                catalog: Arc::clone(&catalog),
                store,
                files: Arc::clone(&files),
                janitor: janitor.clone(),
                admission: Admission::new(admission_options(config, &probe)),
                standbys: standbys.clone(),
                clock: clock.clone(),
                observer: Arc::clone(&observer),
                proof: proof.clone(),
            },
            execution_options(config, instance),
        );

        let retention =
            Retention::new(Arc::clone(&files), executions.clone(), clock.clone(), retention_options(config));
        let retention = Arc::new(retention);
        let keeping = Arc::clone(&retention).start(stop.clone());
        let runs = Runs::new(executions.clone(), runs_options(config), clock);

        let vitals = Vitals::new(executions.clone(), janitor.clone(), standbys.clone(), Arc::clone(&catalog));
        let measured = watchers.exposition(vitals.clone());
        let self_test = self_test(config, &probe, &engine, &executions, &catalog, &proof);
        let beside = listen_for_metrics(config).await?;
        let beside = beside.map(|listener| (listener, http::metrics::router(measured.clone())));
        let mcp = McpParts { runs: runs.clone(), files: Arc::clone(&files), options: mcp_options(config) };
        let bodies = bodies(config);
        let router = http::router(HttpParts {
            mcp: http::mcp::router(mcp.clone(), &mcp_http_options(config, bodies.clone(), stop.clone())),
            v1: http::v1::router(v1_parts(config, bodies.clone(), &runs, &executions, &files)),
            piston: http::piston::router(piston_parts(config, bodies, &runs)),
            files: http::files::router(Arc::clone(&files)),
            tokens: Arc::new(Tokens::new(config.api_token.expose())),
            readiness: Arc::new(Readiness::new(engine, Arc::clone(&catalog), proof.clone(), vitals)),
            metrics: measured,
            observer,
            names: Names::new(&config.public_base_url, allowed_hosts(config)),
        });
        let shutdown_grace = Duration::from_millis(config.server.shutdown_grace_ms);
        let listen = listen::Limits {
            header_read_max: Duration::from_millis(config.server.header_read_ms),
            connections_max: config.server.connections_max as usize,
        };
        Ok(Self {
            runs,
            files,
            janitor,
            retention,
            standbys,
            catalog,
            probe,
            instance,
            mcp,
            proof,
            self_test: Some(self_test),
            tests: None,
            router,
            beside,
            watchers,
            discovery,
            keeping,
            stop,
            shutdown_grace,
            listen,
        })
    }

    /// Serves HTTP until `shutdown`, then takes everything down: no sandbox is left.
    ///
    /// # Errors
    /// When the engine was seen not to isolate; everything was taken down then too.
    pub async fn serve(mut self, listener: TcpListener, shutdown: CancellationToken) -> Result<(), StartError> {
        self.serve_the_rest();
        let (shutdown, stopping) = (shutdown.child_token(), CancellationToken::new());
        let connections =
            tokio::spawn(listen::serve(listener, self.router.clone(), self.listen, shutdown.clone(), stopping.clone()));
        let broken = tokio::select! {
            () = shutdown.cancelled() => None,
            why = self.proof.broken() => Some(why),
        };
        shutdown.cancel();
        info!("stopping: running programs may end, nothing new starts");
        self.runs.stop(self.shutdown_grace).await;
        stopping.cancel();
        drop(connections.await);
        self.stop().await;
        broken.map_or(Ok(()), |why| Err(StartError::Isolation(why)))
    }

    /// Serves HTTP in the background for as long as the app lives, for a process that has another surface in front.
    pub fn serve_beside(&mut self, listener: TcpListener) {
        self.serve_the_rest();
        let stop = self.stop.clone();
        tokio::spawn(listen::serve(listener, self.router.clone(), self.listen, stop.clone(), stop));
    }

    /// What listens on an address of its own.
    fn serve_the_rest(&mut self) {
        if let Some((listener, router)) = self.beside.take() {
            let stop = self.stop.clone();
            tokio::spawn(listen::serve(listener, router, self.listen, stop.clone(), stop));
        }
    }

    /// Ends every run and every task; no sandbox is left.
    pub async fn stop(self) {
        self.runs.stop(self.shutdown_grace).await;
        self.stop.cancel();
        self.standbys.stop().await;
        self.janitor.drain(DRAIN_MAX).await;
        drop(self.discovery.await);
        drop(self.keeping.await);
        self.files.trash().stop();
        if let Some(tests) = self.tests {
            drop(tests.await);
        }
        self.watchers.close().await;
    }
}

/// Listens.
///
/// # Errors
/// As the operating system says.
pub async fn bind(addr: &BindAddr) -> std::io::Result<TcpListener> {
    listen::bind(addr).await
}

/// Listens where the settings say.
///
/// # Errors
/// When the address is taken or not this machine's.
pub async fn listen(config: &Config) -> Result<TcpListener, StartError> {
    listen::bind(&config.http_addr).await.map_err(|source| StartError::Listen {
        name: "MCP_HTTP_ADDR",
        addr: config.http_addr.clone(),
        source,
    })
}

async fn listen_for_metrics(config: &Config) -> Result<Option<TcpListener>, StartError> {
    let Some(addr) = config.metrics.addr() else { return Ok(None) };
    let bound = listen::bind(&addr).await;
    bound.map(Some).map_err(|source| StartError::Listen { name: "SANDBOX_METRICS__HTTP_ADDR", addr, source })
}

/// Reads the runners, and follows them.
async fn discover(
    engine: &Arc<dyn Engine>,
    catalog: &Arc<Catalog>,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, StartError> {
    let discovery = Discovery::new(Arc::clone(engine), Arc::clone(catalog));
    discovery.refresh().await?;
    if catalog.all().is_empty() {
        warn!("no image carries the label sandbox.runner=true: build the runners with ./build.sh");
    }
    Ok(discovery.follow(stop))
}

fn self_test(
    config: &Config,
    probe: &Probe,
    engine: &Arc<dyn Engine>,
    executions: &Executions,
    catalog: &Arc<Catalog>,
    proof: &Proof,
) -> SelfTest {
    SelfTest::new(SelfTestParts {
        engine: Arc::clone(engine),
        executions: executions.clone(),
        catalog: Arc::clone(catalog),
        proof: proof.clone(),
        limits: config.limits.limits(),
        uid: config.engine.runner_uid,
        own_kernel: OWN_KERNELS.iter().any(|name| probe.runtime.contains(name)),
    })
}

fn allowed_hosts(config: &Config) -> Vec<String> {
    config.server.allowed_hosts.split(',').map(str::to_owned).collect()
}

fn admission_options(config: &Config, probe: &Probe) -> AdmissionOptions {
    let slots = match config.admission.slots as usize {
        0 => admission::slots_for(probe.cpus, probe.memory_bytes, config.limits.memory_bytes),
        slots => slots,
    };
    info!(slots, "programs that may run at once");
    AdmissionOptions {
        slots,
        queue_max: config.admission.queue_max as usize,
        wait_max: Duration::from_millis(config.admission.queue_wait_ms),
        conversation_max: config.admission.conversation_max as usize,
        rate_a_minute: config.admission.rate_per_minute,
        rate_burst: config.admission.rate_burst,
    }
}

fn execution_options(config: &Config, instance: InstanceId) -> ExecutionOptions {
    ExecutionOptions {
        instance,
        uid: config.engine.runner_uid,
        limits: config.limits.limits(),
        program_bytes_max: usize::try_from(config.limits.program_bytes_max).unwrap_or(usize::MAX),
    }
}

fn standby_options(config: &Config) -> StandbyOptions {
    let standby = &config.standby;
    StandbyOptions {
        total_max: standby.total_max as usize,
        memory_bytes_max: standby.memory_bytes_max,
        nameless_max: standby.nameless_max as usize,
        idle_max: Duration::from_secs(standby.idle_s),
        used_max: Duration::from_secs(standby.used_s),
        age_max: Duration::from_secs(standby.age_s),
    }
}

fn runs_options(config: &Config) -> RunsOptions {
    RunsOptions {
        kept_runs_max: config.runs.kept_max as usize,
        kept_bytes_max: usize::try_from(config.runs.kept_bytes).unwrap_or(usize::MAX),
        kept_age: Duration::from_secs(config.runs.kept_age_s),
        policy: if config.runs.on_disconnect == "detach" { Policy::Detached } else { Policy::CancelWhenLeft },
        ..RunsOptions::default()
    }
}

fn files_options(config: &Config) -> FilesOptions {
    FilesOptions {
        url_ttl_s: config.files.url_ttl_s,
        entries_max: config.files.listed_max as usize,
        depth_max: config.files.depth_max as usize,
        read_bytes_max: config.files.read_bytes_max,
        write_bytes_max: config.files.write_bytes_max,
        quota: QuotaOptions {
            bytes_max: config.quota.bytes_max,
            entries_max: config.quota.entries_max.into(),
            free_bytes_min: config.quota.free_bytes_min,
        },
    }
}

fn retention_options(config: &Config) -> RetentionOptions {
    let unused_s = config.quota.kept_unused_s;
    let total_bytes = config.quota.total_bytes_max;
    RetentionOptions {
        unused_max: (unused_s > 0).then(|| Duration::from_secs(unused_s)),
        total_bytes_max: (total_bytes > 0).then_some(total_bytes),
        in_use: Duration::from_millis(config.limits.wall_ms) + IN_USE_MARGIN,
    }
}

fn mcp_options(config: &Config) -> McpOptions {
    McpOptions {
        image_bytes_max: config.files.image_bytes_max,
        images_max: config.files.images_max as usize,
        read_bytes_max: config.files.read_bytes_max,
        write_bytes_max: config.files.write_bytes_max,
        code_bytes_max: config.limits.program_bytes_max,
        limits: config.limits.limits(),
        wait_default: Duration::from_secs(config.runs.wait_s_default),
    }
}

fn mcp_http_options(config: &Config, bodies: Bodies, shutdown: CancellationToken) -> McpHttpOptions {
    McpHttpOptions {
        bodies,
        run_max: Duration::from_millis(config.limits.wall_ms + config.admission.queue_wait_ms),
        shutdown,
    }
}

fn v1_parts(config: &Config, bodies: Bodies, runs: &Runs, executions: &Executions, files: &Arc<Files>) -> V1Parts {
    V1Parts {
        runs: runs.clone(),
        files: Arc::clone(files),
        conversations: Conversations::new(Arc::clone(files), executions.clone()),
        keys: Arc::default(),
        limits: config.limits.limits(),
        bodies,
    }
}

fn piston_parts(config: &Config, bodies: Bodies, runs: &Runs) -> PistonParts {
    PistonParts { runs: runs.clone(), bodies, limits: config.limits.limits() }
}

fn bodies(config: &Config) -> Bodies {
    let bytes = |setting: u64| usize::try_from(setting).unwrap_or(usize::MAX);
    let server = &config.server;
    let read_max = Duration::from_millis(server.body_read_ms);
    Bodies::new(bytes(server.body_bytes_max), read_max, bytes(server.bodies_bytes_max))
}
