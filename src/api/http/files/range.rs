//! The requested range of a file, and the conditions of the request (RFC 9110, sections 13 and 14).

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};

use crate::api::http::single;

/// A part of a file. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Its first byte.
    pub first: u64,
    /// Its bytes.
    pub length: u64,
}

/// What to send: a part, or all of it, also when several parts are requested, which a server need not support. The
/// status of an answer without the file: 304 when the client has the current version, 412 when it requires another one,
/// 416 when the part begins beyond the end.
pub(super) fn requested(
    method: &Method,
    headers: &HeaderMap,
    etag: &str,
    size: u64,
) -> Result<Option<Part>, StatusCode> {
    if headers.contains_key(header::IF_MATCH) && !lists(headers, &header::IF_MATCH, etag, false) {
        return Err(StatusCode::PRECONDITION_FAILED);
    }
    if lists(headers, &header::IF_NONE_MATCH, etag, true) {
        return Err(StatusCode::NOT_MODIFIED);
    }
    // Only GET has ranges. A date in If-Range proves nothing here, since programs set the dates of their files.
    let current = matches!(single(headers, &header::IF_RANGE), Ok(tag) if tag.is_none_or(|tag| *tag == *etag));
    match single(headers, &header::RANGE) {
        Ok(Some(range)) if *method == Method::GET && current => part(range.to_str().unwrap_or_default(), size),
        _ => Ok(None),
    }
}

/// Whether a request may replace or delete what has this validator (RFC 9110, section 13.1); `None` stands for nothing.
pub(super) fn holds(headers: &HeaderMap, etag: Option<&str>) -> bool {
    let absent = |name| !headers.contains_key(name);
    let matches = |name, weak| etag.is_some_and(|etag| lists(headers, name, etag, weak));
    (absent(&header::IF_MATCH) || matches(&header::IF_MATCH, false)) && !matches(&header::IF_NONE_MATCH, true)
}

/// Reads `bytes=…`. A malformed range counts as absent.
fn part(range: &str, size: u64) -> Result<Option<Part>, StatusCode> {
    let Some((unit, set)) = range.split_once('=') else { return Ok(None) };
    let Some((first, last)) = set.trim_matches([' ', '\t']).split_once('-') else { return Ok(None) };
    if !unit.eq_ignore_ascii_case("bytes") {
        return Ok(None);
    }
    let (first, last) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last),
        (Some(first), None) if last.is_empty() => (first, u64::MAX),
        (None, Some(length)) if first.is_empty() => {
            (size.saturating_sub(length), if length == 0 { 0 } else { u64::MAX })
        }
        _ => return Ok(None),
    };
    let end = last.saturating_add(1).min(size);
    if first >= end { Err(StatusCode::RANGE_NOT_SATISFIABLE) } else { Ok(Some(Part { first, length: end - first })) }
}

