//! The requested range of a file, and the conditions of the request (RFC 9110, sections 13 and 14).

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::api::http::parts::single;

/// A part of a file. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// Its first byte.
    pub first: u64,
    /// Its bytes.
    pub length: u64,
}

/// What to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeRequest {
    /// The client has the current version: 304.
    NotModified,
    /// The client requires another version: 412.
    PreconditionFailed,
    /// The part begins beyond the end: 416.
    Unsatisfiable,
    /// All of it. Also when several parts are requested, which a server need not support.
    Whole,
    /// One part.
    Part(Part),
}

pub(super) fn range_request(method: &Method, headers: &HeaderMap, etag: &str, size: u64) -> RangeRequest {
    if headers.contains_key(header::IF_MATCH) && !lists(headers, &header::IF_MATCH, etag, false) {
        return RangeRequest::PreconditionFailed;
    }
    if lists(headers, &header::IF_NONE_MATCH, etag, true) {
        return RangeRequest::NotModified;
    }
    // Only GET has ranges. A date in If-Range proves nothing here, since programs set the dates of their files.
    let current = matches!(only(headers, &header::IF_RANGE), Ok(tag) if tag.is_none_or(|tag| tag == etag));
    match only(headers, &header::RANGE) {
        Ok(Some(range)) if *method == Method::GET && current => part(range, size),
        _ => RangeRequest::Whole,
    }
}

/// Whether a request may replace or delete what has this validator (RFC 9110, section 13.1); `None` stands for nothing.
pub(super) fn holds(headers: &HeaderMap, etag: Option<&str>) -> bool {
    let absent = |name| !headers.contains_key(name);
    let matches = |name, weak| etag.is_some_and(|etag| lists(headers, name, etag, weak));
    (absent(&header::IF_MATCH) || matches(&header::IF_MATCH, false)) && !matches(&header::IF_NONE_MATCH, true)
}

/// Reads `bytes=…`. A malformed range counts as absent.
fn part(range: &str, size: u64) -> RangeRequest {
    let Some((unit, set)) = range.split_once('=') else { return RangeRequest::Whole };
    let Some((first, last)) = set.trim_matches([' ', '\t']).split_once('-') else { return RangeRequest::Whole };
    if !unit.eq_ignore_ascii_case("bytes") {
        return RangeRequest::Whole;
    }
    let (first, last) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last),
        (Some(first), None) if last.is_empty() => (first, u64::MAX),
        (None, Some(length)) if first.is_empty() => {
            (size.saturating_sub(length), if length == 0 { 0 } else { u64::MAX })
        }
        _ => return RangeRequest::Whole,
    };
    let end = last.saturating_add(1).min(size);
    if first >= end { RangeRequest::Unsatisfiable } else { RangeRequest::Part(Part { first, length: end - first }) }
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

/// A header that came twice, or is no text.
struct InvalidHeader;

/// The value of a header that may come once, if it came.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, InvalidHeader> {
    let value = single(headers, name).map_err(|_| InvalidHeader)?;
    value.map(HeaderValue::to_str).transpose().map_err(|_| InvalidHeader)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"0011\"";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, value.parse().expect("a value"));
        }
        map
    }

    fn of(range: &str, size: u64) -> RangeRequest {
        range_request(&Method::GET, &headers(&[(header::RANGE, range)]), ETAG, size)
    }

    fn bytes(first: u64, length: u64) -> RangeRequest {
        RangeRequest::Part(Part { first, length })
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
            ("bytes=10-", RangeRequest::Unsatisfiable),
            ("bytes=10-20", RangeRequest::Unsatisfiable),
            ("bytes=-0", RangeRequest::Unsatisfiable),
            ("bytes=99999999999999999999999-", RangeRequest::Unsatisfiable),
            ("bytes=18446744073709551615-", RangeRequest::Unsatisfiable),
            ("bytes=5-4", RangeRequest::Whole),
            ("bytes=-", RangeRequest::Whole),
            ("bytes=", RangeRequest::Whole),
            ("bytes", RangeRequest::Whole),
            ("", RangeRequest::Whole),
            ("bytes=a-b", RangeRequest::Whole),
            ("bytes=+1-2", RangeRequest::Whole),
            ("bytes=1-+2", RangeRequest::Whole),
            ("bytes=0x1-2", RangeRequest::Whole),
            ("bytes=--1", RangeRequest::Whole),
            ("bytes=1--", RangeRequest::Whole),
            ("bytes=0-0,-1", RangeRequest::Whole),
            ("bytes=1-2,3-4", RangeRequest::Whole),
            ("items=0-1", RangeRequest::Whole),
            ("bytes 0-1", RangeRequest::Whole),
        ];
        for (range, expected) in table {
            assert_eq!(of(range, 10), expected, "{range}");
        }
        for range in ["bytes=0-", "bytes=0-0", "bytes=-1", "bytes=-0"] {
            assert_eq!(of(range, 0), RangeRequest::Unsatisfiable, "{range}");
        }
        assert_eq!(of("bytes=18446744073709551614-", u64::MAX), bytes(u64::MAX - 1, 1));
        assert_eq!(of(&format!("bytes={}", "0-0,".repeat(100_000)), 10), RangeRequest::Whole);
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
        let table: [(&[(HeaderName, &str)], RangeRequest); 14] = [
            (&[(header::IF_NONE_MATCH, ETAG)], RangeRequest::NotModified),
            (&[(header::IF_NONE_MATCH, "W/\"0011\"")], RangeRequest::NotModified),
            (&[(header::IF_NONE_MATCH, "\"x\", \"0011\"")], RangeRequest::NotModified),
            (&[(header::IF_NONE_MATCH, "*"), range.clone()], RangeRequest::NotModified),
            (&[(header::IF_NONE_MATCH, "0011")], RangeRequest::Whole),
            (&[(header::IF_NONE_MATCH, "\"x\"")], RangeRequest::Whole),
            (&[(header::IF_MATCH, ETAG), range.clone()], bytes(0, 1)),
            (&[(header::IF_MATCH, "*")], RangeRequest::Whole),
            (&[(header::IF_MATCH, "W/\"0011\"")], RangeRequest::PreconditionFailed),
            (&[(header::IF_RANGE, ETAG), range.clone()], bytes(0, 1)),
            (&[(header::IF_RANGE, "W/\"0011\""), range.clone()], RangeRequest::Whole),
            (&[(header::IF_RANGE, "\"x\""), range.clone()], RangeRequest::Whole),
            (&[(header::IF_RANGE, "Sat, 21 Nov 2026 09:00:00 GMT"), range.clone()], RangeRequest::Whole),
            (&[range.clone(), range.clone()], RangeRequest::Whole),
        ];
        for (pairs, expected) in table {
            assert_eq!(range_request(&Method::GET, &headers(pairs), ETAG, 10), expected, "{pairs:?}");
        }
        assert_eq!(range_request(&Method::HEAD, &headers(&[range]), ETAG, 10), RangeRequest::Whole);
    }
}
