//! Requests to install: which may begin, without touching disk or engine, and those of programs. `pip install` and `npm
//! install` in a sandbox send one line of JSON each to this service. The answer is lines: the output of the tool, and
//! at the end whether it succeeded.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Inner, InstallRequest, Installed, Packages, PackagesOptions};
use crate::{
    domain::{
        Code, ConversationKey, Failure, Language, Principal,
        packages::{REQUESTED_MAX, Requirement, Tool},
    },
    ports::runner::Runner,
    services::{
        network::PackageRequests,
        tokens::{Started, Tokens},
    },
};

/// Lines that a program has not read yet; more are left out, except the last.
const LINES_MAX: usize = 64;

/// One installation that may begin.
pub(super) struct Job {
    pub(super) wanted: InstallRequest,
    pub(super) tool: Tool,
    pub(super) more: Vec<Requirement>,
    pub(super) runner: Runner,
    pub(super) options: PackagesOptions,
    pub(super) index: String,
    /// It counts as a program of its token while it waits and is made.
    pub(super) by: Option<Started>,
}

/// How an installation counts for its token: [`Tokens::begin`] or [`Tokens::begin_within`].
pub(super) type Count = fn(&Tokens, &Principal, &Language) -> Result<Option<Started>, Failure>;

impl PackagesOptions {
    fn index(&self, tool: Tool) -> Option<&str> {
        match tool {
            Tool::Uv => self.python_index.as_deref(),
            Tool::Npm => self.npm_registry.as_deref(),
        }
    }
}

impl Inner {
    /// The tools that programs of an image can ask for.
    pub(super) fn tools(&self, runner: &Runner) -> impl Iterator<Item = Tool> {
        let options = self.options.as_ref();
        runner.packages.tools().filter(move |tool| options.is_some_and(|options| options.index(*tool).is_some()))
    }

    /// Checks what needs neither disk nor engine.
    pub(super) fn admit(&self, wanted: InstallRequest, count: Count) -> Result<Job, Failure> {
        let off = |why: String| Failure::new(Code::PackagesOff, why);
        let options = self.options.clone().ok_or_else(|| {
            off("Nothing can be installed: the operator has set no index of packages. Use what is there.".to_owned())
        })?;
        self.tasks.check_running()?;
        if !self.parts.network.may_install(&wanted.conversation.owner) {
            let why = "This token may not have packages installed: it names network policies, and not `packages`.";
            return Err(Failure::new(Code::Forbidden, why));
        }
        let asking = self.parts.catalog.get(&wanted.language)?;
        let tool = wanted.tool.or_else(|| self.tools(&asking).next());
        let none = || off(format!("For {} nothing can be installed here; use what is there.", asking.language));
        let tool = tool.ok_or_else(none)?;
        let index = options.index(tool).ok_or_else(none)?.to_owned();
        let installer = asking.packages.installer(tool, &asking.language).ok_or_else(none)?;
        let runner = self.parts.catalog.get(&installer)?;
        if runner.packages.installer(tool, &runner.language).as_ref() != Some(&runner.language) || !runner.channels {
            return Err(off(format!("The image of {installer} does not install by {}.", tool.word())));
        }
        if wanted.packages.is_empty() || wanted.packages.len() > REQUESTED_MAX {
            return Err(Failure::argument("packages", format!("name 1 to {REQUESTED_MAX} packages")));
        }
        let more = wanted.packages.iter().map(|text| Requirement::parse(tool, text)).collect::<Result<_, _>>()?;
        self.parts.peers.check(&wanted.conversation)?;
        // Last: one that is refused for another reason does not count.
        let by = count(&self.parts.tokens, &wanted.conversation.owner, &asking.language)?;
        Ok(Job { wanted, tool, more, runner, options, index, by })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    tool: String,
    packages: Vec<String>,
}

/// A line of the answer; the last one says whether it was installed.
fn line(text: &str, done: Option<bool>) -> Bytes {
    let line = match done {
        None => json!({"text": text}),
        Some(done) => json!({"text": text, "done": done}),
    };
    format!("{line}\n").into()
}

impl PackageRequests for Inner {
    fn variables(&self, language: &Language) -> Vec<(&'static str, String)> {
        let Some(runner) = self.parts.catalog.find(language) else { return Vec::new() };
        let tools: Vec<Tool> = self.tools(&runner).collect();
        let Some(options) = self.options.as_ref().filter(|_| !tools.is_empty()) else { return Vec::new() };
        let words: Vec<_> = tools.iter().map(|tool| tool.word()).collect();
        // For those that a policy lets reach the index themselves.
        let index = |tool: &Tool| {
            let name = match tool {
                Tool::Uv => "UV_DEFAULT_INDEX",
                Tool::Npm => "npm_config_registry",
            };
            Some((name, options.index(*tool)?.to_owned()))
        };
        [("SANDBOX_PACKAGES", words.join(","))].into_iter().chain(tools.iter().filter_map(index)).collect()
    }

    fn answer(
        self: Arc<Self>,
        conversation: &ConversationKey,
        language: &Language,
        request: Bytes,
    ) -> BoxStream<'static, Bytes> {
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let (conversation, language) = (conversation.clone(), language.clone());
        let packages = Packages(self);
        tokio::spawn(async move {
            let progress = sender.clone();
            let install = async {
                let Request { tool, packages: names } = serde_json::from_slice(&request)
                    .map_err(|_| Failure::argument("packages", "the request is not of the form that is described"))?;
                let tool = Tool::parse(&tool).ok_or_else(|| Failure::argument("tool", "it is uv or npm"))?;
                let wanted = InstallRequest { conversation, language, tool: Some(tool), packages: names };
                // The program that asks waits for it.
                let tell = move |words: &str| drop(progress.try_send(line(words, None)));
                packages.install_as(wanted, Tokens::begin_within, tell).await
            };
            let last = match install.await {
                Ok(Installed { packages, .. }) => line(&format!("Installed {}", packages.join(" ")), Some(true)),
                Err(failure) => line(&format!("ERROR: {}", failure.message), Some(false)),
            };
            drop(sender.send(last).await);
        });
        ReceiverStream::new(lines).boxed()
    }
}
