//! Secrets that programs use without seeing their values: a sandbox has a placeholder, which the server replaces by the
//! value in one header of requests to the secret's hosts.

use std::sync::Arc;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Host, Pattern, Policy, Target};

/// The port of a host without one.
const TLS_PORT: u16 = 443;
/// The length of a value, in bytes. A shorter one would be found in answers by chance.
const VALUE_BYTES_MIN: usize = 8;
const VALUE_BYTES_MAX: usize = 4096;
/// The longest prefix of placeholders, in characters.
const PREFIX_CHARS_MAX: usize = 64;
/// Headers that say where a request ends or goes to, which the server writes itself.
const OWN_HEADERS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "if-range",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A secret as an operator writes it, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretText {
    /// `api.example.com` or `api.example.com:8443`, without wildcards.
    pub hosts: Vec<String>,
    pub header: String,
    /// What placeholders begin with, for clients that check the form of a key.
    pub prefix: String,
    /// In the environment of programs; empty: the name in capitals, and `_TOKEN`.
    pub variable: String,
    /// The policies that it is for; empty: every one that allows one of its hosts.
    pub policies: Vec<String>,
}

impl Default for SecretText {
    fn default() -> Self {
        let (hosts, policies) = (Vec::new(), Vec::new());
        let (prefix, variable) = (String::new(), String::new());
        Self { hosts, header: "Authorization".to_owned(), prefix, variable, policies }
    }
}

/// What is wrong with a secret; a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("`hosts` is empty: name those that get the value, such as \"api.example.com\"")]
    NoHosts,
    #[error("`{0}` is not a host for a secret: write api.example.com or api.example.com:8443, without `*`")]
    Host(String),
    #[error("`header` is no header that programs may set")]
    Header,
    #[error("`prefix` must be at most {PREFIX_CHARS_MAX} of `A-Z a-z 0-9 _ - .`")]
    Prefix,
    #[error("`variable` must be letters, digits and `_`, no digit first; write one where the name gives none")]
    Variable,
    #[error("no policy that it is for allows {0}: name that host in `hosts` of one below [network.<name>]")]
    NoPolicy(Target),
    #[error("there is no policy `{0}`: correct `policies`")]
    UnknownPolicy(String),
    #[error("the value must be {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} visible ASCII characters without spaces")]
    Value,
}

/// Where a secret goes, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRule {
    targets: Vec<Target>,
    /// Its header in lower case, and its variable named.
    text: SecretText,
}

impl SecretRule {
    /// # Errors
    /// What to correct.
    pub fn parse(name: &str, text: &SecretText) -> Result<Self, SecretError> {
        if text.hosts.is_empty() {
            return Err(SecretError::NoHosts);
        }
        let target = |host: &String| {
            let parsed = Target::parse(host.trim(), Some(TLS_PORT)).filter(|_| !host.contains('*'));
            parsed.ok_or_else(|| SecretError::Host(host.chars().take(80).collect()))
        };
        let targets = text.hosts.iter().map(target).collect::<Result<_, _>>()?;
        let header = text.header.trim().to_ascii_lowercase();
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if header.is_empty() || !header.bytes().all(is_token) || OWN_HEADERS.contains(&header.as_str()) {
            return Err(SecretError::Header);
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if text.prefix.len() > PREFIX_CHARS_MAX || !text.prefix.bytes().all(fits) {
            return Err(SecretError::Prefix);
        }
        let variable = match text.variable.as_str() {
            "" => format!("{}_TOKEN", name.to_ascii_uppercase().replace('-', "_")),
            variable => variable.to_owned(),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !variable.bytes().all(is_name) || variable.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(SecretError::Variable);
        }
        Ok(Self { targets, text: SecretText { header, variable, ..text.clone() } })
    }

    /// Whether some policy gives it to programs at each of its hosts.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check_policies(&self, policies: &[Policy]) -> Result<(), SecretError> {
        let is_unknown = |name: &&String| !policies.iter().any(|policy| policy.name == **name);
        if let Some(unknown) = self.text.policies.iter().find(is_unknown) {
            return Err(SecretError::UnknownPolicy(unknown.clone()));
        }
        let lost = self.targets.iter().find(|target| !policies.iter().any(|policy| self.is_for(policy, target)));
        lost.map_or(Ok(()), |target| Err(SecretError::NoPolicy(target.clone())))
    }

    fn is_for(&self, policy: &Policy, target: &Target) -> bool {
        let named = &self.text.policies;
        (named.is_empty() || named.contains(&policy.name)) && policy.allows(target)
    }

    /// A secret with this value.
    ///
    /// # Errors
    /// The value is none that a header can have, or too short to be found again.
    pub fn with(self, value: SecretString) -> Result<Secret, SecretError> {
        let text = value.expose_secret();
        let fits = (VALUE_BYTES_MIN..=VALUE_BYTES_MAX).contains(&text.len());
        if !fits || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecretError::Value);
        }
        Ok(Secret { rule: self, value })
    }
}

/// A secret with its value.
#[derive(Debug, Clone)]
pub struct Secret {
    rule: SecretRule,
    value: SecretString,
}

