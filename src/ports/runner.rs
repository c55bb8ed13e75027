//! Runner images: what their labels say, and the catalog of those known now.
//!
//! Any image that carries the labels is a runner; nothing here knows which languages exist.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::watch;

use super::engine::ImageId;
use crate::domain::id::Language;

/// Marks an image as a runner when it is `true`.
pub const LABEL_RUNNER: &str = "sandbox.runner";
/// Names the language that the runner runs.
pub const LABEL_LANGUAGE: &str = "sandbox.language";
/// The version of the language, for people.
pub const LABEL_VERSION: &str = "sandbox.version";
/// Other names of the language, comma separated.
pub const LABEL_ALIASES: &str = "sandbox.aliases";
/// One sentence for models and people: what the runner offers.
pub const LABEL_DESCRIPTION: &str = "sandbox.description";
/// The contract that the runner speaks; absent means the plain one.
pub const LABEL_PROTOCOL: &str = "sandbox.protocol";

/// The longest version or description that is passed on, in characters: labels are free text.
const TEXT_CHARS_MAX: usize = 400;
const ALIASES_MAX: usize = 16;

/// An image with its labels, as the engine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerImage {
    /// The image, pinned.
    pub id: ImageId,
    /// A name people gave it, such as `runner-python:latest`.
    pub reference: Option<String>,
    /// When it was made, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// Its labels.
    pub labels: HashMap<String, String>,
}

/// The contract that a runner speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A program by standard input until its end; the status of the container is the program's.
    Plain,
    /// Protocol 1: frames in both directions, a process 1 of its own, arguments, input, figures.
    Framed,
}

/// One language that can be run now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    /// The language's name.
    pub language: Language,
    /// Other names of it.
    pub aliases: Vec<Language>,
    /// Its version, for people.
    pub version: Option<String>,
    /// What it offers, for models and people.
    pub description: Option<String>,
    /// The image, pinned.
    pub image: ImageId,
    /// The contract that it speaks.
    pub protocol: Protocol,
    /// A name people gave the image.
    pub reference: Option<String>,
    created_unix_s: i64,
}

/// Why an image with the runner label is not a runner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The runner label is absent or not `true`.
    #[error("the label `sandbox.runner` is not `true`")]
    NotARunner,
    /// No language.
    #[error("the label `sandbox.language` is missing")]
    NoLanguage,
    /// A language or alias breaks the rule for names.
    #[error("the label `{label}` holds a bad name: {why}")]
    BadName {
        /// Which label.
        label: &'static str,
        /// Which rule.
        why: crate::domain::id::IdError,
    },
    /// A contract that this server does not speak.
    #[error("the label `sandbox.protocol` asks for a contract that this server does not speak")]
    UnknownProtocol,
}

impl Runner {
    /// Reads the labels.
    ///
    /// # Errors
    /// When the image is not a runner that this server can use; the text is for the operator.
    pub fn from_image(image: &RunnerImage) -> Result<Self, LabelError> {
        let label = |name| image.labels.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
        if label(LABEL_RUNNER) != Some("true") {
            return Err(LabelError::NotARunner);
        }
        let bad = |label| move |why| LabelError::BadName { label, why };
        let language = label(LABEL_LANGUAGE).ok_or(LabelError::NoLanguage)?;
        let language = language.parse::<Language>().map_err(bad(LABEL_LANGUAGE))?;
        let protocol = match label(LABEL_PROTOCOL) {
            None => Protocol::Plain,
            Some("1") => Protocol::Framed,
            Some(_) => return Err(LabelError::UnknownProtocol),
        };
        let mut aliases = Vec::new();
        for alias in label(LABEL_ALIASES).unwrap_or_default().split(',').map(str::trim).filter(|a| !a.is_empty()) {
            let alias = alias.parse::<Language>().map_err(bad(LABEL_ALIASES))?;
            if alias != language && !aliases.contains(&alias) && aliases.len() < ALIASES_MAX {
                aliases.push(alias);
            }
        }
        let text = |name| label(name).map(|text| text.chars().take(TEXT_CHARS_MAX).collect::<String>());
        Ok(Self {
            language,
            aliases,
            version: text(LABEL_VERSION),
            description: text(LABEL_DESCRIPTION),
            image: image.id.clone(),
            protocol,
            reference: image.reference.clone(),
            created_unix_s: image.created_unix_s,
        })
    }

