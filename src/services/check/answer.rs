//! The output of a check's sandbox, which is untrusted: accepted as a whole within its bounds, or not at all.

use serde::Deserialize;

use crate::domain::words::words;

/// Problems of one program.
pub const PROBLEMS_MAX: usize = 100;
/// The longest sentence of a problem, in characters.
const MESSAGE_CHARS_MAX: usize = 500;
/// The longest name of a rule, in characters.
const RULE_CHARS_MAX: usize = 100;
/// How much longer a formatted program may be than twice the program, in bytes.
const LONGER_BYTES_MAX: usize = 64 << 10;

/// A program that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// The formatted program; `None` where it cannot be parsed.
    #[serde(deserialize_with = "Option::deserialize")]
    pub code: Option<String>,
    /// In the formatted program, where there is one.
    pub problems: Vec<Problem>,
}

/// What is wrong at one position. Lines and columns are counted from 1, columns in characters; the end is exclusive.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Problem {
    pub line: u32,
    pub column: u32,
    pub end_line: u32,
    pub end_column: u32,
    /// The tool's name for it; `syntax` where the program cannot be parsed.
    pub rule: String,
    pub message: String,
    pub severity: Severity,
}

words! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Severity: word {
        Error = "error",
        Warning = "warning",
        Info = "info",
    }
}

impl Checked {
    /// The answer for this program; `None` where it breaks a bound.
    pub(super) fn read(printed: &str, program: &[u8]) -> Option<Self> {
        let checked: Self = serde_json::from_str(printed.trim()).ok()?;
        let Self { code, problems } = &checked;
        let lines = lines_of(code.as_ref().map_or(program, String::as_bytes));
        let fits = code.as_ref().is_none_or(|code| code.len() <= program.len() * 2 + LONGER_BYTES_MAX)
            && problems.len() <= PROBLEMS_MAX
            && problems.iter().all(|problem| problem.is_within(lines));
        fits.then_some(checked)
    }
}

impl Problem {
    fn is_within(&self, lines: u32) -> bool {
        let (start, end) = ((self.line, self.column), (self.end_line, self.end_column));
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
        self.line >= 1
            && self.column >= 1
            && self.end_column >= 1
            && start <= end
            && self.end_line <= lines
            && (1..=RULE_CHARS_MAX).contains(&self.rule.len())
            && self.rule.chars().all(is_word)
            && self.message.chars().count() <= MESSAGE_CHARS_MAX
    }
}

/// At most so many lines: tools differ in what ends one, and count the end of the text as a line too.
fn lines_of(text: &[u8]) -> u32 {
    let text = String::from_utf8_lossy(text);
    let ends = text.chars().filter(|c| matches!(c, '\n' | '\r' | '\u{2028}' | '\u{2029}')).count();
    u32::try_from(ends + 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problem() -> Value {
        json!({"line": 1, "column": 1, "endLine": 2, "endColumn": 1, "rule": "F401", "message": "unused",
            "severity": "warning"})
    }

    fn read(answer: &Value) -> Option<Checked> {
        Checked::read(&answer.to_string(), b"a\nb")
    }

    #[test]
    fn answer_within_its_bounds_is_taken() {
        let checked = read(&json!({"code": "a\nb\n", "problems": [problem()]})).expect("an answer");
        assert_eq!(checked.code.as_deref(), Some("a\nb\n"));
        assert_eq!((checked.problems[0].end_line, checked.problems[0].severity), (2, Severity::Warning));
        assert_eq!(read(&json!({"code": null, "problems": []})), Some(Checked { code: None, problems: vec![] }));
        let most = json!({"code": null, "problems": vec![problem(); PROBLEMS_MAX]});
        assert_eq!(read(&most).expect("an answer").problems.len(), PROBLEMS_MAX);
    }

    #[test]
    fn hostile_answers_are_refused() {
        for printed in ["", "null", "[]", "{}", "{\"code\":null}", "{\"problems\":[]}", "1e999", "\u{0}"] {
            assert_eq!(Checked::read(printed, b"a"), None, "{printed}");
        }
        let twice = format!("{0}\n{0}", json!({"code": null, "problems": []}));
        assert_eq!(Checked::read(&twice, b"a"), None, "two answers");
        let deep = format!("{{\"code\":null,\"problems\":{}", "[".repeat(100_000));
        assert_eq!(Checked::read(&deep, b"a"), None, "nested");
        let long = "x".repeat(2 * 3 + LONGER_BYTES_MAX + 1);
        assert_eq!(read(&json!({"code": long, "problems": []})), None, "a longer program");
        assert_eq!(read(&json!({"code": 1, "problems": []})), None, "no text");
        assert_eq!(read(&json!({"code": null, "problems": [], "more": 1})), None, "another member");
        assert_eq!(read(&json!({"code": null, "problems": vec![problem(); PROBLEMS_MAX + 1]})), None, "too many");
        for (name, value) in [
            ("line", json!(0)),
            ("line", json!(-1)),
            ("line", json!(1.5)),
            ("line", json!("1")),
            ("line", json!(3)),
            ("column", json!(0)),
            ("column", json!(5_000_000_000_u64)),
            ("endLine", json!(3)),
            ("endColumn", json!(0)),
            ("rule", json!("")),
            ("rule", json!("<b>")),
            ("rule", json!("x".repeat(RULE_CHARS_MAX + 1))),
            ("message", json!("é".repeat(MESSAGE_CHARS_MAX + 1))),
            ("severity", json!("fatal")),
            ("severity", Value::Null),
            ("more", json!(1)),
        ] {
            let mut one = problem();
            one[name] = value.clone();
            assert_eq!(read(&json!({"code": null, "problems": [one]})), None, "{name}: {value}");
        }
        let backwards = json!({"line": 2, "column": 2, "endLine": 2, "endColumn": 1, "rule": "a", "message": "",
            "severity": "info"});
        assert_eq!(read(&json!({"code": null, "problems": [backwards]})), None, "the end before the start");
    }
}
