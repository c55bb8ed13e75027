//! An engine for tests: no container, no process, and no time but tokio's, which a test can pause.
//!
//! A program is a script of steps (see [`script`]). The engine fails on command, and records the calls that would block
//! or fail a real engine: [`FakeEngine::violations`]. It knows nothing of the services that it is used to test. Both
//! the tests of the library and those of `tests/it` compile it, so it names the library's modules as `crate::`.
//!
//! ```text
//! start ── one task for each sandbox: reads the program, plays it
//!            ends by itself when the program does; killed by kill, destroy, or the drop of the engine
//! ```

mod candidates;
mod kernel;
mod life;
mod orders;
mod script;
mod storm;

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::sleep};
use tokio_stream::wrappers::WatchStream;

pub use self::candidates::Offered;
use self::{
    candidates::Candidates,
    life::{Answers, Life, Quirks},
    storm::{CallFault, FaultGenerator, STALL},
};
use crate::{
    domain::{Clock, Limits, RunnerUsers, SandboxId, clock::SystemClock},
    ports::{
        engine::{Engine, EngineError, Expectation, Fact, ImageId, Listed, Probe, Sandbox, SandboxSpec, Volume},
        runner::RunnerImage,
    },
};

/// How long a kill waits for a reader that has stopped reading, as a real engine does.
pub const STALL_MAX: Duration = Duration::from_secs(5);

/// How a start can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFault {
    /// Nothing answers.
    Unavailable,
    /// It is refused, and nothing was made.
    Refused,
    /// It is refused when the sandbox was made already: it is listed until it is destroyed.
    HalfWay,
    /// The image is gone.
    ImageGone,
}

/// An engine for tests. Cheap to clone; every clone is the same engine.
#[derive(Clone)]
pub struct FakeEngine(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    runners: watch::Sender<Vec<RunnerImage>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Calls of `start`.
    attempts: usize,
    sandboxes: BTreeMap<SandboxId, Record>,
    /// Every id that was ever started, in order.
    started: Vec<SandboxId>,
    /// Images that can be started and are not runners.
    images: HashSet<ImageId>,
    violations: Vec<String>,
    answers: Answers,
    candidates: Candidates,
    faults: Faults,
}

/// What is wrong with the engine. What runs goes on as it is.
#[derive(Debug, Default)]
pub struct Faults {
    /// Nothing answers.
    pub away: bool,
    /// Nothing answers in time.
    pub hangs: bool,
    starts: VecDeque<StartFault>,
    /// Every start takes this long.
    pub start_delay: Duration,
    /// Starts of these images wait.
    pub fetching: watch::Sender<HashSet<ImageId>>,
    /// So many of the next sandboxes break off their output after its first piece.
    pub streams_to_break: u32,
    /// How so many of the next sandboxes end will not be known.
    pub exits_to_lose: u32,
    /// So many of the next calls of destroy fail and destroy nothing.
    pub destroys_to_fail: u32,
    /// So many of the next kernels never answer.
    pub kernels_to_mute: u32,
    /// While this is set, runners that speak frames do not report that they are warm.
    pub loading: watch::Sender<bool>,
    /// What runners that speak frames report that they use when they are warm.
    pub memory_bytes: Option<u64>,
    /// No sandbox's CPU can be limited.
    pub refuse_limits: bool,
    /// Sandboxes that can be neither killed nor destroyed.
    pub indestructible: HashSet<SandboxId>,
    /// What the engine's runners differ in reaching, and must not reach.
    pub forbidden: Vec<SocketAddr>,
    storm: Option<FaultGenerator>,
}

impl Faults {
    fn fails_destroy(&mut self, id: SandboxId) -> bool {
        self.indestructible.contains(&id) || take_one(&mut self.destroys_to_fail)
    }
}

#[derive(Debug)]
struct Record {
    listed: Listed,
    /// What runs in it; nothing yet, or never, when it is only listed.
    life: Option<Arc<Life>>,
}

