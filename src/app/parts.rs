//! Builds every long-lived part of the server in a straight line. It starts no task, deletes nothing and destroys no
//! sandbox; [`super::background`] does.

use std::{path::Path, sync::Arc};

use axum::Router;
use secrecy::ExposeSecret as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    StartError, doctor, engine, listen::Surface, network, observability::Observability, options, sandboxed, sign_in,
};
use crate::{
    adapters::{
        database::Database,
        engine::Observed,
        storage::{DiskSkills, DiskStorage, RootError},
    },
    api::{
        http::{self, ApiParts, HttpParts, peers::Relay},
        mcp::McpParts,
    },
    config::Config,
    domain::{
        InstanceId, RunnerUsers,
        clock::{Clock as _, SystemClock},
    },
    ports::{
        engine::{Engine, Probe},
        observer::Observer,
        runner::Catalog,
        storage::Storage,
    },
    services::{
        admin::{Admin, AdminParts, Refusals},
        admission::Admission,
        containers::Containers,
        discovery::Discovery,
        files::Files,
        history::History,
        idempotency::Idempotency,
        isolation_check::{IsolationCheck, IsolationState},
        janitor::Janitor,
        kernels::Kernels,
        links::UrlSigner,
        peers::Peers,
        retention::Retention,
        runs::Runs,
        sandbox::Sandboxes,
        sessions::Sessions,
        shared_parts::SharedParts,
        sign_in::SignIn,
        skills::Skills,
        standby::{StandbyParts, Standbys},
        stats::{Readiness, StatsSnapshot},
        tokens::Tokens,
    },
};

/// Every part of the server.
pub struct Parts {
    pub shared: SharedParts,
    pub api: ApiParts,
    pub retention: Arc<Retention>,
    pub discovery: Arc<Discovery>,
    pub mcp: McpParts,
    /// Taken when it starts.
    pub check: Option<IsolationCheck>,
    pub router: Router,
    /// `None` where it is off.
    pub sign_in: Option<Arc<SignIn>>,
    /// `doctor` has none.
    pub database: Option<Database>,
    /// Serves `/metrics` on an address of its own.
    pub metrics_router: Router,
    /// Ends the background tasks and open event streams.
    pub stop: CancellationToken,
}

/// Names the database.
///
/// # Errors
/// When the setting is wrong, or the file cannot be made. A server that is away is no error.
pub(super) fn database(config: &Config) -> Result<Database, StartError> {
    Ok(Database::connect(config.database_url().expose_secret())?)
}

/// The tokens of the settings and of the database.
pub(super) fn tokens(config: &Config, database: &Database) -> Tokens {
    Tokens::new(config.api_token.expose(), Arc::new(database.clone()), Arc::new(SystemClock))
}

/// Opens the root folder, with a claim to it.
///
/// # Errors
/// When the folder, or a disk of a conversation's own, cannot be used.
pub(super) fn store(
    config: &Config,
    open: impl FnOnce(&Path, RunnerUsers) -> Result<DiskStorage, RootError>,
) -> Result<Arc<dyn Storage>, StartError> {
    let store = open(&config.root, engine::runner_users(config)?)?;
    let store = if config.quota.hard { store.with_own_disks(&options::own_disk(config))? } else { store };
    let store = match options::project_quota(config) {
        Some(most) => store.with_project_quotas(&most),
        None => store,
    };
    Ok(Arc::new(store))
}

impl Parts {
    /// What a listener serves.
    pub(super) fn surface(&self, router: &Router) -> Surface {
        Surface { router: router.clone(), tokens: Arc::clone(&self.shared.tokens) }
    }