/// Digits alone; more than fit count as the largest number, which is beyond the end of every file.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Whether a list of entity tags holds ours. Ours holds no comma, so the commas of others do no harm.
fn lists(headers: &HeaderMap, name: &HeaderName, etag: &str, weak: bool) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|tag| {
        let tag = if weak { tag.strip_prefix("W/").unwrap_or(tag) } else { tag };
        tag == "*" || tag == etag
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Requested = Result<Option<Part>, StatusCode>;

    const ETAG: &str = "\"0011\"";
    const WHOLE: Requested = Ok(None);
    const UNSATISFIABLE: Requested = Err(StatusCode::RANGE_NOT_SATISFIABLE);
    const NOT_MODIFIED: Requested = Err(StatusCode::NOT_MODIFIED);
    const PRECONDITION_FAILED: Requested = Err(StatusCode::PRECONDITION_FAILED);

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value.parse().expect("a value"));
        }
        map
    }

    fn of(range: &str, size: u64) -> Requested {
        requested(&Method::GET, &headers(&[(header::RANGE, range)]), ETAG, size)
    }

    #[expect(clippy::unnecessary_wraps, reason = "what is requested, as in the tables")]
    fn bytes(first: u64, length: u64) -> Requested {
        Ok(Some(Part { first, length }))
    }

    #[test]
    fn ranges() {
        let table = [
            ("bytes=0-0", bytes(0, 1)),
            ("bytes=0-9", bytes(0, 10)),
            ("bytes=0-10", bytes(0, 10)),
            ("bytes=9-9", bytes(9, 1)),
            ("bytes=3-", bytes(3, 7)),
            ("bytes=-1", bytes(9, 1)),
            ("bytes=-10", bytes(0, 10)),
            ("bytes=-11", bytes(0, 10)),
            ("BYTES=2-3", bytes(2, 2)),
            ("bytes= 2-3 ", bytes(2, 2)),
            ("bytes=0-18446744073709551615", bytes(0, 10)),
            ("bytes=0-99999999999999999999999", bytes(0, 10)),
            ("bytes=-99999999999999999999999", bytes(0, 10)),
            ("bytes=10-", UNSATISFIABLE),
            ("bytes=10-20", UNSATISFIABLE),
            ("bytes=-0", UNSATISFIABLE),
            ("bytes=99999999999999999999999-", UNSATISFIABLE),
            ("bytes=18446744073709551615-", UNSATISFIABLE),
            ("bytes=5-4", WHOLE),
            ("bytes=-", WHOLE),
            ("bytes=", WHOLE),
            ("bytes", WHOLE),
            ("", WHOLE),
            ("bytes=a-b", WHOLE),
            ("bytes=+1-2", WHOLE),
            ("bytes=1-+2", WHOLE),
            ("bytes=0x1-2", WHOLE),
            ("bytes=--1", WHOLE),
            ("bytes=1--", WHOLE),
            ("bytes=0-0,-1", WHOLE),
            ("bytes=1-2,3-4", WHOLE),
            ("items=0-1", WHOLE),
            ("bytes 0-1", WHOLE),
        ];
        for (range, expected) in table {
            assert_eq!(of(range, 10), expected, "{range}");
        }
        for range in ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=-0"] {
            assert_eq!(of(range, 0), UNSATISFIABLE, "{range}");
        }
        assert_eq!(of("bytes=18446744073709551614-", u64::MAX), bytes(u64::MAX - 1, 1));
        assert_eq!(of(&format!("bytes={}", "0-0,".repeat(100_000)), 10), WHOLE);
    }

    #[test]
    fn conditions_of_changes() {
        /// Headers, and whether they let an existing and a missing file be written.
        type Row<'a> = (&'a [(HeaderName, &'a str)], bool, bool);
        let table: [Row; 7] = [
            (&[], true, true),
            (&[(header::IF_MATCH, ETAG)], true, false),
            (&[(header::IF_MATCH, "*")], true, false),
            (&[(header::IF_MATCH, "\"x\", W/\"0011\"")], false, false),
            (&[(header::IF_NONE_MATCH, "*")], false, true),
            (&[(header::IF_NONE_MATCH, ETAG)], false, true),
            (&[(header::IF_NONE_MATCH, "\"x\"")], true, true),
        ];
        for (pairs, existing, missing) in table {
            let headers = headers(pairs);
            assert_eq!((holds(&headers, Some(ETAG)), holds(&headers, None)), (existing, missing), "{pairs:?}");
        }
    }

    #[test]
    fn conditions() {
        let range = (header::RANGE, "bytes=0-0");
        let table: [(&[(HeaderName, &str)], Requested); 14] = [
            (&[(header::IF_NONE_MATCH, ETAG)], NOT_MODIFIED),
            (&[(header::IF_NONE_MATCH, "W/\"0011\"")], NOT_MODIFIED),
            (&[(header::IF_NONE_MATCH, "\"x\", \"0011\"")], NOT_MODIFIED),
            (&[(header::IF_NONE_MATCH, "*"), range.clone()], NOT_MODIFIED),
            (&[(header::IF_NONE_MATCH, "0011")], WHOLE),
            (&[(header::IF_NONE_MATCH, "\"x\"")], WHOLE),
            (&[(header::IF_MATCH, ETAG), range.clone()], bytes(0, 1)),
            (&[(header::IF_MATCH, "*")], WHOLE),
            (&[(header::IF_MATCH, "W/\"0011\"")], PRECONDITION_FAILED),
            (&[(header::IF_RANGE, ETAG), range.clone()], bytes(0, 1)),
            (&[(header::IF_RANGE, "W/\"0011\""), range.clone()], WHOLE),
            (&[(header::IF_RANGE, "\"x\""), range.clone()], WHOLE),
            (&[(header::IF_RANGE, "Sat, 21 Nov 2026 09:00:00 GMT"), range.clone()], WHOLE),
            (&[range.clone(), range.clone()], WHOLE),
        ];
        for (pairs, expected) in table {
            assert_eq!(requested(&Method::GET, &headers(pairs), ETAG, 10), expected, "{pairs:?}");
        }
        assert_eq!(requested(&Method::HEAD, &headers(&[range]), ETAG, 10), WHOLE);
    }
}
