//! Policies: which hosts programs may reach, as an operator writes them and as they decide.

use std::{net::IpAddr, num::NonZeroU32};

use serde::{Deserialize, Serialize};

use super::{Host, Target, rules};
use crate::domain::id::Language;

/// The ports of a rule that names none.
const PORTS: [u16; 2] = [80, 443];
/// The longest name of a policy, in characters.
const NAME_CHARS_MAX: usize = 32;
/// The fewest bytes a minute: one piece of a connection must fit.
pub const BYTES_PER_MINUTE_MIN: u32 = 64 << 10;

/// A host of a policy with its ports, or every name below it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostRule {
    root: Host,
    is_below: bool,
    ports: Vec<u16>,
}

/// A policy as an operator writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyText {
    /// `example.com`, `*.example.com`, an address; with a port (`example.com:8443`) instead of those of the policy.
    pub hosts: Vec<String>,
    /// 80 and 443 where there are none.
    pub ports: Vec<u16>,
    /// Addresses that are not of the internet and that these hosts may have, such as `10.1.2.3`.
    pub addresses: Vec<IpAddr>,
    /// Empty: every language.
    pub languages: Vec<String>,
    /// Whether it holds for each token that names no policies.
    pub every_token: bool,
    /// Of requests, such as `GET`; empty: all. Where TLS would hide them, the server opens it.
    pub methods: Vec<String>,
    /// Of requests: with a slash at the end everything below, otherwise that path alone; empty: all.
    pub paths: Vec<String>,
    /// Of one owner; a tunnel counts as one. 0: no limit.
    pub requests_per_minute: u32,
    /// Of one owner, both ways together. 0: no limit.
    pub bytes_per_minute: u32,
}

impl PolicyText {
    /// Each list, how many items it has, and how many it may have outside of the settings.
    pub fn lists(&self) -> [(&'static str, usize, usize); 6] {
        [
            ("hosts", self.hosts.len(), 500),
            ("ports", self.ports.len(), 100),
            ("addresses", self.addresses.len(), 100),
            ("languages", self.languages.len(), 100),
            ("methods", self.methods.len(), 32),
            ("paths", self.paths.len(), 100),
        ]
    }
}

/// Hosts that programs may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// 1 to 32 of `a-z 0-9 _ -`.
    pub name: String,
    languages: Vec<Language>,
    hosts: Vec<HostRule>,
    /// Those of its text in one notation.
    pub(super) paths: Vec<String>,
    pub requests_per_minute: Option<NonZeroU32>,
    pub bytes_per_minute: Option<NonZeroU32>,
    /// As it was written.
    pub text: PolicyText,
}

/// What is wrong with a field of a policy; a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("it must be 1 to 32 of `a-z 0-9 _ -`")]
    Name,
    #[error("it is empty: name those that programs may reach, such as \"pypi.org\" or \"*.example.com\"")]
    NoHosts,
    #[error("`{0}` is not a host: write example.com, *.example.com or an address, each with a port or without")]
    Host(String),
    #[error("`{0}` covers the hosts of many owners: name a host below it")]
    TooBroad(String),
    #[error("they must be from 1 to 65535")]
    Port,
    #[error("`{0}` is no language")]
    Language(String),
    #[error("`{0}` is not a method: write it in capitals, such as \"GET\"")]
    Method(String),
    #[error("`{0}` is not a path: write \"/v1/\" for all below it, \"/status\" for that one")]
    Path(String),
    #[error("it must be at least {BYTES_PER_MINUTE_MIN}, or 0 for no limit")]
    Bytes,
}

impl PolicyError {
    /// What it is about: the name of the policy, or a key as operators write it.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::NoHosts | Self::Host(_) | Self::TooBroad(_) => "hosts",
            Self::Port => "ports",
            Self::Language(_) => "languages",
            Self::Method(_) => "methods",
            Self::Path(_) => "paths",
            Self::Bytes => "bytes_per_minute",
        }
    }
}

impl Policy {
    /// # Errors
    /// What to correct.
    pub fn parse(name: &str, text: &PolicyText) -> Result<Self, PolicyError> {
        let name = name.to_ascii_lowercase();
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(fits) {
            return Err(PolicyError::Name);
        }
        if text.hosts.is_empty() {
            return Err(PolicyError::NoHosts);
        }
        if text.ports.contains(&0) {
            return Err(PolicyError::Port);
        }
        let ports = if text.ports.is_empty() { PORTS.to_vec() } else { text.ports.clone() };
        let hosts = text.hosts.iter().map(|host| host_rule(host.trim(), &ports)).collect::<Result<_, _>>()?;
        let language = |text: &String| text.parse().map_err(|_| PolicyError::Language(text.chars().take(80).collect()));
        let languages = text.languages.iter().map(language).collect::<Result<_, _>>()?;
        if (1..BYTES_PER_MINUTE_MIN).contains(&text.bytes_per_minute) {
            return Err(PolicyError::Bytes);
        }
        Ok(Self {
            name,
            languages,
            hosts,
            paths: rules::paths(text)?,
            requests_per_minute: NonZeroU32::new(text.requests_per_minute),
            bytes_per_minute: NonZeroU32::new(text.bytes_per_minute),
            text: text.clone(),
        })
    }

