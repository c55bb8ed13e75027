//! Network policies: which hosts the programs of an owner may reach. Pure rules; no name is resolved here.

use std::{fmt, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};
use url::Host as Parsed;

use super::id::Language;

/// The longest name of a host, in characters.
const HOST_CHARS_MAX: usize = 253;
/// The ports of a rule that names none.
const PORTS: [u16; 2] = [80, 443];
/// The longest name of a policy, in characters.
const NAME_CHARS_MAX: usize = 32;

/// A host as a program names it, in one notation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Lower case and ASCII (IDNA), without a trailing dot.
    Name(String),
    Address(IpAddr),
}

impl Host {
    /// Parses the host of a URL: a name, an IPv4 address in any notation that some library accepts (`0x7f.1`,
    /// `2130706433`), or an IPv6 address, in brackets or not. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(Self::Address(address));
        }
        // The parser decodes `%`, which no host has.
        let fits = !text.is_empty() && text.len() <= HOST_CHARS_MAX && !text.contains(['%', '\0']);
        match fits.then(|| Parsed::parse(text).ok()).flatten()? {
            Parsed::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(&name);
                (!name.is_empty() && !name.ends_with('.')).then(|| Self::Name(name.to_owned()))
            }
            Parsed::Ipv4(address) => Some(Self::Address(address.into())),
            Parsed::Ipv6(address) => Some(Self::Address(address.into())),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Where a program wants to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// Parses `host:port`; without a port it is `default`. `None` for anything else.
    pub fn parse(text: &str, default: Option<u16>) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') && (!host.contains(':') || host.ends_with(']')) => {
                let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                (host, Some(port.parse().ok().filter(|port| digits && *port > 0)?))
            }
            _ => (text, default),
        };
        Some(Self { host: Host::parse(host)?, port: port? })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// One host of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Host(Host),
    /// Every name that ends in this, which begins with a dot.
    Below(String),
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
}

/// Hosts that programs may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// 1 to 32 of `a-z 0-9 _ -`.
    pub name: String,
    pub every_token: bool,
    languages: Vec<Language>,
    hosts: Vec<(Pattern, Vec<u16>)>,
    addresses: Vec<IpAddr>,
}

/// What is wrong with a policy; a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("the name must be 1 to 32 of `a-z 0-9 _ -`")]
    Name,
    #[error("`hosts` is empty: name those that programs may reach, such as \"pypi.org\" or \"*.example.com\"")]
    NoHosts,
    #[error("`{0}` is no host: write example.com, *.example.com or an address, each with a port or without")]
    Host(String),
    #[error("`{0}` covers the hosts of many owners: name a host below it")]
    TooBroad(String),
    #[error("`ports` must be from 1 to 65535")]
    Port,
    #[error("`{0}` is no language")]
    Language(String),
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
        let hosts = text.hosts.iter().map(|host| pattern(host.trim(), &ports)).collect::<Result<_, _>>()?;
        let language = |text: &String| text.parse().map_err(|_| PolicyError::Language(text.clone()));
        let languages = text.languages.iter().map(language).collect::<Result<_, _>>()?;
        Ok(Self { name, every_token: text.every_token, languages, hosts, addresses: text.addresses.clone() })
    }

    /// Its hosts as text, with a port where that is not a usual one.
    pub fn hosts(&self) -> impl Iterator<Item = String> {
        self.hosts.iter().map(|(pattern, ports)| {
            let host = match pattern {
                Pattern::Host(host) => host.to_string(),
                Pattern::Below(ending) => format!("*{ending}"),
            };
            let other: Vec<_> = ports.iter().filter(|port| !PORTS.contains(port)).map(u16::to_string).collect();
            if other.is_empty() { host } else { format!("{host}:{}", other.join("/")) }
        })
    }

    pub fn is_for(&self, language: &Language) -> bool {
        self.languages.is_empty() || self.languages.contains(language)
    }

    pub fn allows(&self, target: &Target) -> bool {
        self.hosts.iter().any(|(pattern, ports)| {
            let is_named = match (pattern, &target.host) {
                (Pattern::Host(host), target) => host == target,
                (Pattern::Below(ending), Host::Name(name)) => name.ends_with(ending),
                (Pattern::Below(_), Host::Address(_)) => false,
            };
            is_named && ports.contains(&target.port)
        })
    }

    /// Whether a host of this policy may have an address that is not of the internet.
    pub fn names_address(&self, address: IpAddr) -> bool {
        let is_host = |(pattern, _): &(Pattern, _)| *pattern == Pattern::Host(Host::Address(address));
        self.addresses.contains(&address) || self.hosts.iter().any(is_host)
    }
}

