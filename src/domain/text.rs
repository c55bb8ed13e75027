//! Formats times and bytes for logs and clients, and digests them.

use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Whole milliseconds.
pub fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A number for what has only signed ones: a database, a gauge, a span.
pub fn whole<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// A time outside the range of RFC 3339 is shown as the epoch.
pub fn rfc3339(unix_s: i64) -> String {
    let moment = OffsetDateTime::from_unix_timestamp(unix_s).ok();
    // Years before 0 are times that it cannot write.
    moment.and_then(|moment| moment.format(&Rfc3339).ok()).unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

/// The length of a text in JSON, in bytes, without its quotes.
pub fn json_bytes(text: &str) -> usize {
    let byte = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(byte).sum()
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The HMAC with SHA-256 of these parts, one after the other.
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Lower case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// An error with its causes, for a log line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The bytes that hexadecimal digits of either case stand for.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?));
    rest.is_empty().then(|| bytes.collect()).flatten()
}

/// The words of a text with one space between them, so that it can be an item of a list.
pub fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The beginning of a name that a client wrote, for a message that repeats it.
pub fn shown(name: &str) -> String {
    name.chars().take(80).collect::<String>().escape_debug().to_string()
}

/// The items of a list with commas, without empty ones.
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Whether a name is of this form, in which `*` stands for any characters. Each part between two of them is looked for
/// once, where it is first: an earlier position leaves more to the parts after it.
pub fn is_like(form: &str, name: &str) -> bool {
    let mut parts = form.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(before) = last.replace(part) {
            match rest.find(before) {
                Some(at) => rest = &rest[at + str::len(before)..],
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |last: &str| rest.ends_with(last))
}

/// What stands in a program's output for bytes that were dropped.
pub fn cut_mark(bytes: u64) -> String {
    format!("\n[… {bytes} bytes were not kept …]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_formats_any_time() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_795_253_483), "2026-11-21T09:31:23Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59Z");
        assert_eq!(rfc3339(-62_167_219_200), "0000-01-01T00:00:00Z");
        // The last two: years that have no form in RFC 3339, which programs can set on most file systems.
        for extreme in [i64::MAX, i64::MIN, 253_402_300_800, -62_167_219_201, -100_000_000_000] {
            assert_eq!(rfc3339(extreme), "1970-01-01T00:00:00Z", "{extreme}");
        }
    }

    #[test]
    fn hex_writes_two_digits_for_each_byte() {
        assert_eq!(hex(b"\x00\x0f\xa0\xff"), "000fa0ff");
        assert_eq!(unhex("000fA0ff").as_deref(), Some(&b"\x00\x0f\xa0\xff"[..]));
        assert_eq!(unhex(""), Some(Vec::new()));
        for bad in ["0", "0g", "+1", " 1", "\u{e4}", "0x00"] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (form, name) in
            [("*", ""), ("*", "a"), ("a*", "a"), ("a*c", "abc"), ("*b*", "abc"), ("a*b*c", "aXbYbc"), ("a", "a")]
        {
            assert!(is_like(form, name), "{form} {name}");
        }
        for (form, name) in
            [("", "a"), ("a*", "ba"), ("a*a", "a"), ("*b*b*", "abc"), ("a", "ab"), ("*a", "ab"), ("A*", "ab")]
        {
            assert!(!is_like(form, name), "{form} {name}");
        }
        let (text, form) = ("a".repeat(60), "*a".repeat(30));
        assert!(is_like(&form, &text));
        assert!(!is_like(&(form + "b"), &text), "no position is tried again");
    }
}
