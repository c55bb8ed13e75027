//! The limit on open descriptors of this process: raised at start to what the system allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Descriptors of a run or a standby: its streams, connections to the engine, its folder and the steps on its files.
const OF_RUN: u64 = 12;
/// Descriptors of the server beside connections and runs: files, logs, timers, the storage's threads.
const OF_SERVER: u64 = 128;

/// Raises the soft limit to the hard one. The number of descriptors that may be open.
pub fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    (if raised { maximum } else { current }).unwrap_or(u64::MAX)
}

/// Says what to do when so many are fewer than the settings need with this number of programs at once.
pub fn shortage(limit: u64, config: &Config, slots: usize) -> Option<String> {
    let listeners = 1 + u64::from(config.metrics.addr().is_some());
    let runs = (slots as u64).saturating_add(config.standby.total_max.into());
    let connections = listeners * u64::from(config.server.connections_max);
    let needed = (connections + OF_SERVER).saturating_add(OF_RUN.saturating_mul(runs));
    (limit < needed).then(|| {
        format!(
            "this process may open {limit} descriptors, but the settings need about {needed}: raise the hard limit \
             (`ulimit -Hn`, LimitNOFILE= of a unit, --ulimit nofile= of a container), or lower \
             SANDBOX_SERVER__CONNECTIONS_MAX"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one_and_a_shortage_is_named() {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let low = Rlimit { current: current.map(|soft| soft.min(512)), maximum };
        setrlimit(Resource::Nofile, low).expect("a lower limit");
        assert_eq!(raise(), maximum.unwrap_or(u64::MAX));
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
        let config = Config::default();
        let needed = 1024 + OF_RUN * (4 + 12) + OF_SERVER;
        assert_eq!(shortage(needed, &config, 4), None);
        let named = shortage(needed - 1, &config, 4).expect("one too few");
        assert!(named.contains("SANDBOX_SERVER__CONNECTIONS_MAX"), "{named}");
        assert_eq!(shortage(u64::MAX, &config, usize::MAX), None);
    }
}
