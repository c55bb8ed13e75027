//! Skills in the Agent Skills format: what names and descriptions may be, and how `SKILL.md` is read.
//!
//! A skill is a folder with a file `SKILL.md`: front matter in YAML between two lines `---`, then Markdown. No key of
//! it grants rights on this server. Does not know where skills are stored.

use std::{path::PathBuf, str::FromStr};

use serde_json::{Map, Value};

use super::{id::shows_its_text, owner::Principal};

/// The file that makes a folder a skill.
pub const SKILL_FILE: &str = "SKILL.md";
/// The longest `SKILL.md`, in bytes.
pub const SKILL_FILE_BYTES_MAX: u64 = 256 << 10;
/// The front matter with its two lines, in bytes. A listing reads no more of a skill.
pub const FRONT_MATTER_BYTES_MAX: usize = 16 << 10;
/// All files of one skill, in bytes.
pub const SKILL_BYTES_MAX: u64 = 16 << 20;
/// Files and folders of one skill.
pub const SKILL_ENTRIES_MAX: usize = 500;
/// Levels of folders in a skill.
pub const SKILL_DEPTH_MAX: usize = 8;
/// Skills of one owner, and public ones.
pub const SKILLS_MAX: usize = 100;

const NAME_BYTES_MAX: usize = 64;
const DESCRIPTION_CHARS_MAX: usize = 1024;
const COMPATIBILITY_CHARS_MAX: usize = 500;

/// The folder of public skills, in the root of skills. An owner of this name has no skills of its own.
const PUBLIC: &str = "public";

/// A skill's name, which is also its folder's: 1 to 64 of `a-z 0-9 -`, without a hyphen at an end or two in a row. So
/// it is never taken for an option or a hidden file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SkillName(String);

shows_its_text!(SkillName);

impl FromStr for SkillName {
    type Err = SkillError;

    fn from_str(name: &str) -> Result<Self, SkillError> {
        let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let hyphens = name.starts_with('-') || name.ends_with('-') || name.contains("--");
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain || hyphens {
            return Err(SkillError::Name);
        }
        Ok(Self(name.to_owned()))
    }
}

/// Whose skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkillSource {
    /// The operator's, for every owner.
    Public,
    User(Principal),
}

impl SkillSource {
    /// An owner's own skills; `None` where the owner has the name of the public folder, or is the server itself.
    pub fn of(owner: &Principal) -> Option<Self> {
        (owner.name() != PUBLIC && !owner.is_self_test()).then(|| Self::User(owner.clone()))
    }

    /// The name of its folder in the root of skills.
    pub fn folder(&self) -> &str {
        match self {
            Self::Public => PUBLIC,
            Self::User(owner) => owner.name(),
        }
    }

    /// What it is called for clients, and in `/skills` of a sandbox.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Public => PUBLIC,
            Self::User(_) => "user",
        }
    }
}

/// The folders of skills that a sandbox sees read-only, as paths of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkillFolders {
    /// At [`SkillFolders::PUBLIC`].
    pub public: Option<PathBuf>,
    /// At [`SkillFolders::USER`]: those of the owner.
    pub user: Option<PathBuf>,
}

impl SkillFolders {
    pub const PUBLIC: &str = "/skills/public";
    pub const USER: &str = "/skills/user";

    /// Each with its path in the sandbox.
    pub fn mounts(&self) -> impl Iterator<Item = (&PathBuf, &'static str)> {
        let public = self.public.iter().map(|path| (path, Self::PUBLIC));
        public.chain(self.user.iter().map(|path| (path, Self::USER)))
    }
}

/// Why something is not a skill. A clause that states the rule and never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    #[error("a name must be 1 to 64 of `a-z 0-9 -`, without a hyphen at an end or two in a row")]
    Name,
    #[error("{SKILL_FILE} must be UTF-8 text that begins with front matter between two lines `---`")]
    NoFrontMatter,
    #[error("the front matter of {SKILL_FILE} must be at most {FRONT_MATTER_BYTES_MAX} bytes")]
    FrontMatterTooLong,
    #[error("the front matter of {SKILL_FILE} must be a YAML mapping with texts as keys, each once")]
    Yaml,
    #[error("`name` in {SKILL_FILE} must be the name of the skill's folder")]
    OtherName,
    #[error("`description` in {SKILL_FILE} must be a text of 1 to {DESCRIPTION_CHARS_MAX} characters")]
    Description,
    #[error("`license` in {SKILL_FILE} must be a text")]
    License,
    #[error("`compatibility` in {SKILL_FILE} must be a text of 1 to {COMPATIBILITY_CHARS_MAX} characters")]
    Compatibility,
    #[error("`metadata` in {SKILL_FILE} must be a mapping of texts to texts")]
    Metadata,
}

