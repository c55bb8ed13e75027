//! Runner images: their labels, and the catalog of those that exist now.
//!
//! Any image with the labels is a runner; no language is built in.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::watch;

use super::engine::ImageId;
use crate::domain::{Code, Failure, Language, Limits, id::IdError, packages::PackageTools, text::items};

/// Marks an image as a runner when it is `true`.
pub const LABEL_RUNNER: &str = "sandbox.runner";
pub const LABEL_LANGUAGE: &str = "sandbox.language";
/// The version of the language, for display.
pub const LABEL_VERSION: &str = "sandbox.version";
/// Other names of the language, comma separated.
pub const LABEL_ALIASES: &str = "sandbox.aliases";
/// One sentence about what the runner offers, for models and for display.
pub const LABEL_DESCRIPTION: &str = "sandbox.description";
/// The version of the runner protocol; absent for a plain runner.
pub const LABEL_PROTOCOL: &str = "sandbox.protocol";

/// The Jupyter kernel that the image offers for sessions: the name of its kernelspec.
pub const LABEL_KERNEL: &str = "sandbox.kernel";
/// The memory limit of this runner, in bytes, where it differs from the usual one.
pub const LABEL_MEMORY: &str = "sandbox.memory-bytes";

/// What installs packages for the programs of this image: `uv`, `npm`, each with the language whose image does it.
pub const LABEL_PACKAGES: &str = "sandbox.packages";

/// What the interpreter loads while it stands by that takes long: words of programs, comma separated.
pub const LABEL_PRELOADS: &str = "sandbox.preloads";

/// The frame by which process 1 knows that the server reads what it writes: `ATTACHED` in `runners/README.md`. Sent
/// only by engines that attach to a sandbox after it has started.
pub const ATTACHED: [u8; 5] = [0x08, 0, 0, 0, 0];

/// The longest version or description, in characters: labels are free text.
const TEXT_CHARS_MAX: usize = 800;
const ALIASES_MAX: usize = 16;
const PRELOADS_MAX: usize = 16;
/// How much of a program is searched for what it imports.
const SEARCHED_BYTES_MAX: usize = 64 << 10;

/// An image with its labels, as the engine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerImage {
    pub id: ImageId,
    /// The image's name, such as `runner-python:latest`.
    pub reference: Option<String>,
    pub created_unix_s: i64,
    pub labels: HashMap<String, String>,
    /// Why the engine starts no sandboxes of it, whatever its labels are.
    pub flaw: Option<String>,
}

/// One language that can be run now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    pub language: Language,
    pub aliases: Vec<Language>,
    /// For display.
    pub version: Option<String>,
    /// For models and for display.
    pub description: Option<String>,
    pub image: ImageId,
    /// It speaks protocol 1 or 2: frames in both directions, a process 1 of the image's own, arguments, variables,
    /// input while a program runs, figures. With the plain protocol the program is sent on standard input until its
    /// end, and the container exits with the program's status.
    pub is_framed: bool,
    /// Whether its sandboxes can have channels.
    pub channels: bool,
    /// The kernel of its sessions.
    pub kernel: Option<String>,
    /// The memory limit that it asks for, in bytes.
    pub memory_bytes: Option<u64>,
    /// What installs packages for its programs.
    pub packages: PackageTools,
    /// Words of programs that run sooner in an interpreter that has loaded everything.
    pub preloads: Vec<String>,
    pub reference: Option<String>,
    created_unix_s: i64,
}

fn is_kernel_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    name.len() <= 64 && name.bytes().all(fits) && !name.starts_with(['.', '-'])
}

impl Runner {
    /// Parses the labels.
    ///
    /// # Errors
    /// Why the image is not a runner that this server can use, for the operator.
    pub fn from_image(image: &RunnerImage) -> Result<Self, String> {
        if let Some(flaw) = &image.flaw {
            return Err(flaw.clone());
        }
        let label = |name| image.labels.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
        if label(LABEL_RUNNER) != Some("true") {
            return Err("the label `sandbox.runner` is not `true`".to_owned());
        }
        let bad = |label| move |why: IdError| format!("the label `{label}` has an invalid name: {why}");
        let language = label(LABEL_LANGUAGE).ok_or("the label `sandbox.language` is missing")?;
        let language = language.parse::<Language>().map_err(bad(LABEL_LANGUAGE))?;
        let is_framed = match label(LABEL_PROTOCOL) {
            None => Ok(false),
            Some("1" | "2") => Ok(true),
            Some(_) => Err("the label `sandbox.protocol` has a version that this server does not support"),
        }?;
        let words = |name| items(label(name).unwrap_or_default());
        let mut aliases = Vec::new();
        for alias in words(LABEL_ALIASES) {
            let alias = alias.parse::<Language>().map_err(bad(LABEL_ALIASES))?;
            if alias != language && !aliases.contains(&alias) && aliases.len() < ALIASES_MAX {
                aliases.push(alias);
            }
        }
        let kernel = label(LABEL_KERNEL).filter(|_| label(LABEL_PROTOCOL) == Some("2")).map(str::to_owned);
        if kernel.as_deref().is_some_and(|name| !is_kernel_name(name)) {
            let why = "the label `sandbox.kernel` must be the name of a kernelspec: 1 to 64 of `A-Z a-z 0-9 . _ -`";
            return Err(why.to_owned());
        }
        let memory_bytes = label(LABEL_MEMORY).map(str::parse).transpose();
        let memory_bytes = memory_bytes.map_err(|_| "the label `sandbox.memory-bytes` must be a number of bytes")?;
        let packages = match label(LABEL_PACKAGES).filter(|_| label(LABEL_PROTOCOL) == Some("2")) {
            None => PackageTools::default(),
            Some(tools) => PackageTools::parse(tools)
                .ok_or("the label `sandbox.packages` must be uv or npm, or such as uv=python,npm=javascript")?,
        };
        let text = |name| label(name).map(|text| text.chars().take(TEXT_CHARS_MAX).collect::<String>());
        Ok(Self {
            language,
            aliases,
            version: text(LABEL_VERSION),
            description: text(LABEL_DESCRIPTION),
            image: image.id.clone(),
            is_framed,
            channels: label(LABEL_PROTOCOL) == Some("2"),
            kernel,
            memory_bytes,
            packages,
            preloads: words(LABEL_PRELOADS).take(PRELOADS_MAX).map(str::to_owned).collect(),
            reference: image.reference.clone(),
            created_unix_s: image.created_unix_s,
        })
    }

