//! Builds every long-lived part once, in a straight line, and takes them down in the opposite order.
//!
//! ```text
//! App::build ── janitor (sweep, rounds) · discovery (follow) · retention (rounds) · executions (a task a run)
//! App::serve ── one accept loop, a task a connection
//! App::stop  ── connections end · runs end or are cancelled · the janitor empties its list · discovery and retention end
//!                · the audit log and traces write and send what waits
//! ```

mod error;
mod listen;
mod observability;
mod options;

use std::{sync::Arc, time::Duration};

use axum::Router;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::error::StartError;
use self::observability::Observability;
pub(crate) use self::options::own_disk;
use crate::{
    adapters::engine::{self, ConnectError, EngineOptions, observed::Observed},
    api::{
        http::{self, HttpParts, guard::Names},
        mcp::McpParts,
    },
    config::{BindAddr, Config},
    domain::{clock::SystemClock, id::InstanceId},
    ports::{
        auth::Tokens,
        engine::{Engine, Probe},
        observer::Observer,
        runner::Catalog,
        signed_url::UrlSigner,
        store::{Owner, Store, StoreError},
    },
    services::{
        admission::Admission,
        discovery::Discovery,
        execution::{ExecutionParts, Executions},
        files::Files,
        isolation_check::{IsolationCheck, IsolationState},
        janitor::Janitor,
        readiness::Readiness,
        retention::Retention,
        runs::Runs,
        standby::{StandbyParts, Standbys},
        stats::StatsSnapshot,
    },
};

/// How long the janitor may take to empty its list at the end.
const DRAIN_MAX: Duration = Duration::from_secs(20);

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
    pub isolation: IsolationState,
    check: Option<IsolationCheck>,
    router: Router,
    beside: Option<(TcpListener, Router)>,
    observability: Observability,
    discovery: JoinHandle<()>,
    keeping: JoinHandle<()>,
    tests: Option<JoinHandle<()>>,
    stop: CancellationToken,
    shutdown_grace: Duration,
    listen: listen::Limits,
}

/// The engine that the settings name, and what it is.
///
/// # Errors
/// When it does not answer.
pub async fn engine(config: &Config) -> Result<(Arc<dyn Engine>, Probe), StartError> {
    let set = |text: &String| (!text.is_empty()).then(|| text.clone());
    let engine = engine::connect(EngineOptions {
        host: config.docker_host.clone(),
        runtime: config.engine.runtime.as_str().into(),
        host_root: set(&config.engine.host_root).map(Into::into),
        cgroup_root: config.engine.cgroup_root.clone().into(),
        ..EngineOptions::new(&config.root)
    })
    .await
    .map_err(|error| match error {
        ConnectError::Runtime { .. } => StartError::Runtime(error),
        other => StartError::Connect(other),
    })?;
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
    let unassigned = Arc::clone(store);
    if let Ok(cleared) = tokio::task::spawn_blocking(move || unassigned.clear_unassigned()).await {
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
        let mut store = Store::open(&config.root, owner)?;
        if config.quota.hard {
            store = store.with_own_disks(&own_disk(config))?;
        }
        let store = Arc::new(store);
        let (engine, probe) = engine(config).await?;
        let mut app = Self::assemble(config, store, engine, probe).await?;
        app.test_the_engine();
        Ok(app)
    }

    /// Begins to test whether the engine isolates. What it finds is in `isolation`.
    pub fn test_the_engine(&mut self) {
        if let Some(check) = self.check.take() {
            self.tests = Some(check.start(self.stop.clone()));
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
        let observability = Observability::new(config, instance)?;
        let observer: Arc<dyn Observer> = Arc::new(observability.observers());
        let engine: Arc<dyn Engine> = Arc::new(Observed::new(engine, Arc::clone(&observer)));
        let (stop, isolation) = (CancellationToken::new(), IsolationState::default());
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
        let files = Arc::new(Files::new(Arc::clone(&store), signer, clock.clone(), options::files(config)));
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
                isolation: isolation.clone(),
            },
            options::standby(config),
        );
        let executions = Executions::new(
            ExecutionParts {
                engine: Arc::clone(&engine),
                catalog: Arc::clone(&catalog),
                store,
                files: Arc::clone(&files),
                janitor: janitor.clone(),
                admission: Admission::new(options::admission(config, &probe)),
                standbys: standbys.clone(),
                clock: clock.clone(),
                observer: Arc::clone(&observer),
                isolation: isolation.clone(),
            },
            options::execution(config, instance),
        );

        let retention =
            Retention::new(Arc::clone(&files), executions.clone(), clock.clone(), options::retention(config));
        let retention = Arc::new(retention);
        let keeping = Arc::clone(&retention).start(stop.clone());
        let runs = Runs::new(executions.clone(), options::runs(config), clock);

        let stats = StatsSnapshot::new(executions.clone(), janitor.clone(), standbys.clone(), Arc::clone(&catalog));
        let measured = observability.exposition(stats.clone());
        let check = isolation_check(config, &engine, &executions, &catalog, &isolation);
        let beside =
            listen_for_metrics(config).await?.map(|listener| (listener, http::metrics::router(measured.clone())));
        let mcp = McpParts { runs: runs.clone(), files: Arc::clone(&files), options: options::mcp(config) };
        let bodies = options::bodies(config);
        let router = http::router(HttpParts {
            mcp: http::mcp::router(mcp.clone(), &options::mcp_http(config, bodies.clone(), stop.clone())),
            v1: http::v1::router(options::v1(config, bodies.clone(), &runs, &executions, &files)),
            piston: http::piston::router(options::piston(config, bodies, &runs)),
            files: http::files::router(Arc::clone(&files)),
            tokens: Arc::new(Tokens::new(config.api_token.expose())),
            readiness: Arc::new(Readiness::new(engine, Arc::clone(&catalog), isolation.clone(), stats)),
            metrics: measured,
            observer,
            names: Names::new(&config.public_base_url, options::allowed_hosts(config)),
        });
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
            isolation,
            check: Some(check),
            tests: None,
            router,
            beside,
            observability,
            discovery,
            keeping,
            stop,
            shutdown_grace: Duration::from_millis(config.server.shutdown_grace_ms),
            listen: options::listen(config),
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
            why = self.isolation.violated() => Some(why),
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
        self.retention.unmount_all().await;
        if let Some(tests) = self.tests {
            drop(tests.await);
        }
        self.observability.close().await;
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

fn isolation_check(
    config: &Config,
    engine: &Arc<dyn Engine>,
    executions: &Executions,
    catalog: &Arc<Catalog>,
    state: &IsolationState,
) -> IsolationCheck {
    IsolationCheck {
        engine: Arc::clone(engine),
        programs: Arc::new(executions.clone()),
        catalog: Arc::clone(catalog),
        state: state.clone(),
        limits: config.limits.limits(),
        uid: config.engine.runner_uid,
    }
}