fn pattern(text: &str, ports: &[u16]) -> Result<(Pattern, Vec<u16>), PolicyError> {
    let wrong = || PolicyError::Host(text.chars().take(80).collect());
    let (name, is_below) = text.strip_prefix("*.").map_or((text, false), |name| (name, true));
    let Target { host, port } = Target::parse(name, Some(0)).ok_or_else(wrong)?;
    let ports = if port == 0 { ports.to_vec() } else { vec![port] };
    if name.contains('*') {
        return Err(wrong());
    }
    match (host, is_below) {
        (Host::Name(name), true) => {
            // Below a public suffix, such as co.uk or github.io, are the hosts of many owners.
            if psl::suffix_str(&name) == Some(name.as_str()) {
                return Err(PolicyError::TooBroad(text.to_owned()));
            }
            Ok((Pattern::Below(format!(".{name}")), ports))
        }
        (Host::Address(_), true) => Err(wrong()),
        (host, false) => Ok((Pattern::Host(host), ports)),
    }
}

/// One connection that a program made or wanted, when it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUse {
    /// As `host:port`; as the program wrote it where that is neither.
    pub target: String,
    /// Why it was refused or failed; `None` for one that was made.
    pub refusal: Option<Refusal>,
    /// To the host, in bytes.
    pub sent_bytes: u64,
    /// From the host, in bytes.
    pub received_bytes: u64,
    pub took: Duration,
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no policy allows {0}")]
    NotAllowed(Target),
    #[error("{0} has the address {1}, which is not of the internet; the policy must name that address")]
    NotPublic(Target, IpAddr),
    #[error("{0} is this server itself")]
    OwnAddress(Target),
    #[error("{0} has no address")]
    NotFound(Target),
    #[error("{0} does not answer")]
    Unreachable(Target),
    #[error("the TLS connection to {0} asks for another host")]
    OtherServerName(Target),
    #[error("{0} takes TLS alone")]
    NoTls(Target),
    #[error("the request names another host than {0}")]
    OtherHost(Target),
    #[error("what the program sent is neither a request of HTTP nor of SOCKS 5")]
    Malformed,
    #[error("too many connections are open")]
    TooMany,
}

impl Refusal {
    /// A word for machines.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotAllowed(_) => "not_allowed",
            Self::NotPublic(..) => "not_public",
            Self::OwnAddress(_) => "own_address",
            Self::NotFound(_) => "not_found",
            Self::Unreachable(_) => "unreachable",
            Self::OtherServerName(_) => "other_server_name",
            Self::NoTls(_) => "no_tls",
            Self::OtherHost(_) => "other_host",
            Self::Malformed => "malformed",
            Self::TooMany => "too_many",
        }
    }

    /// Whether the policy forbids it; otherwise it failed.
    pub fn is_forbidden(&self) -> bool {
        !matches!(self, Self::NotFound(_) | Self::Unreachable(_) | Self::TooMany)
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
    fn every_notation_of_a_host_is_one_host() {
        for (text, want) in [
            ("Example.COM.", "example.com:443"),
            ("bücher.example:80", "xn--bcher-kva.example:80"),
            ("0x7f.1", "127.0.0.1:443"),
            ("2130706433", "127.0.0.1:443"),
            ("0177.0.0.1:8", "127.0.0.1:8"),
            ("127.0.0.1.", "127.0.0.1:443"),
            ("[::1]:8080", "[::1]:8080"),
            ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:443"),
            ("１２７.0.0.1", "127.0.0.1:443"),
        ] {
            assert_eq!(target(text).to_string(), want, "{text}");
        }
        let long = "a".repeat(254);
        for text in [
            "",
            ":80",
            "a b",
            "a:0",
            "a:65536",
            "a:+1",
            "a:",
            "evil.com\0.allowed.com",
            "a%2eb",
            "user@a",
            "a/b",
            "a..",
            "[::1",
            "::1]:80",
            "1.2.3.4.5",
            "256.1.1.1",
            "0x100000000",
            "a\tb",
            "a\r\nb",
            "#",
            long.as_str(),
        ] {
            assert_eq!(Target::parse(text, Some(443)), None, "{text:?}");
        }
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
        assert!(policy.names_address("10.0.0.7".parse().expect("an address")));
        assert!(!policy.names_address("10.0.0.8".parse().expect("an address")));
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
