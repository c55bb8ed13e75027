//! Removes texts from bytes that arrive in pieces, in the forms in which a server may repeat them: as they are,
//! percent-encoded, escaped as in JSON or HTML, and in base64 at each of its three alignments. A text that a server
//! transforms otherwise is not found.

use std::{fmt, sync::Arc};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};

/// The longest reference of HTML that is read, in bytes, and those by name: of the characters that HTML escapes.
const REFERENCE_BYTES_MAX: usize = 6;
const NAMED: [(&[u8], u8); 5] = [(b"amp", b'&'), (b"apos", b'\''), (b"gt", b'>'), (b"lt", b'<'), (b"quot", b'"')];

/// A text to take out, and what comes in its place.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: Vec<u8>,
    instead: Arc<str>,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern(for {})", self.instead)
    }
}

impl Pattern {
    /// A pattern of one text alone.
    pub(super) fn exact(text: &[u8], instead: &Arc<str>) -> Self {
        Self { text: text.to_vec(), instead: Arc::clone(instead) }
    }

    /// As it is in a name whose case is not kept.
    #[must_use]
    pub fn in_lower_case(&self) -> Self {
        Self::exact(&self.text.to_ascii_lowercase(), &self.instead)
    }

    /// The patterns of a value: itself, and its base64 wherever it begins in what was encoded.
    pub(super) fn of_value(value: &[u8], instead: &Arc<str>) -> Vec<Self> {
        let mut texts = vec![value.to_vec()];
        for before in 0..3 {
            let bytes = [&[0; 2][..before], value].concat();
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                let encoded = engine.encode(&bytes).into_bytes();
                // A character that has bits of a neighbour differs with it.
                let first = (before * 8).div_ceil(6);
                texts.push(encoded[first..bytes.len() * 8 / 6].to_vec());
            }
        }
        texts.sort();
        texts.dedup();
        texts.into_iter().map(|text| Self::exact(&text, instead)).collect()
    }
}

/// How a text fits the beginning of some bytes.
enum Match {
    No,
    /// The bytes end within it.
    Begins,
    /// So many bytes are it.
    Whole(usize),
}

/// Searches one stream of bytes. Holds back only what may be the beginning of a text, at most six bytes for each of the
/// longest.
#[derive(Debug)]
pub struct Redactor {
    patterns: Vec<Pattern>,
    /// Whether a text can begin with this byte.
    begins: [bool; 256],
    held: Vec<u8>,
}

impl Redactor {
    pub fn new(patterns: Vec<Pattern>) -> Self {
        let mut begins = [false; 256];
        let firsts = patterns.iter().filter_map(|pattern| pattern.text.first());
        firsts.chain(b"%\\&").for_each(|first| begins[usize::from(*first)] = true);
        Self { patterns, begins, held: Vec::new() }
    }

    /// Takes a piece; what is known not to be of a text.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        self.search(false)
    }

    /// The bytes that were held back, searched as the last ones.
    pub fn end(&mut self) -> Vec<u8> {
        self.search(true)
    }

    /// The whole of some bytes; `None` when none of the texts is there.
    pub fn whole(mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.held = bytes.to_vec();
        let searched = self.search(true);
        (searched != bytes).then_some(searched)
    }

    fn search(&mut self, is_end: bool) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.held);
        let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
        let mut ends = Ends::default();
        loop {
            let rest = &bytes[at..];
            let other = rest.iter().position(|byte| self.begins[usize::from(*byte)]).unwrap_or(rest.len());
            out.extend_from_slice(&rest[..other]);
            at += other;
            if at == bytes.len() {
                return out;
            }
            match self.fit(&bytes[at..], is_end, &mut ends) {
                (Match::Whole(length), instead) => {
                    out.extend_from_slice(instead.as_bytes());
                    at += length;
                }
                (Match::Begins, _) => {
                    self.held = bytes[at..].to_vec();
                    return out;
                }
                (Match::No, _) => {
                    out.push(bytes[at]);
                    at += 1;
                }
            }
        }
    }

    /// The longest text that begins here, and what comes in its place.
    fn fit(&self, bytes: &[u8], is_end: bool, ends: &mut Ends) -> (Match, &str) {
        let mut best = (Match::No, "");
        for pattern in &self.patterns {
            match (fit(&pattern.text, bytes, ends), &best.0) {
                // It may turn out longer than one that is whole, whose rest would pass.
                (Match::Begins, _) if !is_end => return (Match::Begins, ""),
                (Match::Whole(length), Match::Whole(longest)) if length <= *longest => {}
                (found @ Match::Whole(_), _) => best = (found, &pattern.instead),
                _ => {}
            }
        }
        best
    }
}

