//! Sentences of the description of `run_code`, or of `run_cell` where that is not listed. They depend on the settings,
//! the caller and the runners. Each is empty where it does not apply, and bounded.

use super::{
    super::{
        View,
        shown::{clipped, seconds, size, thousandths},
    },
    Group, McpOptions,
};
use crate::{
    domain::{Limits, Principal},
    ports::runner::Runner,
    services::browser,
};

/// How much of the runners' labels the description of `run_code` holds, in bytes.
const LANGUAGES_BYTES_MAX: usize = 2500;
/// The same for each list of hosts, credentials, folders and variables.
const ITEMS_BYTES_MAX: usize = 500;

pub(super) fn limits(options: &McpOptions) -> String {
    let Limits { wall_ms, memory_bytes, cpu_millis, .. } = options.limits;
    format!("\n- Limits: {}, {}, {} CPU.", seconds(wall_ms), size(memory_bytes), thousandths(cpu_millis))
}

/// Which hosts can be reached.
pub(super) fn network(hosts: &[String], installs: bool, view: View) -> String {
    let tool = if view.lists(Group::Run) { "@install_packages, or " } else { "" };
    let how = view.names_in(&format!("\n- Packages: {tool}pip install and npm install in programs."));
    let how = if installs { how } else { String::new() };
    match (hosts.is_empty(), installs) {
        (true, true) => return format!("{how}\n- No network."),
        (true, false) => return "\n- No network: nothing can be installed or downloaded.".to_owned(),
        _ => {}
    }
    let hosts = clipped(&hosts.join(", "), ITEMS_BYTES_MAX);
    format!(
        "{how}\n- Network: over HTTP and HTTPS programs reach {hosts}, and nothing else; aiohttp needs trust_env=True."
    )
}

/// How programs call tools of MCP servers.
pub(super) fn calls(offered: bool, view: View) -> String {
    let find = if view.lists(Group::Tools) { "find them by @search_tools; " } else { "" };
    let how =
        format!("\n- Programs call tools of MCP servers: {find}in Python `from mcptools.<server>.<tool> import run`.");
    if offered { view.names_in(&how) } else { String::new() }
}

/// Where programs find the credentials of those hosts.
pub(super) fn secrets(secrets: &[(String, Vec<String>)]) -> String {
    if secrets.is_empty() {
        return String::new();
    }
    let one = |(variable, hosts): &(String, Vec<String>)| format!("{variable} for {}", hosts.join(", "));
    let all = clipped(&secrets.iter().map(one).collect::<Vec<_>>().join("; "), ITEMS_BYTES_MAX);
    format!("\n- Credentials, as variables of the environment: {all}. Elsewhere they are worthless.")
}

/// Where the operator's folders are.
pub(super) fn folders(options: &McpOptions, owner: &Principal) -> String {
    let seen = options.folders.iter().filter(|folder| folder.is_seen_by(Some(owner)));
    let folders: Vec<_> = seen.map(ToString::to_string).collect();
    if folders.is_empty() {
        return String::new();
    }
    let text = format!("\n- Folders of this machine: {}. Copy to /data what is to get a link.", folders.join(", "));
    clipped(&text, ITEMS_BYTES_MAX)
}

/// Which variables a run may set.
pub(super) fn variables(options: &McpOptions) -> String {
    clipped(&format!("May be set: {}.", options.variables), ITEMS_BYTES_MAX)
}

/// What can be run now, by the labels of the images.
pub(super) fn languages<'a>(runners: impl Iterator<Item = &'a Runner>) -> String {
    let one = |runner: &Runner| {
        let version = runner.version.iter().map(|version| format!(" {version}"));
        let about = runner.description.iter().map(|about| format!(": {about}"));
        format!("\n- {}{}", runner.language, version.chain(about).collect::<String>())
    };
    // The browser has a tool of its own.
    let runners = runners.filter(|runner| !browser::is_browser(&runner.language));
    let text = runners.map(one).collect::<Vec<_>>().concat();
    clipped(&text, LANGUAGES_BYTES_MAX)
}
