//! What the checks found, a line each.

use std::fmt::Display;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// It works and could be better.
    Warn,
    /// Programs cannot run, or not safely.
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub level: Level,
    /// What was checked, one word.
    pub check: &'static str,
    pub detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Findings(pub Vec<Finding>);

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

    pub(super) fn failed(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Fail)
    }

    pub(super) fn text(&self) -> String {
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

    pub(super) fn json(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(&self.0)?;
        Ok(text + "\n")
    }
}
