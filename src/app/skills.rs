//! Builds the service of skills, from the settings.

use std::sync::Arc;

use super::StartError;
use crate::{
    adapters::storage::DiskSkills,
    config::Config,
    domain::clock::{Clock as _, SystemClock},
    services::skills::Skills,
};

/// The skills, where the settings name a folder for them. Checked when the settings were loaded.
///
/// # Errors
/// When the folder cannot be used.
pub(super) fn service(config: &Config) -> Result<Skills, StartError> {
    let root = config.skills_root().ok().flatten();
    let store = root.map(|root| DiskSkills::at(&root, SystemClock.unix_s()).map(|store| Arc::new(store) as _));
    Ok(Skills::new(store.transpose()?))
}
