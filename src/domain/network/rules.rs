//! Rules for requests: which methods and paths a policy lets through. A path that two servers could read differently is
//! never compared.

use std::fmt::Write as _;

use super::{Policy, PolicyError, PolicyText, Refusal, Target, redactor::number};

/// How much of a request's method or path a refusal repeats, in characters.
const SHOWN_CHARS_MAX: usize = 80;

/// A request as far as rules look at it.
#[derive(Debug, Clone, Copy)]
pub struct RequestLine<'a> {
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
}

/// Checks the methods of a policy; its paths in one notation.
pub(super) fn paths(text: &PolicyText) -> Result<Vec<String>, PolicyError> {
    let wrong_method = |method: &&String| method.is_empty() || !method.bytes().all(|b| b.is_ascii_uppercase());
    if let Some(method) = text.methods.iter().find(wrong_method) {
        return Err(PolicyError::Method(method.chars().take(20).collect()));
    }
    let path = |text: &String| {
        let path = plain(text).filter(|_| !text.contains(['?', '#', '*']));
        path.ok_or_else(|| PolicyError::Path(text.chars().take(80).collect()))
    };
    text.paths.iter().map(path).collect()
}

impl Policy {
    /// Whether there is any rule for requests: they must not be hidden then.
    pub fn has_request_rules(&self) -> bool {
        !self.text.methods.is_empty() || !self.paths.is_empty()
    }

    /// Whether it lets a request to a host of its own through.
    ///
    /// # Errors
    /// The key of the policy that stands against it. What the program wrote is cut to what fits into a line.
    pub fn check(&self, target: &Target, request: &RequestLine<'_>) -> Result<(), Refusal> {
        let methods = &self.text.methods;
        let shown = |text: &str| text.chars().filter(char::is_ascii_graphic).take(SHOWN_CHARS_MAX).collect();
        if !methods.is_empty() && !methods.iter().any(|method| method == request.method) {
            let method = shown(request.method);
            return Err(Refusal::Method { target: target.clone(), policy: self.name.clone(), method });
        }
        if self.paths.is_empty() {
            return Ok(());
        }
        // The path could be another one to another reader.
        let path = plain(request.path).ok_or_else(|| Refusal::AmbiguousPath(target.clone()))?;
        let covers = |rule: &String| if rule.ends_with('/') { path.starts_with(rule) } else { path == *rule };
        if self.paths.iter().any(covers) {
            return Ok(());
        }
        Err(Refusal::Path { target: target.clone(), policy: self.name.clone(), path: shown(request.path) })
    }
}

/// The path with its needless percent encodings decoded. `None` for one that servers read differently: empty segments,
/// `.` and `..` in any encoding, parameters (`;`), backslashes, encoded separators, a `%` that is encoded or begins no
/// encoding, control characters, and what is not ASCII.
fn plain(path: &str) -> Option<String> {
    let mut plain = String::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, is_encoded) = match (first, after) {
            (b'%', [high, low, ..]) => (u8::try_from(number(&[*high, *low], 16)?).ok()?, true),
            (b'%', _) => return None,
            (byte, _) => (*byte, false),
        };
        rest = if is_encoded { &after[2..] } else { after };
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        let is_ambiguous = matches!(byte, b';' | b'\\') || is_encoded && matches!(byte, b'/' | b'%');
        if byte.is_ascii_control() || !byte.is_ascii() || is_ambiguous {
            return None;
        }
        if is_encoded && !is_plain {
            // A `String` takes everything.
            let _ = write!(plain, "%{byte:02X}");
        } else {
            plain.push(byte.into());
        }
    }
    let inner = plain.strip_prefix('/')?;
    let is_ambiguous = |segment: &str| matches!(segment, "." | "..");
    // A slash at the end is a segment of its own, and the root has no other.
    let has_empty = inner.starts_with('/') || inner.contains("//");
    (!has_empty && !inner.split('/').any(is_ambiguous)).then_some(plain)
}

#[cfg(test)]
mod tests {
    use bolero::check;
    use percent_encoding::percent_decode_str;

    use super::*;
    use crate::domain::fuzz_support::{Mutation, cases, mutated};

