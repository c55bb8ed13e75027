//! The findings of the checks, one line each.

use std::fmt::Display;

pub(super) use crate::domain::finding::{Finding, Level};

/// The findings, in the order of the checks.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, check: &'static str, detail: impl Display) {
        self.0.push(Finding { level: Level::Ok, check, detail: detail.to_string(), fix: None });
    }

    pub(super) fn warn(&mut self, check: &'static str, detail: impl Display, fix: impl Display) {
        self.add(Level::Warn, check, detail, fix);
    }

    pub(super) fn fail(&mut self, check: &'static str, detail: impl Display, fix: impl Display) {
        self.add(Level::Fail, check, detail, fix);
    }

    /// Adds a sentence of the form "what is wrong: what to do."
    pub(super) fn sentence(&mut self, level: Level, check: &'static str, sentence: &str) {
        let (detail, fix) = sentence.split_once(": ").unwrap_or((sentence, "the server's log says more"));
        self.add(level, check, detail, fix);
    }

    fn add(&mut self, level: Level, check: &'static str, detail: impl Display, fix: impl Display) {
        let fix = Some(fix.to_string().trim_end_matches('.').to_owned());
        self.0.push(Finding { level, check, detail: detail.to_string(), fix });
    }

    /// Whether programs cannot run, or not safely.
    pub fn failed(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Fail)
    }

    /// For people, a line each and one for its fix.
    pub fn text(&self) -> String {
        let line = |finding: &Finding| {
            let word = match finding.level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            let fix = finding.fix.as_ref().map(|fix| format!("\n      fix: {fix}")).unwrap_or_default();
            format!("{word:<5} {}: {}{fix}\n", finding.check, finding.detail)
        };
        self.0.iter().map(line).collect()
    }

    /// For programs.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(&self.0)?;
        Ok(text + "\n")
    }
}
