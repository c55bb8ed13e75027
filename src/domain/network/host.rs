//! Hosts and ports as programs name them, in one notation; the record of a connection there, and the reasons of a
//! refusal.

use std::{fmt, net::IpAddr, time::Duration};

use url::Host as Parsed;

use crate::domain::{id::Language, owner::ConversationKey, words::named};

/// The longest name of a host, in characters.
const HOST_CHARS_MAX: usize = 253;

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

    /// Whether it is that host, or a name below that name.
    pub fn is_within(&self, root: &Self) -> bool {
        let is_below = |name: &str, root: &str| name.strip_suffix(root).is_some_and(|rest| rest.ends_with('.'));
        self == root || matches!((self, root), (Self::Name(name), Self::Name(root)) if is_below(name, root))
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

impl NetworkUse {
    /// One over which nothing has passed: refused, or just made.
    pub fn of(target: String, refusal: Option<Refusal>) -> Self {
        Self { target, refusal, sent_bytes: 0, received_bytes: 0, took: Duration::ZERO }
    }
}

/// A connection of a conversation, when it was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub at_unix_ms: i64,
    pub conversation: ConversationKey,
    pub language: Language,
    pub used: NetworkUse,
}

named! {
    /// Why there is no connection.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum Refusal {
        #[error("no policy allows {0}")]
        NotAllowed(Target) = "not_allowed",
        #[error("{0} has the address {1}, which is not of the internet; the policy must name that address")]
        NotPublic(Target, IpAddr) = "not_public",
        #[error("{0} is this server itself")]
        OwnAddress(Target) = "own_address",
        #[error("{0} has no address")]
        NotFound(Target) = "not_found",
        #[error("{0} does not answer")]
        Unreachable(Target) = "unreachable",
        #[error("the TLS connection to {0} asks for another host")]
        OtherServerName(Target) = "other_server_name",
        #[error("{0} takes TLS alone")]
        NoTls(Target) = "no_tls",
        #[error("the request names another host than {0}")]
        OtherHost(Target) = "other_host",
        #[error("what the program sent is neither a request of HTTP nor of SOCKS 5")]
        Malformed = "malformed",
        #[error("too many connections are open")]
        TooMany = "too_many",
        #[error("`methods` of the policy {policy} lacks {method}, so {target} is not asked")]
        Method { target: Target, policy: String, method: String } = "method",
        #[error("`paths` of the policy {policy} lacks {path}, so {target} is not asked")]
        Path { target: Target, policy: String, path: String } = "path",
        #[error("the path of the request to {0} could be taken for another one")]
        AmbiguousPath(Target) = "ambiguous_path",
        #[error("`requests_per_minute` of the policy {policy} is used up for {target}, for {wait_s} s more")]
        TooFast { target: Target, policy: String, wait_s: u64 } = "too_fast",
        #[error("{0} is not asked with {1}, whose answer repeats the request")]
        Repeats(Target, String) = "repeats",
        #[error("a connection to {0} cannot change its protocol, because the server opens its TLS")]
        Upgrade(Target) = "upgrade",
        #[error("{0} has a certificate that this server does not trust")]
        Untrusted(Target) = "untrusted",
        #[error("{0} answers compressed or in parts, which cannot be searched for secrets")]
        Unsearchable(Target) = "unsearchable",
        #[error("the sandbox broke the rules of its channels, which ended all of its connections; restart the session")]
        ChannelsBroken = "channels_broken",
        #[error("the connection to {0} carried nothing for too long")]
        Idle(Target) = "idle",
        #[error("the policy for {0} changed in a way that needs a new sandbox: restart the session")]
        PolicyChanged(Target) = "policy_changed",
    }
}

impl Refusal {
    /// Whether the policy forbids it; otherwise it failed.
    pub fn is_forbidden(&self) -> bool {
        !matches!(
            self,
            Self::NotFound(_)
                | Self::Unreachable(_)
                | Self::TooMany
                | Self::TooFast { .. }
                | Self::Untrusted(_)
                | Self::Unsearchable(_)
                | Self::ChannelsBroken
                | Self::Idle(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        Target::parse(text, Some(443)).unwrap_or_else(|| panic!("{text}"))
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
}
