//! Packages of conversations: which tools install them, and how one is named. Pure rules; nothing is resolved here.

use std::{collections::BTreeMap, fmt};

use super::{error::Failure, id::Language, text::shown, words::words};

/// The folder in `/data` that installed packages are in. Listings leave it out.
pub const FOLDER: &str = ".packages";
/// The longest requirement, in characters.
const REQUIREMENT_CHARS_MAX: usize = 200;
/// Requirements of one request, and of a conversation.
pub const REQUESTED_MAX: usize = 100;
const REQUIREMENTS_MAX: usize = 300;

words! {
    /// What installs packages.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Tool: word {
        /// Python's wheels.
        Uv = "uv",
        /// Packages of npm.
        Npm = "npm",
    }
}

impl Tool {
    /// The name of its folder below [`FOLDER`].
    pub fn folder(self) -> &'static str {
        match self {
            Self::Uv => "python",
            Self::Npm => "javascript",
        }
    }
}

/// The tools that find packages for the programs of an image, and the language whose image installs them where that is
/// another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackageTools(Vec<(Tool, Option<Language>)>);

impl PackageTools {
    /// Parses `uv` or `uv=python,npm=javascript`. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let one = |word: &str| {
            let (name, by) = word.trim().split_once('=').map_or((word.trim(), None), |(name, by)| (name, Some(by)));
            let tool = Tool::parse(name)?;
            Some((tool, by.map(str::parse).transpose().ok()?))
        };
        text.split(',').map(one).collect::<Option<_>>().map(Self)
    }

    /// Its tools; a request that names none means the first.
    pub fn tools(&self) -> impl Iterator<Item = Tool> {
        self.0.iter().map(|(tool, _)| *tool)
    }

    /// The language whose image installs by a tool; the image's own where it names none. `None` where it has not the
    /// tool.
    pub fn installer(&self, tool: Tool, own: &Language) -> Option<Language> {
        let found = self.0.iter().find(|(had, _)| *had == tool)?;
        Some(found.1.clone().unwrap_or_else(|| own.clone()))
    }
}

/// A package with the versions that are wanted of it, in one notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The package's name in the notation that the index compares.
    name: String,
    text: String,
}

impl Requirement {
    /// Parses `requests`, `uvicorn[standard]>=0.30,<1` or, for npm, `lodash@^4`: a name of the index and versions.
    ///
    /// # Errors
    /// [`InvalidArgument`](super::error::Code::InvalidArgument) for `packages`: options, addresses, paths and anything
    /// else.
    pub fn parse(tool: Tool, text: &str) -> Result<Self, Failure> {
        let refused = |why: &str| Failure::argument("packages", format!("`{}` {why}", shown(text)));
        if text.chars().count() > REQUIREMENT_CHARS_MAX {
            return Err(refused("is too long"));
        }
        if text.contains(char::is_control) {
            return Err(refused("has a control character"));
        }
        if text.starts_with('-') {
            return Err(refused("is an option, and only names of packages are taken"));
        }
        if text.contains(['/', ':', '\\']) && !text.starts_with('@') || text.contains("://") || text.starts_with('.') {
            return Err(refused("is an address or a path, and only names of the index are taken"));
        }
        let parsed = match tool {
            Tool::Uv => python(text),
            Tool::Npm => npm(text),
        };
        parsed.ok_or_else(|| {
            refused(match tool {
                Tool::Uv => "is no name of a package with versions, such as requests or flask>=3,<4",
                Tool::Npm => "is no name of a package with a version, such as lodash or lodash@^4",
            })
        })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_name(name: &str, more: &[char]) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    ends(name.chars().next())
        && ends(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(&c))
}

/// A name as the index compares it (PEP 503).
fn normalized(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            '-' | '_' | '.' if normal.ends_with('-') => {}
            '-' | '_' | '.' => normal.push('-'),
            c => normal.push(c),
        }
    }
    normal
}

/// PEP 508 without markers and addresses.
fn python(text: &str) -> Option<Requirement> {
    const MORE: [char; 3] = ['-', '_', '.'];
    const OPERATORS: [&str; 8] = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"];
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !MORE.contains(&c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let mut rest = rest.trim();
    let mut extras = Vec::new();
    if let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        extras = inside.split(',').map(|extra| extra.trim().to_owned()).collect();
        rest = after.trim();
    }
    if !is_name(name, &MORE) || !extras.iter().all(|extra| is_name(extra, &MORE)) {
        return None;
    }
    let version = |clause: &str| {
        let clause = clause.trim();
        let operator = OPERATORS.into_iter().find(|operator| clause.starts_with(operator))?;
        let version = clause[operator.len()..].trim();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '*' | '+' | '!' | '_' | '-');
        (!version.is_empty() && version.chars().all(fits)).then(|| format!("{operator}{version}"))
    };
    let mut versions = match rest {
        "" => Vec::new(),
        rest => rest.split(',').map(version).collect::<Option<Vec<_>>>()?,
    };
    extras.sort();
    versions.sort();
    let name = normalized(name);
    let extras = if extras.is_empty() { String::new() } else { format!("[{}]", extras.join(",")) };
    Some(Requirement { text: format!("{name}{extras}{}", versions.join(",")), name })
}