/// Where what was found so far may end, and where with the next byte of the text: at more than one position only where
/// the text itself has a `%`, `&` or backslash. A search has one: where each of its bytes may begin a text, two
/// allocations for each text would be most of its work.
type Ends = [Vec<usize>; 2];

/// Each byte of the text may stand for itself, as `%2F`, as `\u002f`, as `&#x2F;`, or after a backslash.
fn fit(text: &[u8], bytes: &[u8], [ends, next]: &mut Ends) -> Match {
    if bytes.first().is_none_or(|first| ![text[0], b'%', b'\\', b'&'].contains(first)) {
        return Match::No;
    }
    ends.clear();
    ends.push(0);
    let mut begins = false;
    for &byte in text {
        for &end in ends.iter() {
            let rest = &bytes[end..];
            let mut add = |length| {
                if !next.contains(&(end + length)) {
                    next.push(end + length);
                }
            };
            match rest {
                [] | [b'\\'] => begins = true,
                [b'%', digits @ ..] => match digits.get(..2) {
                    Some(digits) if number(digits, 16) == Some(byte.into()) => add(3),
                    Some(_) => {}
                    None => begins |= digits.iter().all(u8::is_ascii_hexdigit),
                },
                [b'\\', b'u', digits @ ..] => match digits.get(..4) {
                    Some(digits) if number(digits, 16) == Some(byte.into()) => add(6),
                    Some(_) => {}
                    None => begins |= digits.iter().all(u8::is_ascii_hexdigit),
                },
                [b'&', ..] => match reference(byte, rest) {
                    Match::Whole(length) => add(length),
                    Match::Begins => begins = true,
                    Match::No => {}
                },
                [b'\\', escaped, ..] if *escaped == byte && !byte.is_ascii_alphanumeric() => add(2),
                _ => {}
            }
            if rest.first() == Some(&byte) {
                add(1);
            }
        }
        std::mem::swap(ends, next);
        next.clear();
        if ends.is_empty() {
            return if begins { Match::Begins } else { Match::No };
        }
    }
    ends.iter().max().map_or(Match::No, |end| Match::Whole(*end))
}

/// Whether the bytes, of which the first is `&`, begin with a reference of HTML to this character.
fn reference(byte: u8, bytes: &[u8]) -> Match {
    let Some(end) = bytes.iter().take(REFERENCE_BYTES_MAX).position(|byte| *byte == b';') else {
        let may_be = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'#';
        let begins = bytes.len() < REFERENCE_BYTES_MAX && bytes[1..].iter().all(may_be);
        return if begins { Match::Begins } else { Match::No };
    };
    let is_it = match &bytes[1..end] {
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16) == Some(byte.into()),
        [b'#', digits @ ..] => number(digits, 10) == Some(byte.into()),
        name => NAMED.contains(&(name, byte)),
    };
    if is_it { Match::Whole(end + 1) } else { Match::No }
}

/// The number that at most four digits are.
pub(super) fn number(digits: &[u8], radix: u32) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value * radix + char::from(*digit).to_digit(radix)?))
}

#[cfg(test)]
mod tests {
    use bolero::{TypeGenerator, check};
    use percent_encoding::{NON_ALPHANUMERIC, percent_encode};

    use super::*;
    use crate::domain::fuzz_support::cases;

    const VALUE: &str = r#"s3cr3t/+%"\-value=="#;
    const INSTEAD: &str = "[placeholder]";

    fn redactor(value: &str) -> Redactor {
        Redactor::new(Pattern::of_value(value.as_bytes(), &INSTEAD.into()))
    }

    /// In two pieces, cut at each offset, and byte by byte.
    fn in_pieces(value: &str, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = (0..=bytes.len())
            .map(|cut| {
                let mut redactor = redactor(value);
                [redactor.push(&bytes[..cut]), redactor.push(&bytes[cut..]), redactor.end()].concat()
            })
            .collect();
        let mut single = redactor(value);
        let mut out: Vec<u8> = bytes.chunks(1).flat_map(|byte| single.push(byte)).collect();
        out.extend(single.end());
        all.push(out);
        all
    }