    /// Builds the parts on an engine. `doctor` observes nothing and has no database: it stores nothing, and no other
    /// server knows of it.
    ///
    /// # Errors
    /// When the engine does not list its images.
    pub(super) async fn build(
        config: &Config,
        signer: UrlSigner,
        store: Arc<dyn Storage>,
        engine: Arc<dyn Engine>,
        probe: &Probe,
        observability: &Observability,
        database: Option<Database>,
    ) -> Result<Self, StartError> {
        let (stop, clock, bodies) = (CancellationToken::new(), Arc::new(SystemClock), options::bodies(config));
        let stored = database.clone().map_or_else(Database::unprepared, Ok)?;
        let records = Arc::new(stored.clone());
        let history = History::new(records.clone(), store.instance(), clock.clone(), options::history(config));
        let (history, keys) = (Arc::new(history), Arc::new(Idempotency::new(records, clock.clone())));
        let refusals = Arc::new(Refusals::new(clock.clone()));
        let observer = observability.observers([history.clone(), refusals.clone()]);
        let engine: Arc<dyn Engine> = Arc::new(Observed::new(engine, Arc::clone(&observer)));
        let peers = network::peers(config, store.instance(), database.as_ref());
        let (shared, discovery) = shared(config, signer, store, engine, probe, (&stored, peers), observer).await?;
        let sign_in = sign_in::parts(config, database.as_ref(), &shared.tokens, &shared.observer, bodies.clone())?;

        let sessions = Sessions::new(shared.clone(), Arc::new(stored.clone()), options::sessions(config));
        let packages = sandboxed::packages(config, &shared)?;
        let tools = sandboxed::tools(config, &stored, &shared)?;
        let checker = sandboxed::checker(config, &shared);
        let slots = options::slots(config, probe);
        info!(slots, "programs that may run at once");
        let admission = Admission::new(options::admission(config, slots));
        let runs = Runs::new(shared.clone(), sessions.clone(), admission, options::runs(config));
        let retention = Retention::new(Arc::clone(&shared.files), runs.clone(), clock, options::retention(config));

        let stats = StatsSnapshot { runs: runs.clone(), packages: packages.clone() };
        let exposition = observability.exposition(stats.clone(), (Arc::clone(&history), Arc::clone(&keys)));
        let check = isolation_check(config, &shared, &runs)?;
        let admin = Admin::new(AdminParts {
            runs: runs.clone(),
            history: Arc::clone(&history),
            stats: stats.clone(),
            has_sign_in: sign_in.is_some(),
            tool_servers: Arc::clone(tools.directory()),
            refusals,
            checks: doctor::checks_of(config, &shared.sandboxes.engine),
        });
        let api = ApiParts {
            containers: Containers::new(runs.clone()),
            kernels: Kernels::new(runs.clone(), SystemClock.unix_s(), http::jupyter::question_line),
            files: Arc::clone(&shared.files),
            tokens: Arc::clone(&shared.tokens),
            network: shared.network.clone(),
            skills: shared.sandboxes.skills.clone(),
            bodies: bodies.clone(),
            runs,
            history,
            keys,
            sessions,
            admin,
            packages,
            tools,
            checker,
        };
        let mcp = options::tools(config, api.clone());
        let relay = Relay::new(shared.peers.clone(), bodies.clone());
        let router = http::router(HttpParts {
            mcp: http::mcp::router(mcp.clone(), &options::mcp_http(config, (&bodies, &relay), stop.clone())),
            relay,
            api: api.clone(),
            sign_in: sign_in.clone(),
            readiness: Arc::new(Readiness::new(stats)),
            metrics: exposition.clone(),
            observer: Arc::clone(&shared.observer),
            names: options::names(config),
            proxies: options::proxies(config),
        });
        Ok(Self {
            shared,
            api,
            retention: Arc::new(retention),
            discovery,
            mcp,
            check: Some(check),
            router,
            sign_in: sign_in.and_then(|parts| parts.embedded),
            database,
            metrics_router: http::health::metrics_router(exposition),
            stop,
        })
    }
}

/// What the services that start sandboxes have in common, and the discovery that keeps its catalog.
async fn shared(
    config: &Config,
    signer: UrlSigner,
    store: Arc<dyn Storage>,
    engine: Arc<dyn Engine>,
    probe: &Probe,
    (database, peers): (&Database, Peers),
    observer: Arc<dyn Observer>,
) -> Result<(SharedParts, Arc<Discovery>), StartError> {
    let (instance, catalog, isolation) = (store.instance(), Arc::new(Catalog::default()), IsolationState::default());
    let discovery = Discovery::new(Arc::clone(&engine), Arc::clone(&catalog), Arc::clone(&observer));
    discovery.refresh().await?;
    if catalog.all().is_empty() {
        warn!("no image carries the label sandbox.runner=true: build the runners with ./build.sh");
    }
    let tokens = Arc::new(tokens(config, database));
    tokens.report_to(&observer);
    tokens.count_elsewhere(instance);
    let clock = Arc::new(SystemClock);
    let files = Arc::new(Files::new(Arc::clone(&store), Arc::new(signer), clock, options::files(config)));
    let sandboxes = sandboxes(config, &engine, instance)?;
    let parts = StandbyParts {
        sandboxes: sandboxes.clone(),
        catalog: Arc::clone(&catalog),
        store: Arc::clone(&store),
        isolation: isolation.clone(),
    };
    let standbys = Standbys::new(parts, options::standby(config, probe));
    let network = network::service(config, database, &tokens, &observer)?;
    let shared = SharedParts {
        sandboxes,
        catalog,
        store,
        files,
        standbys,
        isolation,
        variables: options::variables(config),
        tokens,
        network,
        peers,
        observer,
    };
    Ok((shared, discovery))
}

/// Signs links with the first secret of the settings.
pub fn signer(config: &Config) -> UrlSigner {
    UrlSigner::new(&config.file_secrets().collect::<Vec<_>>(), &config.files_base_url().unwrap_or_default().to_string())
}

fn sandboxes(config: &Config, engine: &Arc<dyn Engine>, instance: InstanceId) -> Result<Sandboxes, StartError> {
    let clock = Arc::new(SystemClock);
    Ok(Sandboxes {
        engine: Arc::clone(engine),
        janitor: Janitor::new(Arc::clone(engine), instance, clock.clone()),
        clock,
        instance,
        folders: config.shared_folders().unwrap_or_default(),
        volumes: engine::volumes(config),
        skills: skills(config)?,
        limits: config.limits.limits(),
        runner_memory_bytes_max: config.limits.runner_memory_bytes_max,
    })
}

/// The skills, where the settings name a folder for them. Checked when the settings were loaded.
fn skills(config: &Config) -> Result<Skills, StartError> {
    let root = config.skills_root().ok().flatten();
    let store = root.map(|root| DiskSkills::at(&root, SystemClock.unix_s()).map(|store| Arc::new(store) as _));
    Ok(Skills::new(store.transpose()?))
}

fn isolation_check(config: &Config, shared: &SharedParts, runs: &Runs) -> Result<IsolationCheck, StartError> {
    Ok(IsolationCheck {
        engine: Arc::clone(&shared.sandboxes.engine),
        programs: Arc::new(runs.clone()),
        catalog: Arc::clone(&shared.catalog),
        state: shared.isolation.clone(),
        limits: config.limits.limits(),
        users: engine::runner_users(config)?,
    })
}
