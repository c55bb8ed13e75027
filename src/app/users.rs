//! Chooses the users that programs run as on this machine.

use std::fs;

use crate::{
    config::{Config, ConfigError},
    domain::users::{DEFAULT_RANGE, RunnerUsers, UserRange},
};

/// Ids of users and groups in the namespace of this process and in that of its parent, which usually is the host's
/// (`user_namespaces(7)`).
const ID_MAPS: [&str; 2] = ["/proc/self/uid_map", "/proc/self/gid_map"];

/// The users that programs run as.
///
/// # Errors
/// When the settings name users that this process cannot hand files to.
pub(super) fn runner_users(config: &Config) -> Result<RunnerUsers, ConfigError> {
    let is_root = rustix::process::geteuid().is_root();
    choose(config, is_root, || ID_MAPS.iter().all(|map| fs::read_to_string(map).is_ok_and(|map| is_whole(&map))))
}

fn choose(config: &Config, is_root: bool, has_all_ids: impl FnOnce() -> bool) -> Result<RunnerUsers, ConfigError> {
    let usual = config.engine.runner_uid;
    // Shared folders belong to users of the host.
    let suits = || Ok::<_, ConfigError>(!config.engine.is_kubernetes() && config.shared_folders()?.is_empty());
    Ok(match config.engine.user_range()? {
        UserRange::Is(_) if !is_root => {
            let why = "SANDBOX_ENGINE__RUNNER_UIDS needs a server that is root, since only root can hand files to \
                       other users: run it as root, or unset it.";
            return Err(ConfigError(why.to_owned()));
        }
        UserRange::Is(range) => RunnerUsers::each(usual, range),
        UserRange::Automatic if is_root && suits()? && has_all_ids() => RunnerUsers::each(usual, DEFAULT_RANGE),
        UserRange::Automatic | UserRange::Off => RunnerUsers::one(usual),
    })
}

/// Whether all ids are those of the host. A user's own engine and some containers have fewer.
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Sources};

    fn chosen(more: &[(&str, &str)], is_root: bool, has_all_ids: bool) -> Result<RunnerUsers, String> {
        let usual = [("MCP_API_TOKEN", "0123456789abcdef-of-the-tests"), ("FILE_SECRET", "fedcba9876543210-of-tests")];
        let pairs = usual.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let config = config::load(&Sources::environment_only(pairs)).expect("settings");
        choose(&config, is_root, || has_all_ids).map_err(|error| error.0)
    }

    #[test]
    fn conversations_have_users_where_the_server_can_give_them_some() {
        let (one, each) = (RunnerUsers::one(1000), RunnerUsers::each(1000, DEFAULT_RANGE));
        assert_eq!(chosen(&[], true, true), Ok(each));
        assert_eq!(chosen(&[], false, true), Ok(one));
        assert_eq!(chosen(&[], true, false), Ok(one));
        assert_eq!(chosen(&[("SANDBOX_MOUNTS__DOCS", "/srv/docs")], true, true), Ok(one));
        assert_eq!(chosen(&[("SANDBOX_ENGINE__RUNNER_UIDS", "off")], true, true), Ok(one));
        let range = [("SANDBOX_ENGINE__RUNNER_UIDS", "5000-5999"), ("SANDBOX_MOUNTS__DOCS", "/srv/docs")];
        assert_eq!(chosen(&range, true, false), Ok(RunnerUsers::each(1000, 5000..=5999)));
        let refused = chosen(&range, false, true).expect_err("refused");
        assert!(refused.starts_with("SANDBOX_ENGINE__RUNNER_UIDS needs a server that is root"), "{refused}");
    }

    #[test]
    fn all_ids_are_there_only_outside_of_user_namespaces() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("         0       1000          1\n         1     100000      65536\n"));
        assert!(!is_whole("         0     100000      65536\n"));
        assert!(!is_whole(""));
    }
}
