//! What programs import to call tools: a module for each tool, made from its schema by a program of ours.
//!
//! Schemas are untrusted, and the code generators were not written for hostile ones. So they run in a separate sandbox,
//! without a network and without any user's data. The modules are cached while the definitions stay the same, and reach
//! a sandbox over its channels when a program imports them.

use std::{collections::HashMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    sync::{Mutex as AsyncMutex, Semaphore},
    time::Instant,
};
use tracing::warn;

use super::{
    Inner,
    server::{Defined, Definitions, ServerHandle},
};
use crate::{
    domain::{
        Code, Ended, Failure, Language, Principal,
        text::shown,
        tools::{ServerName, ToolServer},
    },
    services::{
        runs::{AuxiliaryProgram, execute_auxiliary, staged},
        shared_parts::SharedParts,
        tasks::Tasks,
    },
};

/// Servers whose modules are kept, in each language.
const KEPT_MAX: usize = 100;
/// Sandboxes that make modules at once: they are outside of the queue of runs.
const AT_ONCE_MAX: usize = 2;
/// How long after a failure modules of the same definitions are not made again: the program may have taken all of its
/// time.
const FAILED: Duration = Duration::from_mins(5);
/// The longest module, and the longest line that the program prints, in bytes.
const MODULE_BYTES_MAX: usize = 1 << 20;
/// What the names of modules begin with in programs.
const PACKAGE: &str = "mcptools.";

/// A language that modules are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, schemars::JsonSchema, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModuleLanguage {
    Python,
    // JavaScript too. As a description it would make a `oneOf` of the schema, which some APIs of models refuse.
    Typescript,
}

impl ModuleLanguage {
    /// The runner that makes them, and the program for it.
    fn generator(self) -> (&'static str, &'static str) {
        match self {
            Self::Python => ("python", include_str!("generate.py")),
            Self::Typescript => ("javascript", include_str!("generate.js")),
        }
    }
}

/// The source of one module.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Source {
    pub text: String,
    /// Other modules are in it.
    #[serde(default)]
    pub package: bool,
    /// How it is called, in one line.
    #[serde(default, skip_serializing)]
    pub signature: String,
    /// Its types alone, where the text has none.
    #[serde(default, skip_serializing)]
    pub types: Option<String>,
}

/// A line of the generator.
#[derive(Deserialize)]
struct Line {
    /// Empty for the server's own.
    module: String,
    #[serde(flatten)]
    source: Source,
}

type FindTool = for<'a> fn(&'a Definitions, &str) -> Option<&'a Arc<Defined>>;

type GeneratedModules = Arc<HashMap<String, Source>>;

/// The modules, or when the program failed to make them.
type Made = Result<GeneratedModules, Instant>;

/// Locked while they are made.
type Cell = Arc<AsyncMutex<Option<Made>>>;

/// The modules of servers: of each the newest, so that one that changes its tools pushes out no other's.
pub(super) struct Modules {
    made: Mutex<HashMap<(ServerName, ModuleLanguage), (String, Cell)>>,
    at_once: Arc<Semaphore>,
    tasks: Tasks,
}

impl Default for Modules {
    fn default() -> Self {
        let at_once = Arc::new(Semaphore::new(AT_ONCE_MAX));
        Self { made: Mutex::default(), at_once, tasks: Tasks::default() }
    }
}

impl Modules {
    /// The cell of definitions with this hash.
    fn cell(&self, server: &ServerName, language: ModuleLanguage, hash: &str) -> Cell {
        let key = (server.clone(), language);
        let mut all = self.made.lock();
        if all.len() >= KEPT_MAX && !all.contains_key(&key) {
            // One that is made now is held by its task.
            all.retain(|_, (_, cell)| Arc::strong_count(cell) > 1);
        }
        let (of, cell) = all.entry(key).or_default();
        let is_over = cell.try_lock().is_ok_and(|made| matches!(&*made, Some(Err(at)) if at.elapsed() >= FAILED));
        if of.as_str() != hash || is_over {
            (*of, *cell) = (hash.to_owned(), Cell::default());
        }
        Arc::clone(cell)
    }

    /// Ends the programs that make modules.
    pub(super) async fn stop(&self) {
        self.tasks.end().await;
    }
}

impl Inner {
    /// A module by the name that a program imports: `mcptools.<server>` or `mcptools.<server>.<tool>`.
    pub(super) async fn module(
        self: &Arc<Self>,
        who: &Principal,
        name: &str,
        language: ModuleLanguage,
    ) -> Result<Source, Failure> {
        let path = name.replace('/', ".");
        let path = path.strip_prefix(PACKAGE).unwrap_or(&path);
        let (server, tool) = path.split_once('.').map_or((path, None), |(server, tool)| (server, Some(tool)));
        self.source(Definitions::imported, who, (server, tool), language).await
    }

    pub(super) async fn source(
        self: &Arc<Self>,
        find: FindTool,
        who: &Principal,
        (server, tool): (&str, Option<&str>),
        language: ModuleLanguage,
    ) -> Result<Source, Failure> {
        let live = self.server(who, server)?;
        let definitions = live.definitions().await.map_err(|error| unavailable(&live, &error.to_string()))?;
        let module = match tool {
            None => String::new(),
            Some(tool) => find(&definitions, tool).ok_or_else(|| no_tool(server, tool))?.module.clone(),
        };
        let made = self.made(&live.server, &definitions, language).await?;
        made.get(&module).cloned().ok_or_else(|| no_tool(server, &module))
    }

