//! Hosts and ports as programs name them, in one notation.

use std::{fmt, net::IpAddr};

use url::Host as Parsed;

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
