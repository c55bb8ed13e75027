//! The section whose keys the operator chooses: folders of the engine's host that sandboxes see.

use std::{collections::BTreeMap, path::Path};

use super::{Config, ConfigError, Setting};
use crate::domain::shared_folder::SharedFolder;

/// The key of such a section.
pub(super) const ANY_KEY: &str = "<name>";

/// The folders of the engine's host that sandboxes see.
pub(super) const MOUNTS: Setting = Setting {
    section: "mounts",
    key: ANY_KEY,
    default: "",
    doc: "A folder of the engine's host that programs see at /mnt/<name>, such as `/srv/docs`; with `:rw` after it \
          they may change it, as the user of SANDBOX_ENGINE__RUNNER_UID. Every program of every token sees it.",
};

impl Config {
    /// The folders of the engine's host that sandboxes see.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn shared_folders(&self) -> Result<Vec<SharedFolder>, ConfigError> {
        folders(self.mounts.iter(), &self.root)
    }
}

/// The shared folders that an environment names, for the process that has no other setting.
///
/// # Errors
/// A sentence that names the setting.
pub fn shared_folders(environment: &[(String, String)], root: &Path) -> Result<Vec<SharedFolder>, ConfigError> {
    let named = environment.iter().filter(|(name, _)| MOUNTS.has_name(name));
    let mounts: BTreeMap<_, _> =
        named.map(|(name, text)| (MOUNTS.path(name).replacen("mounts.", "", 1), text.clone())).collect();
    folders(mounts.iter(), root)
}

fn folders<'a>(
    mounts: impl Iterator<Item = (&'a String, &'a String)>,
    root: &Path,
) -> Result<Vec<SharedFolder>, ConfigError> {
    let one = |(name, text): (&String, &String)| {
        let folder = SharedFolder::parse(name, text);
        let folder = folder.and_then(|folder| folder.apart_from(root).map(|()| folder));
        folder.map_err(|why| ConfigError(format!("SANDBOX_MOUNTS__{}: {why}.", name.to_uppercase())))
    };
    mounts.filter(|(_, text)| !text.is_empty()).map(one).collect()
}
