//! Versions and selectors of versions, as npm writes them. A version in a runner's label is free text: its leading
//! numbers count.

use semver::{Version, VersionReq};

use crate::ports::runner::Runner;

/// A runner's version as three numbers.
pub(super) fn version(runner: &Runner) -> Version {
    numbers(runner.version.as_deref().unwrap_or_default())
}

fn numbers(text: &str) -> Version {
    let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut parts = text[..end].split('.').map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    Version::new(next(), next(), next())
}

/// Whether a selector takes a version; `None` when it is no selector.
pub(super) fn takes(selector: &str, version: &Version) -> Option<bool> {
    let mut any = false;
    for alternative in selector.split("||") {
        any |= range(alternative.trim())?.matches(version);
    }
    Some(any)
}

fn range(text: &str) -> Option<VersionReq> {
    if matches!(text, "" | "*" | "x" | "X" | "latest") {
        return Some(VersionReq::STAR);
    }
    if let Some((from, to)) = text.split_once(" - ") {
        return VersionReq::parse(&format!(">={}, <={}", from.trim(), to.trim())).ok();
    }
    // An operator may stand apart from its version.
    let mut parts: Vec<String> = Vec::new();
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        match parts.last_mut() {
            Some(last) if last.ends_with(['<', '>', '=', '~', '^']) => last.push_str(word),
            _ => parts.push(word.to_owned()),
        }
    }
    let comparators: Vec<_> = parts.iter().map(|part| comparator(part)).collect();
    VersionReq::parse(&comparators.join(", ")).ok()
}

/// A bare version means itself here, and everything compatible there.
fn comparator(part: &str) -> String {
    let part = part.replace("~>", "~");
    let (operator, version) = part.split_at(part.find(|c: char| !"<>=~^".contains(c)).unwrap_or(part.len()));
    let version = version.trim_start_matches('v').replace(['x', 'X'], "*");
    match (operator, version.contains('*')) {
        ("" | "=" | "^" | "~", true) => version,
        ("", false) => format!("={version}"),
        (operator, _) => format!("{operator}{}", version.trim_end_matches(".*")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        let version = numbers("3.13.5 (main)");
        assert_eq!(version, Version::new(3, 13, 5));
        for good in [
            "*",
            "x",
            "",
            "3",
            "3.x",
            "3.13",
            "3.13.x",
            "3.13.5",
            "=3.13.5",
            "v3.13.5",
            "^3.10.0",
            "~3.13.1",
            ">=3",
            ">= 3.0.0",
            ">3.10 <4",
            "2.x || 3.x",
            "3.10.0 - 3.14.0",
            "latest",
            "3.*",
            "^3.x",
        ] {
            assert_eq!(takes(good, &version), Some(true), "{good}");
        }
        for bad in ["2", "3.12", "3.13.4", "^2", "<3", ">=4", "~3.12.0", "2.x || 4.x"] {
            assert_eq!(takes(bad, &version), Some(false), "{bad}");
        }
        for nonsense in ["abc", "3.x.y.z", "3..", "-1", "^^3"] {
            assert_eq!(takes(nonsense, &version), None, "{nonsense}");
        }
        assert_eq!(numbers(""), Version::new(0, 0, 0));
        assert_eq!(numbers("v24.1"), Version::new(24, 1, 0));
    }
}