    /// All modules of a server, which are made the first time. That goes on when the caller goes away: a start is never
    /// aborted, and the next caller finds the modules.
    pub(super) async fn made(
        self: &Arc<Self>,
        server: &Arc<ToolServer>,
        definitions: &Arc<Definitions>,
        language: ModuleLanguage,
    ) -> Result<GeneratedModules, Failure> {
        let mut cell = self.modules.cell(&server.name, language, &definitions.hash).lock_owned().await;
        if let Some(made) = &*cell {
            return made.clone().map_err(|_| failed());
        }
        // Not in the task: a server that changes its tools at each call would leave a task behind for each.
        let one = Arc::clone(&self.modules.at_once).acquire_owned().await.map_err(|_| failed())?;
        let (inner, server, definitions) = (Arc::clone(self), Arc::clone(server), Arc::clone(definitions));
        let make = async move {
            let made = inner.make(&server, &definitions, language).await;
            drop(one);
            let made = made?;
            *cell = Some(made.clone());
            made.map_err(|_| failed())
        };
        self.modules.tasks.spawn(make).await.map_err(|_| failed())?
    }

    async fn make(
        &self,
        server: &ToolServer,
        definitions: &Definitions,
        language: ModuleLanguage,
    ) -> Result<Made, Failure> {
        let SharedParts { sandboxes, catalog, isolation, .. } = &self.parts.shared;
        let (language, program) = language.generator();
        let language: Language = language.parse().map_err(|_| failed())?;
        let runner = catalog.get(&language)?;
        let verified = self.modules.tasks.stop.run_until_cancelled(isolation.wait(&runner.image)).await;
        verified.ok_or_else(Failure::stopping)??;
        let one = |defined: &Arc<Defined>| {
            let tool = &defined.tool;
            json!({"name": tool.name, "module": defined.module, "title": tool.title, "description": tool.description,
                "input": tool.input, "output": tool.output})
        };
        let tools: Vec<_> = definitions.tools.iter().map(one).collect();
        let order = json!({"server": server.name, "description": server.text.description, "tools": tools});
        let staging = staged(&self.parts.shared, &Principal::self_test()).await?;
        let auxiliary = AuxiliaryProgram {
            runner: &runner,
            data: staging.data(),
            limits: self.parts.generator_limits,
            code: Bytes::from_static(program.as_bytes()),
            stdin: order.to_string().into(),
            channels: None,
            by: None,
            cancel: self.modules.tasks.stop.child_token(),
        };
        // It writes nothing to its folder.
        let (outcome, [stdout, stderr]) = execute_auxiliary(sandboxes, auxiliary, pending(), &|_| {}).await?;
        if outcome.ended == Ended::Cancelled {
            return Err(Failure::stopping());
        }
        if outcome.ended != (Ended::Exited { code: 0 }) {
            let why: String = stderr.chars().take(2000).collect();
            warn!(server = %server.name, how = ?outcome.ended, why = %why.escape_debug(), "modules were not made");
            return Ok(Err(Instant::now()));
        }
        let lines = stdout.lines().filter(|line| line.len() <= MODULE_BYTES_MAX);
        let made: HashMap<_, _> = lines
            .filter_map(|line| serde_json::from_str::<Line>(line).ok())
            .map(|Line { module, mut source }| {
                source.package = module.is_empty();
                (module, source)
            })
            .collect();
        if made.len() != definitions.tools.len() + 1 {
            warn!(server = %server.name, made = made.len(), tools = definitions.tools.len(), "modules are missing");
        }
        Ok(Ok(Arc::new(made)))
    }
}

fn no_tool(server: &str, tool: &str) -> Failure {
    let why = format!("`{}` has no tool `{}`; search for one.", shown(server), shown(tool));
    Failure::new(Code::NotFound, why)
}

pub(super) fn unavailable(live: &ServerHandle, why: &str) -> Failure {
    let why: String = why.chars().filter(|c| !c.is_control()).take(400).collect();
    Failure::new(Code::ToolUnavailable, format!("The tools of `{}` are not known: {why}.", live.server.name))
}

fn failed() -> Failure {
    let why = "The modules of the tool server could not be made; the server's log says more. Call its tools by \
               mcptools.call(server, tool, arguments).";
    Failure::new(Code::ToolUnavailable, why)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_has_one_set_of_modules_and_a_failure_lasts_a_while() {
        let modules = Modules::default();
        let [a, b] = ["a", "b"].map(|name| ServerName::parse(name).expect("a name"));
        let cell = |server: &ServerName, hash: &str| modules.cell(server, ModuleLanguage::Python, hash);
        let (first, other) = (cell(&a, "1"), cell(&b, "1"));
        let made = |cell: &Cell, made: Made| *cell.try_lock().expect("no task") = Some(made);
        let is_empty = |cell: &Cell| cell.try_lock().expect("no task").is_none();
        made(&first, Err(Instant::now()));
        assert!(Arc::ptr_eq(&first, &cell(&a, "1")));
        advance(FAILED).await;
        let second = cell(&a, "1");
        assert!(!Arc::ptr_eq(&first, &second) && is_empty(&second));
        made(&second, Ok(GeneratedModules::default()));
        advance(FAILED).await;
        assert!(Arc::ptr_eq(&second, &cell(&a, "1")));
        for hash in 0..1000 {
            assert!(is_empty(&cell(&a, &hash.to_string())));
        }
        assert!(Arc::ptr_eq(&other, &cell(&b, "1")));
        assert_eq!(modules.made.lock().len(), 2);
    }
}
