//! What the tools need: services, and sizes that bound or describe them.

use std::{sync::Arc, time::Duration};

use super::{Smaller, View, shown};
use crate::{
    domain::{environment::AllowedVariables, limits::Limits, shared_folder::SharedFolder},
    services::{
        check::Checker, files::Files, history::History, packages::Packages, runs::Runs, sessions::Sessions,
        skills::Skills, tools::Tools,
    },
};

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
    pub pictures: Smaller,
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
        self.read_bytes_max.min(shown::OUTPUT_BYTES_MAX as u64)
    }
}