    fn policy(methods: &[&str], paths: &[&str]) -> Result<Policy, PolicyError> {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let (hosts, methods, paths) = (owned(&["a.example"]), owned(methods), owned(paths));
        Policy::parse("web", &PolicyText { hosts, methods, paths, ..PolicyText::default() })
    }

    /// The word of the refusal.
    fn checked(policy: &Policy, method: &str, path: &str) -> Result<(), &'static str> {
        let target = Target::parse("a.example:443", None).expect("a target");
        policy.check(&target, &RequestLine { method, path }).map_err(|refusal| refusal.word())
    }

    fn check_path(path: &str) -> Result<(), &'static str> {
        checked(&policy(&[], &["/v1/", "/status"]).expect("a policy"), "GET", path)
    }

    #[test]
    fn methods_are_those_named() {
        let policy = policy(&["GET", "HEAD"], &[]).expect("a policy");
        for (method, want) in [
            ("GET", Ok(())),
            ("HEAD", Ok(())),
            ("get", Err("method")),
            ("DELETE", Err("method")),
            ("GETS", Err("method")),
        ] {
            assert_eq!(checked(&policy, method, "//"), want, "{method}");
        }
    }

    #[test]
    fn paths_are_compared_in_one_notation_and_ambiguous_ones_are_refused() {
        for path in ["/v1/", "/v1/users", "/%76%31/users", "/v1/a%20b", "/v1/a%3Fb", "/v1/a/", "/status", "/v1/..a"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for path in ["/", "/v1", "/v10/", "/V1/", "/status/", "/status/x", "/v2/v1/"] {
            assert_eq!(check_path(path), Err("path"), "{path}");
        }
        for path in [
            "",
            "*",
            "v1/",
            "//v1/",
            "/v1//x",
            "/v1/../x",
            "/v1/./x",
            "/v1/%2e%2e/x",
            "/v1/.%2E/x",
            "/v1/..",
            "/v1/%2e",
            "/v1/..;/x",
            "/v1/x;y",
            "/v1/%3b",
            "/v1/a%2fb",
            "/v1/a%2Fb",
            "/v1/a%5cb",
            "/v1/a\\b",
            "/v1/%252e%252e/x",
            "/v1/%",
            "/v1/%2",
            "/v1/%zz",
            "/v1/%00",
            "/v1/a\0b",
            "/v1/%0a",
            "/v1/ä",
            "/v1/%c3%a4",
            "/v1/%c0%ae/",
        ] {
            assert_eq!(check_path(path), Err("ambiguous_path"), "{path}");
        }
    }

    #[test]
    fn rules_that_cover_nothing_are_refused() {
        for method in ["", "get", "GET,PUT", "G T"] {
            assert!(policy(&[method], &[]).is_err(), "{method}");
        }
        for path in ["", "v1/", "/v1/../", "/a?b", "/a#b", "/*", "/a//", "/%2e/"] {
            assert!(policy(&[], &[path]).is_err(), "{path}");
        }
        assert!(!policy(&[], &[]).expect("a policy").has_request_rules());
    }

    /// What a lenient server could take a path for: everything decoded twice, parameters left out, dots resolved.
    fn lenient(path: &str) -> Vec<String> {
        let decoded = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let decoded = percent_decode_str(&decoded).decode_utf8_lossy().replace('\\', "/");
        let mut segments = Vec::new();
        for segment in decoded.split('/') {
            match segment.split(';').next().unwrap_or_default() {
                "" | "." => {}
                ".." => drop(segments.pop()),
                name => segments.push(name.to_owned()),
            }
        }
        segments
    }

    /// Alterations of a path: what is let through is below the rule for a lenient server too.
    #[test]
    fn fuzz_paths() {
        check!().with_iterations(cases()).with_type::<Vec<Mutation>>().for_each(|changes| {
            for good in ["/v1/a/b", "/v1/%2e%2e/b;c/../%2f/\\..//x", "/x/../v1/", "/status"] {
                let path = mutated(good, changes);
                let path = String::from_utf8_lossy(&path);
                if check_path(&path).is_ok() {
                    let read = lenient(&path);
                    assert!(read.first().is_some_and(|first| first == "v1" || first == "status"), "{path:?}: {read:?}");
                }
            }
        });
    }
}
