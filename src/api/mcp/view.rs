//! What a client sees of the tools: which groups, under which names, in which form. A setting, which the query of
//! `/mcp` overrides; a session keeps that of its first request. Also what the tools need: services, and sizes that
//! bound or describe them.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{Downscaler, describe::ToolName, shown::OUTPUT_BYTES_MAX};
use crate::{
    domain::{AllowedVariables, ConversationId, Limits, shared_folder::SharedFolder, words::words},
    services::{
        check::Checker, files::Files, history::History, packages::Packages, runs::Runs, sessions::Sessions,
        skills::Skills, tools::Tools,
    },
};

words! {
    /// A group of tools, which is listed or not as a whole. Every tool can be called, listed or not.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Group: word {
        Run = "run",
        Files = "files",
        /// Listed only where some language has a kernel.
        Session = "session",
        /// With CodeRunner's names.
        CodeRunner = "coderunner",
        /// With ipybox's names.
        Ipybox = "ipybox",
        /// Listed only where there is a browser that the caller can use.
        Web = "web",
        /// With CodeRunner's names; listed only where there are skills.
        Skills = "skills",
        /// Listed only where the caller's programs may call tools of MCP servers.
        Tools = "tools",
        /// Not listed by default: it is of use to few conversations.
        Check = "check",
    }
}

/// What a client sees of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch by itself")]
pub struct View {
    /// Names with a dot instead of an underscore.
    pub dotted: bool,
    /// Results also as `structuredContent`, with an output schema.
    pub structured: bool,
    /// Results with a `resource_link` for each file, beside its link in the text.
    pub links: bool,
    /// Results with pictures as images, beside their links in the text.
    pub images: bool,
    /// Whether each group is listed, in the order of [`Group`].
    pub groups: [bool; Group::ALL.len()],
}

impl Default for View {
    fn default() -> Self {
        Self {
            dotted: false,
            structured: false,
            links: true,
            images: true,
            groups: [true, true, true, false, false, true, true, true, false],
        }
    }
}

impl View {
    /// With the groups of a list such as `run,files`.
    ///
    /// # Errors
    /// The sentence for a list that is empty or names an unknown group.
    pub fn with_groups(self, list: &str) -> Result<Self, String> {
        let mut view = Self { groups: [false; Group::ALL.len()], ..self };
        for name in list.split(',').map(str::trim) {
            let Some(group) = Group::parse(name) else {
                let known = Group::ALL.map(Group::word).join(", ");
                return Err(format!("it must be a list of tool groups, comma separated, out of: {known}"));
            };
            view.groups[group as usize] = true;
        }
        Ok(view)
    }

    /// As the query of a request changes it. Unknown parameters are ignored.
    ///
    /// # Errors
    /// The sentence for a value that is not one of a parameter's.
    pub fn with_query(mut self, query: &str) -> Result<Self, String> {
        let switch = |name: &str, value: &str, off: &str, on: &str| match value {
            _ if value == off => Ok(false),
            _ if value == on => Ok(true),
            _ => Err(format!("{name}: it must be `{off}` or `{on}`")),
        };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "names" => self.dotted = switch(name, value, "underscore", "dotted")?,
                "structured" => self.structured = switch(name, value, "off", "on")?,
                "links" => self.links = switch(name, value, "off", "on")?,
                "images" => self.images = switch(name, value, "off", "on")?,
                "tools" => {
                    let list = value.replace("%2C", ",").replace("%2c", ",");
                    self = self.with_groups(&list).map_err(|why| format!("tools: {why}"))?;
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// CodeRunner's tools include those of skills.
    pub(super) fn lists(self, group: Group) -> bool {
        let with_coderunner = group == Group::Skills && self.groups[Group::CodeRunner as usize];
        self.groups[group as usize] || with_coderunner
    }

    /// A tool's name as this client's list has it.
    pub(super) fn name(self, tool: ToolName) -> &'static str {
        if self.dotted { tool.dotted() } else { tool.underscored() }
    }

    /// A text in which `@` stands for what the names of tools begin with.
    pub(super) fn names_in(self, text: &str) -> String {
        text.replace('@', if self.dotted { "sandbox." } else { "sandbox_" })
    }
}

/// The parts of the surface.
#[derive(Clone)]
pub struct McpParts {
    /// Runs programs, and remembers them.
    pub runs: Runs,
    /// Runs that are no longer in memory.
    pub history: Arc<History>,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Sandboxes that keep an interpreter.
    pub sessions: Sessions,
    /// Installs packages.
    pub packages: Packages,
    pub skills: Skills,
    /// Tools of MCP servers, which programs may call.
    pub tools: Tools,
    /// Formats programs.
    pub checker: Checker,
    /// Makes pictures smaller that are too large for an answer.
    pub pictures: Downscaler,
    /// What is shown.
    pub options: McpOptions,
}

/// Sizes that bound or describe the tools.
#[derive(Debug, Clone)]
pub struct McpOptions {
    /// The largest picture that is shown in a result, in bytes.
    pub image_bytes_max: u64,
    /// How many pictures one result shows.
    pub images_max: usize,
    /// How much one call of `read_file` reads at most, in bytes.
    pub read_bytes_max: u64,
    /// The largest file that `write_file` writes, in bytes.
    pub write_bytes_max: u64,
    /// What one run may use, for the descriptions.
    pub limits: Limits,
    /// How long a call waits for its run by default.
    pub wait_default: Duration,
    /// Folders that programs see beside /data, for the descriptions.
    pub folders: Vec<SharedFolder>,
    /// The variables that a run may set, for the descriptions.
    pub variables: AllowedVariables,
    /// What clients see if they choose nothing.
    pub view: View,
}

impl McpOptions {
    /// How much one call of `read_file` reads by default, in bytes.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes_max.min(OUTPUT_BYTES_MAX as u64)
    }
}

/// What the transport knows of a request's client. Among the extensions of the request's head.
#[derive(Debug, Clone)]
pub struct Client {
    pub view: View,
    /// It takes one answer and no notifications before it.
    pub one_answer: bool,
    /// Ends with its session, where it has one.
    pub session: Option<CancellationToken>,
    /// That of its session, for tools that name none.
    pub conversation: Option<ConversationId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_overrides_the_settings_and_wrong_values_are_named() {
        let query = "names=dotted&structured=on&links=off&images=off&tools=files&more=1";
        let seen = View::default().with_query(query).expect("a view");
        assert_eq!(
            seen,
            View {
                dotted: true,
                structured: true,
                links: false,
                images: false,
                groups: [false, true, false, false, false, false, false, false, false]
            }
        );
        let query = "names=underscore&structured=off&links=on&images=on&tools=run%2Cfiles,session,web,skills,tools";
        assert_eq!(seen.with_query(query), Ok(View::default()));
        let wrong = [
            ("names=x", "names: "),
            ("structured=", "structured: "),
            ("links=no", "links: "),
            ("images=0", "images: "),
            ("tools=run,shell", "tools: "),
        ];
        for (query, part) in wrong {
            assert!(View::default().with_query(query).is_err_and(|why| why.starts_with(part)), "{query}");
        }
        assert!(View::default().with_groups("").is_err());
        assert_eq!(View::default().names_in("see @get_run"), "see sandbox_get_run");
    }
}
