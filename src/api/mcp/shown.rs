//! The limits of one answer, texts cut to fit into it, lines that a program draws again, and sizes and times as
//! descriptions and answers show them.
//! Clients drop an event above 1 MiB with the whole answer, so lengths are counted in JSON, where a control character
//! takes six bytes.

use crate::domain::text::json_bytes;

/// One answer, in bytes of JSON.
pub(super) const ANSWER_BYTES_MAX: usize = 700 << 10;
/// A text of which an answer holds nothing else, in bytes: JSON writes a control character in six.
pub(super) const TEXT_BYTES_MAX: usize = ANSWER_BYTES_MAX / 6 - 1024;
/// A program's output in one answer, in bytes.
pub(super) const OUTPUT_BYTES_MAX: usize = 48 << 10;
/// What the JSON of a shown text may exceed the text by: cuts texts of control characters shorter.
const JSON_PER_BYTE: usize = 3;

/// Where the longest beginning ends that has at most so many bytes, also in JSON.
pub(super) fn fitting(text: &str, bytes_max: usize) -> usize {
    beginning(text, bytes_max, usize::MAX)
}

fn beginning(text: &str, bytes_max: usize, chars_max: usize) -> usize {
    let ends = text.char_indices().map(|(at, c)| (at + c.len_utf8(), c));
    prefix(ends.take(chars_max), bytes_max).unwrap_or(0)
}

/// The last of the ends that is within the bounds.
fn prefix(ends: impl Iterator<Item = (usize, char)>, bytes_max: usize) -> Option<usize> {
    let (mut bytes, mut json) = (0, 0);
    let within = ends.take_while(|(_, c)| {
        (bytes, json) = (bytes + c.len_utf8(), json + json_bytes(c.encode_utf8(&mut [0; 4])));
        bytes <= bytes_max && json <= bytes_max * JSON_PER_BYTE
    });
    within.last().map(|(end, _)| end)
}

/// The text, or its beginning and its end around `mark(where the beginning ends, how much is left out)`.
pub(super) fn shorten(text: &str, bytes_max: usize, mark: impl FnOnce(usize, usize) -> String) -> String {
    shorten_to(text, (bytes_max, usize::MAX), mark)
}

/// The same with a bound in characters too.
pub(super) fn shorten_to(
    text: &str,
    (bytes_max, chars_max): (usize, usize),
    mark: impl FnOnce(usize, usize) -> String,
) -> String {
    if beginning(text, bytes_max, chars_max) == text.len() {
        return text.to_owned();
    }
    let head = beginning(text, bytes_max / 2, chars_max / 2);
    let tail = prefix(text.char_indices().rev().take(chars_max / 2), bytes_max / 2).unwrap_or(text.len()).max(head);
    [&text[..head], &mark(head, tail - head), &text[tail..]].concat()
}

/// The text, or its beginning and its end around an ellipsis.
pub(super) fn clipped(text: &str, bytes_max: usize) -> String {
    shorten(text, bytes_max, |_, _| "…".to_owned())
}

/// The mark of texts whose rest cannot be had.
pub(super) fn left_out(_: usize, left: usize) -> String {
    format!("\n[… {left} bytes are left out here …]\n")
}

/// The last drawing that is not empty of each line that a program draws again after a carriage return, such as a
/// progress bar. All drawings of one bar would fill an answer.
pub(super) fn last_drawings(text: &str) -> String {
    let lines = text.split_inclusive('\n').flat_map(|line| {
        let end = ["\r\n", "\n"].into_iter().find(|end| line.ends_with(*end)).unwrap_or_default();
        let drawings = line.trim_end_matches(['\r', '\n']);
        [drawings.rsplit('\r').next().unwrap_or_default(), end]
    });
    lines.collect()
}

pub(super) fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { format!("{ms} ms") }
}

pub(super) fn thousandths(millis: u32) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number of bytes for people: at most one digit after the point, binary units.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            let point = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
            return format!("{}{point} {unit}", tenths / 10);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::schema::json_len;

    #[test]
    fn lengths_are_those_of_serde() {
        let all: String = ('\0'..'\u{100}').chain("€😀\u{2028}".chars()).collect();
        assert_eq!(json_bytes(&all) + 2, json_len(&all));
        assert_eq!(json_len(&all), serde_json::to_string(&all).expect("JSON").len());
    }

    #[test]
    fn shorten_keeps_both_ends_and_bounds_the_json() {
        let mark = |_: usize, left: usize| format!("<{left}>");
        assert_eq!(shorten("abcdef", 6, mark), "abcdef");
        assert_eq!(shorten("abcdefgh", 6, mark), "abc<2>fgh");
        assert_eq!(shorten("€€€€", 6, mark), "€<6>€");
        assert_eq!(shorten_to("€€€€", (100, 4), mark), "€€€€", "characters are not bytes");
        assert_eq!(shorten_to("€€€abc", (100, 4), mark), "€€<4>bc");
        assert_eq!(shorten_to("ab", (100, 0), mark), "<2>");
        for worst in ["\u{1}", "\"", "€", "x", "\u{1b}[31m"] {
            let short = shorten(&worst.repeat(100_000), 1000, |head, left| format!("<{head},{left}>"));
            assert!(short.len() <= 1020 && json_bytes(&short) <= 3020, "{worst:?}");
            assert!(short.starts_with(worst) && short.ends_with(worst), "{worst:?}");
        }
    }

    #[test]
    fn last_drawings_are_what_is_left_of_each_line() {
        for (text, shown) in [
            ("", ""),
            ("plain\nlines", "plain\nlines"),
            ("plain\r\n\r\nlines\r\n", "plain\r\n\r\nlines\r\n"),
            ("10%\r50%\r100%\n", "100%\n"),
            ("10%\r50%\r100%", "100%"),
            ("\r10%\r\r50%\r", "50%"),
            ("10%\r50%\r\r\n", "50%\r\n"),
            ("\r", ""),
            ("\r\r\n\r\r", "\r\n"),
            ("a\rb\n\nc\r\nd\re\r\nf", "b\n\nc\r\ne\r\nf"),
            ("é\r€\r", "€"),
        ] {
            assert_eq!(last_drawings(text), shown, "{text:?}");
        }
    }

    #[test]
    fn figures_are_readable() {
        assert_eq!(
            [0, 1023, 1024, 1536, 256 << 20, u64::MAX].map(size),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "256 MiB", "17179869183.9 GiB"]
        );
        assert_eq!([500, 1000, 1250, 2].map(thousandths), ["0.5", "1", "1.25", "0.002"]);
        assert_eq!([30_000, 1500].map(seconds), ["30 s", "1500 ms"]);
    }
}
