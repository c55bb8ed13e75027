//! Checks of settings that are allowed and may still be wrong here: weak secrets, and the limit on descriptors.

use super::finding::Findings;
use crate::{app::descriptors, config::Config};

/// Whether the secrets look random.
pub(super) fn secrets(config: &Config, findings: &mut Findings) {
    for name in config.weak_secrets() {
        let fix = "make another with `openssl rand -hex 32`, and change it where it is used";
        findings.warn("secrets", format!("{name} is probably not random, so it can be guessed"), fix);
    }
}

/// Whether a process with this limit on descriptors can hold what the settings allow.
pub(super) fn open_descriptors(limit: u64, config: &Config, slots: usize, findings: &mut Findings) {
    match descriptors::shortage(limit, config, slots) {
        Some(why) => findings.sentence(super::finding::Level::Warn, "descriptors", &why),
        None => findings.ok("descriptors", format!("{limit} may be open")),
    }
}

/// Whether the shared folders exist. A process in a container does not see them.
pub(super) fn shared_folders(config: &Config, in_container: bool, findings: &mut Findings) {
    let folders = config.shared_folders().unwrap_or_default();
    for folder in folders.into_iter().filter(|_| !in_container) {
        let source = folder.source.display();
        if folder.source.is_dir() {
            findings.ok("mounts", format!("{source} is {folder}"));
        } else {
            let fix = "create it, or correct SANDBOX_MOUNTS__…; until then no program runs";
            findings.warn("mounts", format!("{source} is not a folder of this machine"), fix);
        }
    }
}

/// Whether the values of the secrets for programs, and the roots for opened TLS and for packages, can be read.
pub(super) fn secrets_of_programs(config: &Config, findings: &mut Findings) {
    let roots = [config.more_roots().map(|_| ()), config.package_roots().map(|_| ())];
    for read in [config.secrets().map(|_| ())].into_iter().chain(roots) {
        if let Err(why) = read {
            findings.sentence(super::finding::Level::Fail, "network", &why.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Sources, load};

    #[test]
    fn weak_secrets_and_few_descriptors_are_warned_of_with_a_fix() {
        let pairs = [
            ("MCP_API_TOKEN", "0123456789abcdef"),
            ("FILE_SECRET", "9b1f64c07de2a853"),
            ("SANDBOX_MOUNTS__GONE", "/nowhere/at/all"),
            ("SANDBOX_OPENED__CA_FILE", "/nowhere/roots.pem"),
            ("SANDBOX_PACKAGES__CA_FILE", "/nowhere/index.pem"),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = load(&Sources::environment_only(pairs.into())).expect("settings");
        let mut findings = Findings::default();
        secrets(&config, &mut findings);
        shared_folders(&config, false, &mut findings);
        open_descriptors(1 << 20, &config, 4, &mut findings);
        open_descriptors(1024, &config, 4, &mut findings);
        let text = findings.text();
        assert!(text.contains("MCP_API_TOKEN") && !text.contains("FILE_SECRET"), "{text}");
        assert!(text.contains("1048576 may be open") && text.contains("SANDBOX_SERVER__CONNECTIONS_MAX"), "{text}");
        assert!(text.contains("/nowhere/at/all is not a folder"), "{text}");
        assert!(!findings.failed(), "{text}");
        secrets_of_programs(&config, &mut findings);
        let text = findings.text();
        assert!(findings.failed() && text.contains("SANDBOX_OPENED__CA_FILE /nowhere/roots.pem"), "{text}");
        assert!(text.contains("SANDBOX_PACKAGES__CA_FILE /nowhere/index.pem"), "{text}");
    }
}