impl Secret {
    /// As a sandbox has it for which these policies hold; `None` where none of them gives it.
    pub fn for_sandbox(self: &Arc<Self>, policies: &[&Policy]) -> Option<SandboxSecret> {
        let is_given = |target: &&Target| policies.iter().any(|policy| self.rule.is_for(policy, target));
        let targets: Vec<_> = self.rule.targets.iter().filter(is_given).cloned().collect();
        if targets.is_empty() {
            return None;
        }
        // 244 random bits.
        let random = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let placeholder = format!("{}{random}", self.rule.text.prefix).into();
        Some(SandboxSecret { secret: Arc::clone(self), targets, placeholder })
    }
}

/// A secret as one sandbox has it.
#[derive(Debug, Clone)]
pub struct SandboxSecret {
    secret: Arc<Secret>,
    targets: Vec<Target>,
    placeholder: Arc<str>,
}

/// A header with the value in it, which nothing shows.
pub struct Filled {
    pub header: Vec<u8>,
    /// The credentials of HTTP Basic as they were sent, from the value on, to be taken out of the answer.
    pub credentials: Option<Pattern>,
}

impl SandboxSecret {
    /// The variable of the program, and its value there.
    pub fn variable(&self) -> (&str, &str) {
        (&self.secret.rule.text.variable, &self.placeholder)
    }

