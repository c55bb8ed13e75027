//! The settings of packages that follow from several: whether they are on, and which hosts their indexes are at.

use http::{Uri, uri::Scheme};

use super::{Config, ConfigError, section};
use crate::domain::{
    network::{Policy, PolicyText},
    text::items,
};

section! {
    /// Packages that conversations have installed.
    pub struct Packages("packages") {
        /// The index for Python packages, such as `https://pypi.org/simple` (with `HOSTS` set to
        /// files.pythonhosted.org). Empty: Python packages cannot be installed.
        python_index: String = String::new(),
        /// The registry for npm packages, such as `https://registry.npmjs.org`. Empty: npm packages cannot be
        /// installed.
        npm_registry: String = String::new(),
        /// Additional hosts from which these indexes have files downloaded, comma separated.
        hosts: String = String::new(),
        /// Addresses outside the public internet that all of these hosts may resolve to, comma separated.
        addresses: String = String::new(),
        /// A PEM file of certificate authorities that are trusted for indexes, in addition to those of the images.
        ca_file: String = String::new(),
        /// Whether packages may run their own programs while they are installed: builds from source, and npm's scripts.
        /// true or false.
        builds: bool = false,
        /// How long an installation may take, in seconds.
        install_s: u64 = 300 => 1..=3600,
        /// Memory of the sandbox that installs, in bytes.
        memory_bytes: u64 = 512 << 20 => 64 << 20..=1 << 40,
        /// How long the result of an installation is used for other conversations of the same owner before versions are
        /// chosen anew, in seconds.
        fresh_s: u64 = 86_400 => 0..=365 * 86_400,
        /// How long a result that is not used is kept, in seconds.
        kept_s: u64 = 30 * 86_400 => 60..=365 * 86_400,
        /// Disk space of all results of one owner, in bytes; those used least recently are deleted.
        owner_bytes_max: u64 = 4 << 30 => 1 << 20..=1 << 50,
    }
}

impl Config {
    /// The hosts of the indexes; `None` where packages are off.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn package_hosts(&self) -> Result<Option<Policy>, ConfigError> {
        let Packages { python_index, npm_registry, hosts, addresses, .. } = &self.packages;
        let mut all = Vec::new();
        for (name, index) in [("PYTHON_INDEX", python_index), ("NPM_REGISTRY", npm_registry)] {
            if !index.is_empty() {
                let why = || {
                    ConfigError(format!(
                        "SANDBOX_PACKAGES__{name} must be an address that begins with http:// or https://, without a \
                         user or a password."
                    ))
                };
                all.push(host(index).ok_or_else(why)?);
            }
        }
        if all.is_empty() {
            return Ok(None);
        }
        super::absolute("SANDBOX_PACKAGES__CA_FILE", &self.packages.ca_file)?;
        all.extend(items(hosts).map(str::to_owned));
        let addresses = items(addresses).map(str::parse).collect::<Result<_, _>>();
        let addresses = addresses
            .map_err(|_| ConfigError("SANDBOX_PACKAGES__ADDRESSES must be addresses such as 10.1.2.3.".to_owned()))?;
        let text = PolicyText { hosts: all, addresses, ..PolicyText::default() };
        let policy = Policy::parse("packages", &text);
        policy.map(Some).map_err(|why| ConfigError(format!("SANDBOX_PACKAGES__HOSTS: {why}.")))
    }

    /// More roots in PEM, for connections to the indexes. The file is read now.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn package_roots(&self) -> Result<Option<String>, ConfigError> {
        let read = |file: &str| std::fs::read_to_string(file);
        super::tables::contents("SANDBOX_PACKAGES__CA_FILE", &self.packages.ca_file, read)
    }
}

/// The host and port of an address.
fn host(index: &str) -> Option<String> {
    let uri: Uri = index.parse().ok()?;
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let usual = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => 80,
        Some(scheme) if *scheme == Scheme::HTTPS => 443,
        _ => return None,
    };
    Some(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(usual)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_indexes_are_named_with_their_ports_and_nothing_else_is() {
        let hosts = |index: &str, more: &str| {
            let packages = Packages { python_index: index.into(), hosts: more.into(), ..Packages::default() };
            let policy = Config { packages, ..Config::default() }.package_hosts();
            policy.map(|policy| policy.map(|policy| policy.hosts().collect::<Vec<_>>()))
        };
        assert_eq!(hosts("", "a.example"), Ok(None));
        let pypi = vec!["pypi.org".to_owned(), "files.pythonhosted.org".to_owned()];
        assert_eq!(hosts("https://pypi.org/simple", "files.pythonhosted.org"), Ok(Some(pypi)));
        assert_eq!(hosts("http://127.0.0.2:81/x/", ""), Ok(Some(vec!["127.0.0.2:81".to_owned()])));
        for bad in ["pypi.org", "ftp://a/b", "https://u:p@a.example/", "-r x", "https:///x"] {
            assert!(hosts(bad, "").is_err(), "{bad}");
        }
        assert!(hosts("https://a.example", "*.com").is_err());
    }
}