/// `name`, `@scope/name`, each with `@` and a range or a tag, or without.
fn npm(text: &str) -> Option<Requirement> {
    let (name, range) = match text.char_indices().skip(1).find(|(_, c)| *c == '@') {
        Some((at, _)) => (&text[..at], Some(text[at + 1..].trim())),
        None => (text, None),
    };
    let plain = |part: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-' | '~');
        part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) && part.chars().all(fits)
    };
    let is_named = match name.strip_prefix('@').map(|rest| rest.split_once('/')) {
        Some(Some((scope, name))) => plain(scope) && plain(name),
        Some(None) => false,
        None => plain(name),
    };
    let fits = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '^' | '~' | '<' | '>' | '=' | '|' | '*' | '+' | '-' | ' ')
    };
    if !is_named || range.is_some_and(|range| range.is_empty() || range.starts_with('-') || !range.chars().all(fits)) {
        return None;
    }
    let text = range.map_or_else(|| name.to_owned(), |range| format!("{name}@{range}"));
    Some(Requirement { name: name.to_owned(), text })
}

/// What a conversation has asked for by one tool: each package once, in the order of names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements(BTreeMap<String, String>);

impl Requirements {
    /// Reads what was written by [`Self::texts`]; what breaks a rule is left out, since a program may have written it.
    pub fn of(tool: Tool, texts: &[String]) -> Self {
        let parsed = texts.iter().take(REQUIREMENTS_MAX).filter_map(|text| Requirement::parse(tool, text).ok());
        Self(parsed.map(|one| (one.name, one.text)).collect())
    }

    /// Adds some; the newer of two for a package holds.
    ///
    /// # Errors
    /// [`InvalidArgument`](super::error::Code::InvalidArgument) for more than a conversation may have.
    pub fn with(mut self, more: Vec<Requirement>) -> Result<Self, Failure> {
        self.0.extend(more.into_iter().map(|one| (one.name, one.text)));
        if self.0.len() > REQUIREMENTS_MAX {
            let why = format!("a conversation has at most {REQUIREMENTS_MAX} packages that it asked for");
            return Err(Failure::argument("packages", why));
        }
        Ok(self)
    }

    pub fn texts(&self) -> Vec<String> {
        self.0.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_versions_have_one_notation() {
        for (tool, text, want) in [
            (Tool::Uv, "Requests", "requests"),
            (Tool::Uv, "ruamel.yaml_clib >= 0.2 , <1", "ruamel-yaml-clib<1,>=0.2"),
            (Tool::Uv, "uvicorn[standard, b]==0.30.*", "uvicorn[b,standard]==0.30.*"),
            (Tool::Uv, "a~=1.0+local", "a~=1.0+local"),
            (Tool::Npm, "lodash", "lodash"),
            (Tool::Npm, "@types/node@^22", "@types/node@^22"),
            (Tool::Npm, "react@>=18 <20 || 21.x", "react@>=18 <20 || 21.x"),
            (Tool::Npm, "react@latest", "react@latest"),
        ] {
            assert_eq!(Requirement::parse(tool, text).map(|one| one.to_string()), Ok(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn options_addresses_and_paths_are_refused_by_name() {
        let long = "a".repeat(201);
        for text in [
            "",
            " ",
            "-r/etc/passwd",
            "--index-url=http://evil.example",
            "https://evil.example/a.whl",
            "./a",
            "../a",
            "/etc",
            "git+https://evil.example/a",
            "a @ https://evil.example/a",
            "a b",
            "a\0",
            "a\n-r b",
            "a==1\n",
            "a; os_name=='x'",
            "file:a",
            "a[",
            "a[b",
            "a==",
            "a=1",
            ",",
            "a,b",
            "*",
            "a==1 --hash=sha256:0",
            "\u{e4}",
            "C:\\a",
            &long,
            "npm:other@1",
            "github:user/repo",
            "user/repo",
            "@a",
            "@a/",
            "@/b",
            "@a/b/c",
            "@a/../b",
            "a@npm:b",
            "a@file:x",
            "a@http://x",
            "a@",
            "a@-x",
        ] {
            for tool in Tool::ALL {
                let failure = Requirement::parse(tool, text).expect_err(text);
                assert_eq!(failure.argument.as_deref(), Some("packages"), "{text:?}");
            }
        }
    }

    #[test]
    fn newer_requirement_of_a_package_holds_and_forged_ones_are_left_out() {
        let had = Requirements::of(Tool::Uv, &["A-b>=1".into(), "-r x".into(), "c".into()]);
        let both = had.with(vec![Requirement::parse(Tool::Uv, "a_B==2").expect("a name")]).expect("few");
        assert_eq!(both.texts(), ["a-b==2", "c"]);
    }

    #[test]
    fn label_names_tools_and_who_installs() {
        let language = |text: &str| text.parse::<Language>().expect("a language");
        let tools = PackageTools::parse("uv=python, npm=javascript").expect("a label");
        assert_eq!(tools.installer(Tool::Npm, &language("bash")), Some(language("javascript")));
        assert_eq!(
            PackageTools::parse("uv").and_then(|tools| tools.installer(Tool::Uv, &language("py"))),
            Some(language("py"))
        );
        assert!(PackageTools::parse("uv").is_some_and(|tools| tools.installer(Tool::Npm, &language("py")).is_none()));
        assert!(["apt", "", "uv=", "uv=/"].iter().all(|text| PackageTools::parse(text).is_none()));
    }
}