impl Default for FakeEngine {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl FakeEngine {
    /// An engine without images. The clock gives sandboxes their time of birth.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner { clock, runners: watch::Sender::new(Vec::new()), state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Whether the call is done: an engine that lies answers as if it were.
    async fn answers(&self, act: &'static str) -> Result<bool, EngineError> {
        let fault = {
            let mut state = self.state();
            if state.faults.away {
                return Err(unavailable(act));
            }
            let hangs = state.faults.hangs;
            state
                .faults
                .storm
                .as_mut()
                .map_or(if hangs { CallFault::Stall } else { CallFault::Healthy }, FaultGenerator::next_fault)
        };
        match fault {
            CallFault::Healthy => Ok(true),
            CallFault::Lie => Ok(false),
            CallFault::Reset => Err(unavailable(act)),
            CallFault::Stall => {
                sleep(STALL).await;
                Err(EngineError::Timeout { act, limit: STALL })
            }
        }
    }

    /// The record of a sandbox to be, or why there is none.
    fn create(&self, spec: &SandboxSpec) -> Result<(), EngineError> {
        let known = self.0.runners.borrow().iter().any(|runner| runner.id == spec.image);
        let mut state = self.state();
        if state.started.contains(&spec.id) {
            state.violations.push(format!("{} was started twice", spec.id));
            return Err(EngineError::refused("create", "the name is taken"));
        }
        state.started.push(spec.id);
        if state.candidates.refuses() {
            return Err(EngineError::refused("create", "the candidate does not work here"));
        }
        let has_data = match &spec.data {
            Volume::HostFolder(folder) => folder.is_dir(),
            Volume::Claim { .. } => false,
            // Its process 1 does not answer frames of files.
            Volume::Streamed { .. } => true,
        };
        if !has_data {
            state.violations.push(format!("{} was started without its data folder", spec.id));
            return Err(EngineError::refused("create", "the data folder is not there"));
        }
        if !known && !state.images.contains(&spec.image) {
            return Err(EngineError::ImageGone { image: spec.image.clone() });
        }
        let listed =
            Listed { id: spec.id, instance: spec.instance, deadline_unix_s: spec.deadline_unix_s, running: false };
        state.sandboxes.insert(spec.id, Record { listed, life: None });
        Ok(())
    }

    /// Brings the record to life, unless it was destroyed meanwhile.
    fn run(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        let mut state = self.state();
        let State { sandboxes, faults, answers, candidates, .. } = &mut *state;
        let record = sandboxes.get_mut(&spec.id).ok_or_else(|| EngineError::refused("start", "it was destroyed"))?;
        let mut quirks = Quirks {
            breaks: take_one(&mut faults.streams_to_break),
            lost: take_one(&mut faults.exits_to_lose),
            silent: false,
            loading: faults.loading.borrow().then(|| faults.loading.subscribe()),
            memory_bytes: faults.memory_bytes.unwrap_or(1_000_000),
            is_mute: take_one(&mut faults.kernels_to_mute),
        };
        if let Some(storm) = &mut faults.storm {
            quirks = Quirks { breaks: storm.one_in(8), lost: storm.one_in(10), silent: storm.one_in(25), ..quirks };
        }
        let (life, sandbox) = Life::begin(spec, quirks, candidates.answers(answers));
        record.life = Some(life);
        Ok(sandbox)
    }

    fn life(&self, id: SandboxId) -> Option<Arc<Life>> {
        self.state().sandboxes.get(&id)?.life.clone()
    }