    /// Whether its programs can be given arguments and input, also while they run: the plain contract has no room for them.
    pub fn takes_input(&self) -> bool {
        self.protocol == Protocol::Framed
    }
}

/// The runners known now. Reading never waits; whoever follows the engine replaces the whole list.
#[derive(Debug, Default)]
pub struct Catalog(watch::Sender<Arc<[Runner]>>);

impl Catalog {
    /// Replaces the list. Of several images for one language the newest is kept; the list is ordered by language.
    pub fn replace(&self, mut runners: Vec<Runner>) {
        runners.sort_by(|a, b| {
            (&a.language, std::cmp::Reverse(a.created_unix_s), &a.image).cmp(&(
                &b.language,
                std::cmp::Reverse(b.created_unix_s),
                &b.image,
            ))
        });
        runners.dedup_by(|later, first| later.language == first.language);
        self.0.send_replace(runners.into());
    }

    /// Every runner, ordered by language.
    pub fn all(&self) -> Arc<[Runner]> {
        Arc::clone(&self.0.borrow())
    }

    /// Tells of every replacement from now on.
    pub fn changes(&self) -> watch::Receiver<Arc<[Runner]>> {
        self.0.subscribe()
    }

    /// The runner for a language or an alias. A language's own name wins over another's alias.
    pub fn find(&self, language: &Language) -> Option<Runner> {
        let all = self.all();
        all.iter()
            .find(|runner| runner.language == *language)
            .or_else(|| all.iter().find(|runner| runner.aliases.contains(language)))
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, created_unix_s: i64, labels: &[(&str, &str)]) -> RunnerImage {
        RunnerImage {
            id: ImageId(id.to_owned()),
            reference: None,
            created_unix_s,
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        }
    }

    fn language(text: &str) -> Language {
        text.parse().expect("a language")
    }

    #[test]
    fn two_labels_make_a_runner() {
        let ruby = image("sha256:1", 0, &[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, "Ruby")]);
        let runner = Runner::from_image(&ruby).expect("a runner");
        assert_eq!((runner.language, runner.aliases), (language("ruby"), vec![]));
    }

    #[test]
    fn bad_labels_are_told_apart() {
        let cases: [(&[(&str, &str)], LabelError); 4] = [
            (&[(LABEL_LANGUAGE, "x")], LabelError::NotARunner),
            (&[(LABEL_RUNNER, "yes"), (LABEL_LANGUAGE, "x")], LabelError::NotARunner),
            (&[(LABEL_RUNNER, "true")], LabelError::NoLanguage),
            (&[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, "x"), (LABEL_PROTOCOL, "99")], LabelError::UnknownProtocol),
        ];
        for (labels, error) in cases {
            assert_eq!(Runner::from_image(&image("sha256:1", 0, labels)), Err(error));
        }
        let bad = image("sha256:1", 0, &[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, "../x")]);
        assert!(matches!(Runner::from_image(&bad), Err(LabelError::BadName { .. })));
    }

    #[test]
    fn the_newest_image_of_a_language_wins_and_names_win_over_aliases() {
        let make = |id, created, name, aliases| {
            let labels = [(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, name), (LABEL_ALIASES, aliases)];
            Runner::from_image(&image(id, created, &labels)).expect("a runner")
        };
        let catalog = Catalog::default();
        catalog.replace(vec![
            make("sha256:old", 1, "python", "py"),
            make("sha256:new", 2, "python", "py, python3,,PY"),
            make("sha256:pypy", 3, "pypy", "python"),
        ]);
        let found = |name| catalog.find(&language(name)).map(|r| r.image.0);
        assert_eq!(found("python").as_deref(), Some("sha256:new"));
        assert_eq!(found("py").as_deref(), Some("sha256:new"));
        assert_eq!(found("pypy").as_deref(), Some("sha256:pypy"));
        assert_eq!(found("perl"), None);
        assert_eq!(catalog.all().len(), 2);
    }
}