    /// Its hosts as text, with a port where that is not a usual one.
    pub fn hosts(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(|HostRule { root, is_below, ports }| {
            let host = format!("{}{root}", if *is_below { "*." } else { "" });
            let other: Vec<_> = ports.iter().filter(|port| !PORTS.contains(port)).map(u16::to_string).collect();
            if other.is_empty() { host } else { format!("{host}:{}", other.join("/")) }
        })
    }

    pub fn is_for(&self, language: &Language) -> bool {
        self.languages.is_empty() || self.languages.contains(language)
    }

    pub fn allows(&self, target: &Target) -> bool {
        self.hosts.iter().any(|HostRule { root, is_below, ports }| {
            let is_root = target.host == *root;
            let is_named = if *is_below { !is_root && target.host.is_within(root) } else { is_root };
            is_named && ports.contains(&target.port)
        })
    }

    /// Its hosts, and the names below which there are some.
    pub fn roots(&self) -> impl Iterator<Item = Host> {
        self.hosts.iter().map(|rule| rule.root.clone())
    }

    /// Whether a host of this policy may have an address that is not of the internet, at this port.
    pub fn names_address(&self, address: IpAddr, port: u16) -> bool {
        self.text.addresses.contains(&address) || self.allows(&Target { host: Host::Address(address), port })
    }
}

fn host_rule(text: &str, ports: &[u16]) -> Result<HostRule, PolicyError> {
    let wrong = || PolicyError::Host(text.chars().take(80).collect());
    let (name, is_below) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
    let Target { host: root, port } = Target::parse(name, Some(0)).ok_or_else(wrong)?;
    let ports = if port == 0 { ports.to_vec() } else { vec![port] };
    if name.contains('*') {
        return Err(wrong());
    }
    match &root {
        Host::Address(_) if is_below => Err(wrong()),
        // Below a public suffix, such as co.uk or github.io, are the hosts of many owners.
        Host::Name(name) if is_below && psl::suffix_str(name) == Some(name.as_str()) => {
            Err(PolicyError::TooBroad(text.to_owned()))
        }
        _ => Ok(HostRule { root, is_below, ports }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Target::parse(text, Some(443)).unwrap_or_else(|| panic!("{text}"))
    }

    fn policy(hosts: &[&str]) -> Result<Policy, PolicyError> {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Policy::parse("web", &PolicyText { hosts, ..PolicyText::default() })
    }

    #[test]
    fn policy_allows_what_it_names_and_nothing_else() {
        let policy = policy(&["pypi.org", "*.Example.com", "db.example.net:5432", "10.0.0.7:22"]).expect("a policy");
        for text in [
            "pypi.org:443",
            "PyPI.org.:80",
            "a.example.com",
            "a.b.example.com:80",
            "db.example.net:5432",
            "10.0.0.7:22",
        ] {
            assert!(policy.allows(&target(text)), "{text}");
        }
        for text in [
            "pypi.org:22",
            "example.com",
            "evilexample.com",
            "a.pypi.org",
            "pypi.org.evil.net",
            "db.example.net:443",
            "10.0.0.7:80",
            "10.0.0.8:22",
            "example.com.evil.net",
        ] {
            assert!(!policy.allows(&target(text)), "{text}");
        }
        let names = |address: &str, port| policy.names_address(address.parse().expect("an address"), port);
        assert!(names("10.0.0.7", 22) && !names("10.0.0.8", 22));
        assert!(!names("10.0.0.7", 443), "a name that leads there reaches no port that is not named");
    }

    #[test]
    fn broad_and_malformed_rules_are_refused() {
        for host in ["*", "*.com", "*.co.uk", "*.github.io", "ex*", "a.*.com", "*.10.0.0.1", "a b", "", "*.*.com"] {
            assert!(policy(&[host]).is_err(), "{host}");
        }
        assert_eq!(policy(&[]), Err(PolicyError::NoHosts));
        assert_eq!(Policy::parse("a b", &PolicyText::default()), Err(PolicyError::Name));
        let text = PolicyText { hosts: vec!["a.example".into()], ports: vec![0], ..PolicyText::default() };
        assert_eq!(Policy::parse("web", &text), Err(PolicyError::Port));
        let text = PolicyText { hosts: vec!["a.example".into()], bytes_per_minute: 1000, ..PolicyText::default() };
        assert_eq!(Policy::parse("web", &text), Err(PolicyError::Bytes));
    }

    #[test]
    fn policy_may_be_for_some_languages() {
        let text =
            PolicyText { hosts: vec!["a.example".into()], languages: vec!["python".into()], ..PolicyText::default() };
        let policy = Policy::parse("web", &text).expect("a policy");
        let language = |text: &str| text.parse().expect("a language");
        assert!(policy.is_for(&language("python")) && !policy.is_for(&language("bash")));
    }
}
