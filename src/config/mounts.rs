//! Folders that sandboxes see beside `/data`: those of the engine's host, in a section whose keys the operator chooses,
//! and skills.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{Config, ConfigError, any_keys, section};
use crate::domain::{
    shared_folder::{SharedFolder, SharedFolderError},
    skills::SkillSource,
};

any_keys! {
    /// A folder of the engine's host that programs see at /mnt/<name>, such as `/srv/docs`; with `:rw` after it they
    /// may change it, as the user of SANDBOX_ENGINE__RUNNER_UID. Programs of every owner see it, or of those named
    /// after the mode: `/srv/docs:ro@ann,bob`.
    MOUNTS = "mounts",
}

section! {
    /// Skills: folders of instructions and scripts that programs and models read.
    pub struct Skills("skills") {
        /// The folder of skills: `public/` for every token, which the operator fills, and a folder for each owner,
        /// which uploads fill. Programs see them read-only at /skills/public and /skills/user. Empty: no skills.
        root: String = String::new(),
        /// This folder as the host of the engine sees it. Empty: found as with SANDBOX_ENGINE__HOST_ROOT.
        host_root: String = String::new(),
    }
}

impl Config {
    /// The folder of skills; `None` where there are none.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn skills_root(&self) -> Result<Option<PathBuf>, ConfigError> {
        let skills = skills_root(Path::new(&self.skills.root), &self.root)?;
        if let Some(path) = &skills {
            // What is mounted are the folders in it.
            let public = path.join(SkillSource::Public.folder());
            SharedFolder::check_replaceable(&public, &self.shared_folders()?).map_err(skills_error)?;
        }
        Ok(skills)
    }

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

/// Checks the folder of skills, for the process that has no other setting too.
///
/// # Errors
/// A sentence that names the setting.
pub fn skills_root(skills: &Path, root: &Path) -> Result<Option<PathBuf>, ConfigError> {
    if skills.as_os_str().is_empty() {
        return Ok(None);
    }
    let folder = SharedFolder::parse("skills", &skills.to_string_lossy());
    folder.and_then(|folder| folder.apart_from(root)).map(|folder| Some(folder.source)).map_err(skills_error)
}

fn skills_error(why: SharedFolderError) -> ConfigError {
    ConfigError(format!("SANDBOX_SKILLS__ROOT: {why}."))
}

fn folders<'a>(
    mounts: impl Iterator<Item = (&'a String, &'a String)>,
    root: &Path,
) -> Result<Vec<SharedFolder>, ConfigError> {
    let refused =
        |name: &str, why: SharedFolderError| ConfigError(format!("SANDBOX_MOUNTS__{}: {why}.", name.to_uppercase()));
    let one = |(name, text): (&String, &String)| {
        let folder = SharedFolder::parse(name, text).and_then(|folder| folder.apart_from(root));
        folder.map_err(|why| refused(name, why))
    };
    let all = mounts.filter(|(_, text)| !text.is_empty()).map(one).collect::<Result<Vec<_>, _>>()?;
    for folder in &all {
        SharedFolder::check_replaceable(&folder.source, &all).map_err(|why| refused(&folder.name, why))?;
    }
    Ok(all)
}