    /// The hosts that get the value.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.targets.iter().map(|target| &target.host)
    }

    pub fn is_for(&self, target: &Target) -> bool {
        self.targets.contains(target)
    }

    /// Whether a policy gives it to this host. Policies may have changed since the sandbox began.
    pub fn is_given_by(&self, policy: &Policy, target: &Target) -> bool {
        self.secret.rule.is_for(policy, target)
    }

    /// The name of its header, in lower case.
    pub fn header(&self) -> &str {
        &self.secret.rule.text.header
    }

    /// Puts the value in place of the placeholder, also inside the credentials of HTTP Basic. `None` where there is no
    /// placeholder.
    pub fn fill(&self, header: &[u8]) -> Option<Filled> {
        let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let engine = GeneralPurpose::new(&alphabet::STANDARD, lenient);
        if let Some(filled) = self.replaced(header) {
            return Some(Filled { header: filled, credentials: None });
        }
        let (scheme, encoded) = header.split_at_checked("Basic ".len())?;
        let decoded = engine.decode(encoded.trim_ascii()).ok().filter(|_| scheme.eq_ignore_ascii_case(b"basic "))?;
        let (filled, value) = (self.replaced(&decoded)?, self.secret.value.expose_secret().as_bytes());
        let credentials = engine.encode(&filled);
        let header = [scheme, credentials.as_bytes()].concat();
        // From the group of characters on that begins the value. What is before it is the program's choice, and where
        // that repeats itself, a search for it would begin again at each of its characters.
        let begin = filled.windows(value.len()).position(|window| window == value)?;
        let text = credentials[begin / 3 * 4..].trim_end_matches('=').as_bytes();
        Some(Filled { header, credentials: Some(Pattern::exact(text, &self.placeholder)) })
    }

    fn replaced(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (placeholder, value) = (self.placeholder.as_bytes(), self.secret.value.expose_secret().as_bytes());
        let (mut out, mut rest) = (Vec::new(), bytes);
        while let Some(at) = rest.windows(placeholder.len()).position(|window| window == placeholder) {
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(value);
            rest = &rest[at + placeholder.len()..];
        }
        out.extend_from_slice(rest);
        (rest.len() < bytes.len()).then_some(out)
    }

    /// What is searched for in answers.
    pub fn patterns(&self) -> Vec<Pattern> {
        Pattern::of_value(self.secret.value.expose_secret().as_bytes(), &self.placeholder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::network::{PolicyText, Redactor};

    const VALUE: &str = "ghp_0123456789/+abc";

    fn text(hosts: &[&str]) -> SecretText {
        SecretText { hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), ..SecretText::default() }
    }

    fn policy(name: &str, hosts: &[&str]) -> Policy {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        Policy::parse(name, &PolicyText { hosts, ..PolicyText::default() }).expect("a policy")
    }

    fn secret(text: &SecretText) -> Arc<Secret> {
        let rule = SecretRule::parse("git-hub", text).expect("a rule");
        Arc::new(rule.with(VALUE.to_owned().into()).expect("a value"))
    }

    fn target(text: &str) -> Target {
        Target::parse(text, Some(443)).expect(text)
    }

    #[test]
    fn secret_is_there_only_where_a_policy_allows_its_host() {
        let policies = [policy("api", &["*.example.com"]), policy("other", &["api.example.com:8443"])];
        let given =
            |text: &SecretText, policies: &[Policy]| secret(text).for_sandbox(&policies.iter().collect::<Vec<_>>());
        let both = text(&["api.example.com", "api.example.com:8443"]);
        let all = given(&both, &policies).expect("it is there");
        assert!(all.is_for(&target("API.example.com.")) && all.is_for(&target("api.example.com:8443")));
        for other in ["example.com", "x.api.example.com", "api.example.com:80"] {
            assert!(!all.is_for(&target(other)), "{other}");
        }
        let one = given(&both, &policies[1..]).expect("it is there");
        assert!(!one.is_for(&target("api.example.com")), "no policy allows that port");
        assert!(given(&text(&["a.example.net"]), &policies).is_none());
        let named = SecretText { policies: vec!["other".to_owned()], ..both };
        assert!(given(&named, &policies[..1]).is_none(), "another policy allows the host");
        let rule = SecretRule::parse("x", &named).expect("a rule");
        assert_eq!(rule.check_policies(&policies), Err(SecretError::NoPolicy(target("api.example.com"))));
        assert_eq!(rule.check_policies(&policies[..1]), Err(SecretError::UnknownPolicy("other".to_owned())));
    }

    #[test]
    fn placeholder_is_replaced_in_headers_and_in_basic_credentials() {
        let policies = [policy("api", &["api.example.com"])];
        let text = SecretText { prefix: "ghp_".to_owned(), ..text(&["api.example.com"]) };
        let secret = secret(&text).for_sandbox(&[&policies[0]]).expect("it is there");
        let (variable, placeholder) = secret.variable();
        assert_eq!((variable, placeholder.len(), secret.header()), ("GIT_HUB_TOKEN", 68, "authorization"));
        let filled = |header: &str| secret.fill(header.as_bytes()).map(|filled| filled.header);
        let bearer = filled(&format!("Bearer {placeholder},{placeholder}"));
        assert_eq!(bearer, Some(format!("Bearer {VALUE},{VALUE}").into_bytes()));
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let credentials = [format!("me:{placeholder}"), format!("{placeholder}:x"), format!("user:{placeholder}:")];
        for (text, before) in credentials.iter().zip(["bWU6", "", "dXNl"]) {
            let filled = secret.fill(format!("bAsIc {}", encode(text).replace('=', "")).as_bytes()).expect("filled");
            let sent = String::from_utf8(filled.header).expect("text");
            assert_eq!(sent, format!("bAsIc {}", encode(&text.replace(placeholder, VALUE))));
            let patterns = [secret.patterns(), filled.credentials.into_iter().collect()].concat();
            let echo = Redactor::new(patterns).whole(sent.as_bytes()).expect("it was there");
            let echo = String::from_utf8_lossy(&echo);
            assert_eq!(echo.trim_end_matches('='), format!("bAsIc {before}{placeholder}"), "{text}");
        }
        for other in ["Bearer x", "Basic !!!", "Basic bWU6eA==", "Basic", "", &placeholder[1..]] {
            assert_eq!(filled(other), None, "{other}");
        }
        let shown = format!("{secret:?} {:?}", secret.patterns());
        assert!(!shown.contains("0123456789") && shown.contains(placeholder), "{shown}");
    }

    #[test]
    fn an_answer_is_not_searched_for_what_is_before_the_value_in_basic_credentials() {
        let secret = secret(&text(&["api.example.com"])).for_sandbox(&[&policy("api", &["api.example.com"])]);
        let secret = secret.expect("it is there");
        let before = "A".repeat(30_000);
        let sent = base64::engine::general_purpose::STANDARD.encode(format!("{before}:{}", secret.variable().1));
        let filled = secret.fill(format!("Basic {sent}").as_bytes()).expect("filled");
        let patterns = [secret.patterns(), filled.credentials.into_iter().collect()].concat();
        let passed = Redactor::new(patterns).push("QUFB".repeat(5_000).as_bytes());
        assert!(passed.len() > 19_900, "{} bytes of 20000 are no beginning of the value", passed.len());
    }

    #[test]
    fn wrong_secrets_are_refused_and_no_error_repeats_a_value() {
        let parse = |change: fn(&mut SecretText)| {
            let mut text = text(&["api.example.com"]);
            change(&mut text);
            SecretRule::parse("9", &text).map(|_| ())
        };
        assert_eq!(parse(|_| ()), Err(SecretError::Variable));
        assert_eq!(parse(|text| text.hosts.clear()), Err(SecretError::NoHosts));
        assert_eq!(parse(|text| text.hosts[0] = "*.a.b".to_owned()), Err(SecretError::Host("*.a.b".to_owned())));
        for header in ["", "Host", "A B", "Content-Length", "a:b", "Range", "a\r\nb"] {
            let text = SecretText { header: header.to_owned(), ..text(&["a.example"]) };
            assert_eq!(SecretRule::parse("x", &text), Err(SecretError::Header), "{header}");
        }
        assert_eq!(parse(|text| text.prefix = "a b".to_owned()), Err(SecretError::Prefix));
        for value in ["short", "with a space", "line\nbreak-x", "ümlaut-value", &"x".repeat(4097)] {
            let rule = SecretRule::parse("x", &text(&["a.example"])).expect("a rule");
            assert_eq!(rule.with((*value).to_owned().into()).map(|_| ()), Err(SecretError::Value), "{value}");
        }
    }
}
