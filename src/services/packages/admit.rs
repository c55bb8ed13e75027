//! Decides which installations may begin, without touching disk or engine.

use super::{Inner, InstallRequest, PackagesOptions};
use crate::{
    domain::{
        error::{Code, Failure},
        id::Language,
        owner::Principal,
        packages::{REQUESTED_MAX, Requirement, Tool},
    },
    ports::runner::Runner,
    services::tokens::{Started, Tokens},
};

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

impl Inner {
    /// Checks what needs neither disk nor engine.
    pub(super) fn admit(&self, wanted: InstallRequest, count: Count) -> Result<Job, Failure> {
        let off = |why: String| Failure::new(Code::PackagesOff, why);
        let options = self.options.clone().ok_or_else(|| {
            off("Nothing can be installed: the operator has set no index of packages. Use what is there.".to_owned())
        })?;
        if self.stop.is_cancelled() {
            return Err(Failure::stopping());
        }
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
        // Last: one that is refused for another reason does not count.
        let by = count(&self.parts.tokens, &wanted.conversation.owner, &asking.language)?;
        Ok(Job { wanted, tool, more, runner, options, index, by })
    }
}