    /// Every form of a value that is searched for.
    fn forms(value: &str) -> Vec<String> {
        let upper = percent_encode(value.as_bytes(), NON_ALPHANUMERIC).to_string();
        let json = serde_json::to_string(value).expect("JSON");
        let escaped = value.bytes().map(|byte| format!("\\u{byte:04X}")).collect::<Vec<_>>().concat();
        let mut forms = vec![value.to_owned(), upper, escaped, json.replace('/', "\\/")];
        let named = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;"), ("'", "&#039;"), ("/", "&#x2F;")];
        forms.push(named.into_iter().fold(value.to_owned(), |html, (plain, escaped)| html.replace(plain, escaped)));
        forms.push(value.bytes().map(|byte| format!("&#{byte};")).collect::<Vec<_>>().concat());
        forms.extend(value.bytes().map(|byte| format!("%{byte:02x}")).reduce(|all, one| format!("{all}{one}")));
        for before in ["", "a", "ab", "user:"] {
            for after in ["", "c", "cd"] {
                forms.push(STANDARD_NO_PAD.encode(format!("{before}{value}{after}")));
                forms.push(URL_SAFE_NO_PAD.encode(format!("{before}{value}{after}")));
            }
        }
        forms
    }

    #[test]
    fn each_form_is_taken_out_wherever_the_pieces_end() {
        for value in [VALUE, "ghp_0123456789abcdefXYZ", "a\\\\u0061%61%", "a&amp;<b>'c&#38;\"/"] {
            for form in forms(value) {
                let whole = format!("before {form} between {form}");
                for out in in_pieces(value, whole.as_bytes()) {
                    let out = String::from_utf8(out).expect("text");
                    assert_eq!(out.matches(INSTEAD).count(), 2, "{form}: {out}");
                    assert!(!out.contains(&form) && out.starts_with("before ") && out.len() < 70, "{form}: {out}");
                }
            }
        }
    }

    #[test]
    fn everything_else_passes_and_little_is_held() {
        let almost = [&VALUE[..VALUE.len() - 1], "%2", "\\u00", "%73%33c", "s3cr3t", "\\", "%", "&", "&#115", "&lt;"];
        for text in almost {
            for out in in_pieces(VALUE, format!("{text} {text}.").as_bytes()) {
                assert_eq!(out, format!("{text} {text}.").as_bytes());
            }
        }
        let mut redactor = redactor(VALUE);
        assert_eq!(redactor.push(b"data: event\n\n"), b"data: event\n\n", "a stream of events is not held back");
        assert_eq!(redactor.push(b"x s3c"), b"x ");
        assert_eq!(redactor.end(), b"s3c");
    }

    #[test]
    fn value_that_begins_with_another_one_is_taken_out_whole_wherever_the_pieces_end() {
        let patterns = [("s3cr3t-one", "[one]"), ("s3cr3t-one-more", "[more]")];
        let patterns = patterns.map(|(value, instead)| Pattern::of_value(value.as_bytes(), &instead.into())).concat();
        let bytes = b"s3cr3t-one-more s3cr3t-one s3cr3t-one-mo";
        for cut in 0..bytes.len() {
            let mut redactor = Redactor::new(patterns.clone());
            let out = [redactor.push(&bytes[..cut]), redactor.push(&bytes[cut..]), redactor.end()].concat();
            assert_eq!(out.escape_ascii().to_string(), "[more] [one] [one]-mo", "{cut}");
        }
    }

    #[derive(Debug, Clone, TypeGenerator)]
    enum Part {
        Other(Vec<u8>),
        Form(u8),
        Cut(u8),
    }

    /// Any mixture of forms, beginnings of forms and other bytes, in pieces: the value is in none, and what has no form
    /// passes as it is.
    #[test]
    fn fuzz_mixtures() {
        let forms = forms(VALUE);
        check!().with_iterations(cases()).with_type::<(Vec<Part>, u8)>().for_each(|(parts, piece)| {
            let (mut bytes, mut has_form) = (Vec::new(), false);
            for part in parts {
                match part {
                    Part::Other(other) => bytes.extend_from_slice(other),
                    Part::Form(which) => {
                        has_form = true;
                        bytes.extend_from_slice(forms[usize::from(*which) % forms.len()].as_bytes());
                    }
                    Part::Cut(which) => {
                        let form = &forms[usize::from(*which) % forms.len()];
                        bytes.extend_from_slice(&form.as_bytes()[..form.len() / 2]);
                    }
                }
            }
            let mut redactor = redactor(VALUE);
            let mut out = Vec::new();
            for piece in bytes.chunks(usize::from(*piece).max(1)) {
                out.extend(redactor.push(piece));
                assert!(redactor.held.len() <= 6 * 2 * VALUE.len(), "{} bytes are held", redactor.held.len());
            }
            out.extend(redactor.end());
            let holds = |form: &[u8]| out.windows(form.len()).any(|window| window == form);
            assert!(!holds(VALUE.as_bytes()), "{}", out.escape_ascii());
            assert!(!has_form || holds(INSTEAD.as_bytes()), "{}", out.escape_ascii());
        });
    }
}
