//! Kinds of values: secrets, the public address, the address to listen on. Each is parsed from text and shown as text.

use std::{fmt, str::FromStr};

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize as _, Deserializer, Serializer, de};
use serde_json::Value;

use super::ConfigError;

/// The shortest secret, in characters.
const SECRET_CHARS_MIN: usize = 16;

/// Texts that remain when an example is copied.
const PLACEHOLDERS: [&str; 9] =
    ["changeme", "change-me", "change_me", "example", "placeholder", "your-token", "your_token", "<", "replace"];

/// Words that secrets are made of when people think of one.
const COMMON: [&str; 20] = [
    "password", "passwort", "passwd", "secret", "token", "admin", "letmein", "welcome", "qwerty", "sandbox", "server",
    "bearer", "default", "hello", "test", "root", "user", "login", "pass", "key",
];
/// A secret is refused when it repeats so few characters, and when it has fewer beside common words.
const REPEATED_CHARS_MAX: usize = 8;
const UNCOMMON_CHARS_MIN: usize = 4;
/// With fewer characters that do not follow from the one before, a secret is reported as weak.
const RANDOM_CHARS_MIN: usize = 8;

/// Deserializes a value from its text, whatever type the source gave it. No error repeats the text: it may be a secret.
pub(super) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(fraction) => fraction.to_string(),
            None => number.to_string(),
        },
        _ => return Err(de::Error::custom("expected a text, a number or a flag")),
    };
    text.trim().parse().map_err(de::Error::custom)
}

/// Serializes a value as its text.
pub(super) fn serialize<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// A text that no log line, error or print shows. Empty when it is not set.
#[derive(Clone, Default)]
pub struct Secret(SecretString);

impl Secret {
    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &SecretString {
        &self.0
    }

    pub fn is_set(&self) -> bool {
        !self.0.expose_secret().is_empty()
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "(set)" } else { "" })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Refuses a secret that is absent, short, or easy to guess.
pub(super) fn check_secret(name: &str, text: &str) -> Result<(), ConfigError> {
    const REMEDY: &str = "make one with `openssl rand -hex 32`";
    let refuse = |why: &str| Err(ConfigError(format!("{name} {why}")));
    if text.is_empty() {
        return refuse(&format!("is not set: {REMEDY} and put it into the environment or .env."));
    }
    if text.chars().count() < SECRET_CHARS_MIN {
        return refuse(&format!("is shorter than {SECRET_CHARS_MIN} characters: {REMEDY}."));
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse(&format!("holds white space or a control character: {REMEDY}."));
    }
    let lower = text.to_lowercase();
    let repeats = |length: usize| lower.chars().skip(length).eq(lower.chars().take(lower.chars().count() - length));
    if (1..=REPEATED_CHARS_MAX).any(repeats) || PLACEHOLDERS.iter().any(|placeholder| lower.contains(placeholder)) {
        return refuse(&format!("is an example value or a repetition, which is easy to guess: {REMEDY}."));
    }
    if without_words(&lower).chars().filter(|c| c.is_alphanumeric()).count() < UNCOMMON_CHARS_MIN {
        return refuse(&format!("is made of common words, which are easy to guess: {REMEDY}."));
    }
    Ok(())
}

fn without_words(lower: &str) -> String {
    COMMON.iter().fold(lower.to_owned(), |rest, word| rest.replace(word, ""))
}

/// Whether a secret that is not refused is probably not random: words, or rows such as `0123456789abcdef`.
pub(super) fn is_weak(text: &str) -> bool {
    let rest: Vec<_> = without_words(&text.to_lowercase()).chars().map(u32::from).collect();
    rest.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 1).count() < RANDOM_CHARS_MIN
}

/// The address that links begin with, shown without a trailing slash.
#[derive(Debug, Clone, Default)]
pub struct BaseUrl(http::Uri);

impl BaseUrl {
    pub fn uri(&self) -> &http::Uri {
        &self.0
    }

    /// As browsers write the origin of an address without a path: lower case, and without the port that its scheme has.
    pub fn origin(&self) -> String {
        let origin = self.to_string().to_lowercase();
        let default_port = if origin.starts_with("https:") { ":443" } else { ":80" };
        origin.strip_suffix(default_port).unwrap_or(&origin).to_owned()
    }
}

impl FromStr for BaseUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ERROR: &str = "it must be an address such as https://sandbox.example.com, without query or fragment";
        let uri: http::Uri = text.trim_end_matches('/').parse().map_err(|_| ERROR)?;
        let http = matches!(uri.scheme_str(), Some("http" | "https"));
        if !http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() || text.contains(['#', '@']) {
            return Err(ERROR);
        }
        Ok(Self(uri))
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

/// Where to listen: `:8080`, `127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindAddr {
    /// An address or a name; `None` for every interface.
    pub host: Option<String>,
    pub port: u16,
}

impl FromStr for BindAddr {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ERROR: &str =
            "it must be `:8080` for all interfaces or an address such as `127.0.0.1:8080` for this machine only";
        let (host, port) = text.rsplit_once(':').ok_or(ERROR)?;
        let port = port.parse().map_err(|_| ERROR)?;
        let is_name = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'));
        if !is_name && text.parse::<std::net::SocketAddr>().is_err() {
            return Err(ERROR);
        }
        Ok(Self { host: (!host.is_empty()).then(|| host.to_owned()), port })
    }
}

impl fmt::Display for BindAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.as_deref().unwrap_or_default(), self.port)
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
            "passwordpassword",
            "PasswordPassword",
            "hunter2.hunter2.hunter2",
            "1212121212121212",
            "admin-secret-token-1",
            "test-password-test-password",
        ] {
            let error = check_secret("MCP_API_TOKEN", weak).expect_err(weak).0;
            assert!(error.contains("MCP_API_TOKEN") && error.contains("openssl"), "{error}");
            assert!(weak.is_empty() || !error.contains(weak), "{error}");
        }
        check_secret("X", "0123456789abcdef").expect("not refused");
        for (text, weak) in [
            ("0123456789abcdef", true),
            ("12345678901234567890", true),
            ("my-secret-token-2026", true),
            ("83920174650918273645", false),
            ("9b1f64c07de2a853", false),
            ("correct-horse-battery-staple", false),
        ] {
            check_secret("X", text).expect(text);
            assert_eq!(is_weak(text), weak, "{text}");
        }
        let Ok(secret) = Secret::from_str("0123456789abcdef");
        assert_eq!(format!("{secret:?} {secret}"), "(secret) (set)");
    }

    #[test]
    fn addresses() {
        assert_eq!(":8080".parse(), Ok(BindAddr { host: None, port: 8080 }));
        for good in ["127.0.0.1:0", "[::1]:80", "localhost:8080"] {
            assert_eq!(good.parse::<BindAddr>().expect(good).to_string(), good);
        }
        for bad in ["", "8080", ":", ":x", ":99999", "a b:1", "http://x:1"] {
            assert!(bad.parse::<BindAddr>().is_err(), "{bad}");
        }
    }
}