    /// The limits of this runner, where these are the usual ones and it may ask for at most `memory_bytes_max`.
    pub fn limits(&self, usual: &Limits, memory_bytes_max: u64) -> Limits {
        let asked = self.memory_bytes.map(|bytes| bytes.min(memory_bytes_max.max(usual.memory_bytes)));
        Limits { memory_bytes: asked.unwrap_or(usual.memory_bytes), ..*usual }
    }

    /// Whether a program names what the interpreter loads while it stands by.
    pub fn preloads_for(&self, program: &[u8]) -> bool {
        if self.preloads.is_empty() {
            return false;
        }
        let searched = &program[..program.len().min(SEARCHED_BYTES_MAX)];
        let text = String::from_utf8_lossy(searched);
        self.preloads.iter().any(|word| text.contains(word))
    }

    /// Checks that it offers sessions.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for `language`.
    pub fn check_sessions(&self) -> Result<(), Failure> {
        if self.kernel.is_none() {
            let why = format!("the runner of `{}` offers no sessions; its programs can be run", self.language);
            return Err(Failure::argument("language", why));
        }
        Ok(())
    }

    /// The runner for a language or an alias. A language's own name wins over another's alias.
    pub fn find<'a>(all: &'a [Self], language: &Language) -> Option<&'a Self> {
        let named = all.iter().find(|runner| runner.language == *language);
        named.or_else(|| all.iter().find(|runner| runner.aliases.contains(language)))
    }
}

/// The runners that exist now. Reading never waits; `services::discovery` replaces the whole list.
#[derive(Debug, Default)]
pub struct Catalog(watch::Sender<Arc<[Runner]>>);

impl Catalog {
    /// Replaces the list. The newest image of a language is kept; the list is ordered by language.
    pub fn replace(&self, mut runners: Vec<Runner>) {
        runners.sort_by(|a, b| {
            let newest_first = b.created_unix_s.cmp(&a.created_unix_s);
            a.language.cmp(&b.language).then(newest_first).then_with(|| a.image.cmp(&b.image))
        });
        runners.dedup_by(|later, first| later.language == first.language);
        self.0.send_replace(runners.into());
    }

    /// Every runner, ordered by language.
    pub fn all(&self) -> Arc<[Runner]> {
        Arc::clone(&self.0.borrow())
    }

    /// Yields each list from now on.
    pub fn changes(&self) -> watch::Receiver<Arc<[Runner]>> {
        self.0.subscribe()
    }

    /// As [`Runner::find`].
    pub fn find(&self, language: &Language) -> Option<Runner> {
        Runner::find(&self.all(), language).cloned()
    }

    /// As [`Self::find`].
    ///
    /// # Errors
    /// [`Code::RunnerNotFound`], which names those that there are.
    pub fn get(&self, language: &Language) -> Result<Runner, Failure> {
        self.find(language).ok_or_else(|| {
            let all = self.all();
            let known: Vec<_> = all.iter().map(|runner| runner.language.as_str()).collect();
            let hint = if known.is_empty() {
                "no runner image is installed; the operator builds them with ./build.sh".to_owned()
            } else {
                format!("installed are {}", known.join(", "))
            };
            Failure::new(Code::RunnerNotFound, format!("language: there is no runner for `{language}`; {hint}."))
        })
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
            flaw: None,
        }
    }

    fn language(text: &str) -> Language {
        text.parse().expect("a language")
    }

    #[test]
    fn from_image_needs_two_labels() {
        let ruby = image("sha256:1", 0, &[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, "Ruby")]);
        let runner = Runner::from_image(&ruby).expect("a runner");
        assert_eq!((runner.language, runner.aliases), (language("ruby"), vec![]));
    }

    #[test]
    fn from_image_names_the_invalid_label() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[(LABEL_LANGUAGE, "x")], "`sandbox.runner` is not `true`"),
            (&[(LABEL_RUNNER, "yes"), (LABEL_LANGUAGE, "x")], "`sandbox.runner` is not `true`"),
            (&[(LABEL_RUNNER, "true")], "`sandbox.language` is missing"),
            (
                &[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, "x"), (LABEL_PROTOCOL, "99")],
                "`sandbox.protocol` has a version",
            ),
            (
                &[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, "../x")],
                "`sandbox.language` has an invalid name: the first character",
            ),
        ];
        for (labels, why) in cases {
            let error = Runner::from_image(&image("sha256:1", 0, labels)).expect_err("no runner");
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn find_prefers_the_newest_image_and_names_over_aliases() {
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