/// The checked front matter of a skill.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontMatter {
    pub name: SkillName,
    pub description: String,
    /// Everything in it, keys too that are not of the format: clients add some.
    pub all: Map<String, Value>,
}

impl FrontMatter {
    /// Reads the beginning of `SKILL.md`; `folder` is the name of its folder, where it is known.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn parse(text: &[u8], folder: Option<&SkillName>) -> Result<Self, SkillError> {
        let yaml = front_matter(text)?;
        // As in YAML 1.2: `y` and `no` are texts.
        let options = serde_saphyr::options! { strict_booleans: true };
        let all: Map<String, Value> =
            serde_saphyr::from_str_with_options(yaml, options).map_err(|_| SkillError::Yaml)?;
        let string = |key: &str| all.get(key).map(Value::as_str);
        let name: SkillName = string("name").flatten().ok_or(SkillError::Name)?.parse()?;
        if folder.is_some_and(|folder| *folder != name) {
            return Err(SkillError::OtherName);
        }
        let fits = |text: &str, chars_max: usize| !text.trim().is_empty() && text.chars().count() <= chars_max;
        let description = string("description").flatten().filter(|text| fits(text, DESCRIPTION_CHARS_MAX));
        let description = description.ok_or(SkillError::Description)?.to_owned();
        if string("license").is_some_and(|text| text.is_none()) {
            return Err(SkillError::License);
        }
        if string("compatibility").is_some_and(|text| !text.is_some_and(|text| fits(text, COMPATIBILITY_CHARS_MAX))) {
            return Err(SkillError::Compatibility);
        }
        let texts = |value: &Value| value.as_object().is_some_and(|map| map.values().all(Value::is_string));
        if all.get("metadata").is_some_and(|value| !texts(value)) {
            return Err(SkillError::Metadata);
        }
        Ok(Self { name, description, all })
    }
}

/// The YAML between the two lines.
fn front_matter(text: &[u8]) -> Result<&str, SkillError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let bounded = &text[..text.len().min(FRONT_MATTER_BYTES_MAX)];
    let mut end = 0;
    let mut start = None;
    for line in bounded.split_inclusive(|&byte| byte == b'\n') {
        let is_mark = line.trim_ascii_end() == b"---" && line.ends_with(b"\n")
            || start.is_some() && line == b"---" && bounded.len() == text.len();
        match start {
            None if !is_mark => return Err(SkillError::NoFrontMatter),
            None => start = Some(line.len()),
            Some(start) if is_mark => {
                return str::from_utf8(&bounded[start..end]).map_err(|_| SkillError::NoFrontMatter);
            }
            Some(_) => {}
        }
        end += line.len();
    }
    if bounded.len() < text.len() { Err(SkillError::FrontMatterTooLong) } else { Err(SkillError::NoFrontMatter) }
}

#[cfg(test)]
mod tests {
    use bolero::{check, produce};

    use super::*;
    use crate::domain::fuzz_support::{cases, mutated};

