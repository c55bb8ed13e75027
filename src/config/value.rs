//! Values with rules of their own: secrets, the address to listen on.

use std::{fmt, net::SocketAddr};

use secrecy::{ExposeSecret, SecretString};

use super::ConfigError;

/// The shortest secret, in characters.
pub const SECRET_CHARS_MIN: usize = 16;

/// Texts that people leave in place when they copy an example.
const PLACEHOLDERS: [&str; 9] =
    ["changeme", "change-me", "change_me", "example", "placeholder", "your-token", "your_token", "<", "replace"];

/// A text that no log line, error or print shows.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Checks a secret.
    ///
    /// # Errors
    /// When it is absent, too short, or an example's.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        const REMEDY: &str = "make one with `openssl rand -hex 32`";
        if text.is_empty() {
            return Err(ConfigError(format!("{name} is not set: {REMEDY} and put it into the environment or .env.")));
        }
        if text.chars().count() < SECRET_CHARS_MIN {
            return Err(ConfigError(format!("{name} is shorter than {SECRET_CHARS_MIN} characters: {REMEDY}.")));
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(ConfigError(format!("{name} holds white space or a control character: {REMEDY}.")));
        }
        let lower = text.to_lowercase();
        let repeated = text.chars().all(|c| text.starts_with(c));
        if repeated || PLACEHOLDERS.iter().any(|placeholder| lower.contains(placeholder)) {
            return Err(ConfigError(format!("{name} is an example value that anybody can guess: {REMEDY}.")));
        }
        Ok(Self(text.to_owned().into()))
    }

    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &SecretString {
        &self.0
    }

    /// Whether two secrets are the same text.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.expose_secret() == other.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A secret within a section: any text, empty where there is none. No log line, error or print shows it.
#[derive(Clone, Default, serde::Deserialize)]
#[serde(from = "String")]
pub struct Hidden(SecretString);

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Hidden {
    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl PartialEq for Hidden {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Hidden {}

/// As it is printed: whether it is set.
impl serde::Serialize for Hidden {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if self.expose().is_empty() { "" } else { "(set)" })
    }
}

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindAddr {
    /// `:8080`: every interface.
    AllInterfaces {
        /// The port.
        port: u16,
    },
    /// One address, or a name that resolves to some.
    Host {
        /// A host and a port.
        host_port: String,
    },
}

impl BindAddr {
    /// Reads `:8080`, `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
    ///
    /// # Errors
    /// When there is no port.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let error = || {
            ConfigError(format!(
                "MCP_HTTP_ADDR is not an address: write `:8080` for all interfaces or `127.0.0.1:8080` for this \
                 machine only (it is `{}`).",
                text.escape_debug()
            ))
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let port: u16 = port.parse().map_err(|_| error())?;
        if host.is_empty() {
            return Ok(Self::AllInterfaces { port });
        }
        let is_name = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'));
        if text.parse::<SocketAddr>().is_err() && !is_name {
            return Err(error());
        }
        Ok(Self::Host { host_port: text.to_owned() })
    }
}

impl fmt::Display for BindAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllInterfaces { port } => write!(f, ":{port}"),
            Self::Host { host_port } => f.write_str(host_port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_secrets_are_refused_by_name_and_never_repeated() {
        let long = "a".repeat(40);
        for weak in [
            "",
            "abc123xyz",
            "0123456789abcde",
            &long,
            "change-me-please-now",
            "<your token goes here>",
            "a b c d e f g h i",
        ] {
            let error = Secret::parse("MCP_API_TOKEN", weak).expect_err(weak).0;
            assert!(error.contains("MCP_API_TOKEN") && error.contains("openssl"), "{error}");
            assert!(weak.is_empty() || !error.contains(weak), "{error}");
        }
        let strong = Secret::parse("X", "0123456789abcdef").expect("strong");
        assert_eq!(format!("{strong:?}"), "(secret)");
    }

    #[test]
    fn addresses() {
        assert_eq!(BindAddr::parse(":8080"), Ok(BindAddr::AllInterfaces { port: 8080 }));
        for good in ["127.0.0.1:0", "[::1]:80", "localhost:8080"] {
            assert!(BindAddr::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "8080", ":", ":x", ":99999", "a b:1", "http://x:1"] {
            assert!(BindAddr::parse(bad).is_err(), "{bad}");
        }
    }
}