    async fn end(&self, act: &'static str, id: SandboxId) -> Result<(), EngineError> {
        let Some(life) = self.life(id) else { return Ok(()) };
        if life.kill().await {
            return Ok(());
        }
        self.state().violations.push(format!("{id} was killed while its output was held and not read"));
        Err(EngineError::Timeout { act, limit: STALL_MAX })
    }
}

#[async_trait]
impl Engine for FakeEngine {
    async fn probe(&self) -> Result<Probe, EngineError> {
        self.answers("probe").await?;
        Ok(Probe {
            engine: "Fake 1".to_owned(),
            api_version: "1".to_owned(),
            runtime: self.state().candidates.selected.as_deref().unwrap_or("none").to_owned(),
            runtime_reason: "on command".to_owned(),
            platform: "test/test".to_owned(),
            cpus: 2,
            memory_bytes: 4 << 30,
            details: Vec::new(),
            warnings: Vec::new(),
        })
    }

    async fn candidates(&self) -> Result<Vec<String>, EngineError> {
        self.answers("probe").await?;
        Ok(self.state().candidates.offered.iter().map(|(name, _)| name.clone()).collect())
    }

    fn select(&self, candidate: Option<&str>) {
        self.state().candidates.selected = candidate.map(str::to_owned);
    }

    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        let mut all = self.state().candidates.isolation_expectations(limits, users);
        // As with pods, nothing that a program reads says whether its processes are limited.
        if !self.faults().forbidden.is_empty() {
            all.push(Expectation::required(Fact::ProcessesRefused, "more processes are not refused"));
        }
        all
    }

    fn forbidden_addresses(&self) -> Vec<SocketAddr> {
        self.faults().forbidden.clone()
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.answers("list images").await?;
        Ok(self.0.runners.borrow().clone())
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        WatchStream::new(self.0.runners.subscribe()).map(drop).chain(stream::pending()).boxed()
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        self.state().attempts += 1;
        self.answers("create").await?;
        let (fault, delay) = {
            let faults = &mut *self.faults();
            match &mut faults.storm {
                Some(storm) => storm.start(),
                None => (faults.starts.pop_front(), faults.start_delay),
            }
        };
        match fault {
            Some(StartFault::Unavailable) => return Err(unavailable("create")),
            Some(StartFault::Refused) => return Err(EngineError::refused("create", "on command")),
            Some(StartFault::ImageGone) => return Err(EngineError::ImageGone { image: spec.image.clone() }),
            Some(StartFault::HalfWay) | None => self.create(spec)?,
        }
        sleep(delay).await;
        let mut fetching = self.faults().fetching.subscribe();
        drop(fetching.wait_for(|images| !images.contains(&spec.image)).await);
        if fault.is_some() { Err(EngineError::refused("start", "on command")) } else { self.run(spec) }
    }

    fn can_limit_cpu(&self) -> bool {
        true
    }

    async fn limit_cpu(&self, id: SandboxId, cpu_millis: u32) -> Result<(), EngineError> {
        self.answers("limit").await?;
        if self.faults().refuse_limits {
            return Err(EngineError::refused("limit", "on command"));
        }
        self.life(id).ok_or(EngineError::Lost { id })?.limit_cpu(cpu_millis);
        Ok(())
    }

    async fn kill(&self, id: SandboxId) -> Result<(), EngineError> {
        if !self.answers("kill").await? {
            return Ok(());
        }
        if self.faults().indestructible.contains(&id) {
            return Err(unavailable("kill"));
        }
        self.end("kill", id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        if !self.answers("remove").await? {
            return Ok(());
        }
        if self.faults().fails_destroy(id) {
            return Err(unavailable("remove"));
        }
        self.end("remove", id).await?;
        self.state().sandboxes.remove(&id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        if !self.answers("list").await? {
            return Ok(Vec::new());
        }
        let listed = |record: &Record| Listed {
            running: record.life.as_ref().map_or(record.listed.running, |life| life.is_running()),
            ..record.listed.clone()
        };
        Ok(self.state().sandboxes.values().map(listed).collect())
    }
}

fn take_one(count: &mut u32) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}

fn unavailable(act: &'static str) -> EngineError {
    EngineError::unavailable(act, io::Error::from(io::ErrorKind::NotConnected))
}