    #[test]
    fn names_are_folders_and_never_options_or_paths() {
        for good in ["a", "pdf-text-replace", "7z", &"a".repeat(64)] {
            assert_eq!(good.parse::<SkillName>().map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "-rf", "a-", "a--b", "A", "é", "a b", "a/b", ".", "..", ".git", "a\0", "a\n", &"a".repeat(65)]
        {
            assert_eq!(bad.parse::<SkillName>(), Err(SkillError::Name), "{bad:?}");
        }
    }

    #[test]
    fn front_matter_is_yaml_between_two_lines() {
        let parse = |text: &str| FrontMatter::parse(text.as_bytes(), None);
        let front = parse("\u{feff}---\r\nname: a\r\ndescription: \"x: y\"\r\nmodel: z\r\n---\r\n# A\r\n");
        let front = front.expect("a skill");
        assert_eq!((front.name.as_str(), front.description.as_str()), ("a", "x: y"));
        assert_eq!(front.all["model"], "z");
        assert!(parse("---\nname: y\ndescription: no\n---\n").is_ok());
        assert!(parse("---\nname: a\ndescription: >\n  two\n  lines\n---").is_ok());
        let long = format!("---\nname: a\ndescription: {}\n---\n", "x".repeat(1025));
        let endless = format!("---\nname: a\n{}", "# x\n".repeat(8000));
        for (text, why) in [
            ("", SkillError::NoFrontMatter),
            ("# A\n", SkillError::NoFrontMatter),
            ("---\nname: a\ndescription: b\n", SkillError::NoFrontMatter),
            ("----\nname: a\ndescription: b\n---\n", SkillError::NoFrontMatter),
            ("---\nname: a\n---\n", SkillError::Description),
            ("---\nname: a\ndescription: \" \"\n---\n", SkillError::Description),
            ("---\nname: a\ndescription: 1\n---\n", SkillError::Description),
            ("---\nname: ../a\ndescription: b\n---\n", SkillError::Name),
            ("---\nname: [a]\ndescription: b\n---\n", SkillError::Name),
            ("---\ndescription: b\n---\n", SkillError::Name),
            ("---\nname: a\nname: b\ndescription: b\n---\n", SkillError::Yaml),
            ("---\n- name\n---\n", SkillError::Yaml),
            ("---\nname: {\n---\n", SkillError::Yaml),
            ("---\nname: a\ndescription: b\nlicense: 1\n---\n", SkillError::License),
            ("---\nname: a\ndescription: b\ncompatibility: []\n---\n", SkillError::Compatibility),
            ("---\nname: a\ndescription: b\nmetadata:\n  x: {}\n---\n", SkillError::Metadata),
            (&long, SkillError::Description),
            (&endless, SkillError::FrontMatterTooLong),
        ] {
            assert_eq!(parse(text), Err(why), "{text:.60}");
        }
        let other = "b".parse().expect("a name");
        let text = b"---\nname: a\ndescription: b\n---\n";
        assert_eq!(FrontMatter::parse(text, Some(&other)), Err(SkillError::OtherName));
    }

    #[test]
    fn yaml_that_grows_is_refused() {
        let level = |number: usize| {
            let before = vec![format!("*a{}", number - 1); 10].join(",");
            format!("a{number}: &a{number} [{before}]\n")
        };
        let levels: String = (1..12).map(level).collect();
        let bomb = format!("---\nname: a\ndescription: b\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n{levels}");
        assert_eq!(FrontMatter::parse(format!("{bomb}---\n").as_bytes(), None), Err(SkillError::Yaml));
        let deep = format!("---\nname: a\ndescription: b\nx: {}\n---\n", "[".repeat(8000));
        assert_eq!(FrontMatter::parse(deep.as_bytes(), None), Err(SkillError::Yaml));
    }

    #[test]
    fn owners_with_reserved_names_have_no_skills_of_their_own() {
        let owner = |name: &str| SkillSource::of(&name.parse().expect("an owner"));
        assert_eq!(owner("public"), None);
        assert_eq!(SkillSource::of(&Principal::self_test()), None);
        assert_eq!(owner("ann").map(|source| source.folder().to_owned()), Some("ann".to_owned()));
    }

    /// Front matter, altered: it is refused, or follows the rules.
    #[test]
    fn fuzz_front_matter() {
        let good = "---\nname: a-b\ndescription: >-\n  d\nmetadata: {k: 'v'}\nlist: &x [1, ~]\nagain: *x\n---\n# A\n";
        let alterations = produce::<Vec<_>>().with().len(0..6_usize);
        check!().with_iterations(cases()).with_generator(alterations).for_each(|alterations| {
            let Ok(front) = FrontMatter::parse(&mutated(good, alterations), None) else { return };
            assert_eq!(front.name.as_str().parse(), Ok(front.name.clone()));
            assert!((1..=DESCRIPTION_CHARS_MAX).contains(&front.description.chars().count()));
            assert_eq!(front.all["name"], front.name.as_str());
        });
    }
}
