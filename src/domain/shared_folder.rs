//! Folders of the engine's host that the operator shares with sandboxes, at `/mnt/{name}`.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
};

use super::owner::Principal;

/// The longest name, in characters.
const NAME_CHARS_MAX: usize = 32;

/// A folder that sandboxes see at `/mnt/{name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFolder {
    /// 1 to 32 of `a-z 0-9 _ -`, the first a letter or digit.
    pub name: String,
    /// The path on the engine's host: absolute, without `.` and `..`.
    pub source: PathBuf,
    /// Whether programs can change it.
    pub writable: bool,
    /// Whose programs see it; everyone's, where none is named.
    pub owners: Vec<Principal>,
}

/// What is wrong with a shared folder; a clause about the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SharedFolderError {
    #[error("the name must be 1 to 32 of `a-z 0-9 _ -`, the first a letter or digit")]
    Name,
    #[error(
        "it must be an absolute path without `..`, such as /srv/docs, with `:rw` after it if programs may change it"
    )]
    Path,
    #[error("after `@` must be owners, such as /srv/docs:ro@ann,bob")]
    Owners,
    /// `/mnt/data` is `/data` in our images: the mount would hide the conversation's files.
    #[error("the name `data` is used for programs that look for their files in /mnt/data; take another one")]
    Reserved,
    #[error("it must be neither /, nor SANDBOX_ROOT, nor a folder above or below that: programs would see all files")]
    Root,
    #[error("it must not be in a folder of SANDBOX_MOUNTS__… with `:rw`: programs could put a link in its place")]
    Replaceable,
}

impl SharedFolder {
    /// Parses `/host/folder`, `/host/folder:ro` or `/host/folder:rw`, and owners after the mode, as in
    /// `/host/folder:ro@ann,bob`. Letters of the name become lower case.
    ///
    /// # Errors
    /// What to correct.
    pub fn parse(name: &str, text: &str) -> Result<Self, SharedFolderError> {
        let name = name.to_ascii_lowercase();
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(fits) || name.starts_with(['_', '-']) {
            return Err(SharedFolderError::Name);
        }
        if name == "data" {
            return Err(SharedFolderError::Reserved);
        }
        let owned = text.rsplit_once('@').filter(|(before, _)| before.ends_with(":ro") || before.ends_with(":rw"));
        let (text, owners) = owned.map_or((text, None), |(before, owners)| (before, Some(owners)));
        let (path, writable) = match text.rsplit_once(':') {
            Some((path, "rw")) => (path, true),
            Some((path, "ro")) => (path, false),
            _ => (text, false),
        };
        let owners = owners.iter().flat_map(|owners| owners.split(',')).map(|owner| owner.trim().parse());
        let owners = owners.collect::<Result<Vec<Principal>, _>>().map_err(|_| SharedFolderError::Owners)?;
        let source: PathBuf = Path::new(path).components().collect();
        let plain = source.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !source.is_absolute() || !plain || path.contains(['\0', '\n']) {
            return Err(SharedFolderError::Path);
        }
        Ok(Self { name, source, writable, owners })
    }

    /// Whether sandboxes of an owner see it, or those that have no owner yet.
    pub fn is_seen_by(&self, owner: Option<&Principal>) -> bool {
        self.owners.is_empty() || owner.is_some_and(|owner| self.owners.contains(owner))
    }

    /// Refuses a folder that would show the files of all conversations.
    ///
    /// # Errors
    /// [`SharedFolderError::Root`].
    pub fn apart_from(self, root: &Path) -> Result<Self, SharedFolderError> {
        let shows_all = self.source.starts_with(root) || root.starts_with(&self.source);
        if shows_all { Err(SharedFolderError::Root) } else { Ok(self) }
    }

    /// Refuses a folder in another one that programs can change: the engine follows a link when it mounts a folder, so
    /// they could see any folder of its host.
    ///
    /// # Errors
    /// [`SharedFolderError::Replaceable`].
    pub fn check_replaceable(path: &Path, all: &[Self]) -> Result<(), SharedFolderError> {
        let can_replace = |outer: &Self| outer.writable && path != outer.source && path.starts_with(&outer.source);
        if all.iter().any(can_replace) { Err(SharedFolderError::Replaceable) } else { Ok(()) }
    }

    /// Where programs find it.
    pub fn target(&self) -> String {
        format!("/mnt/{}", self.name)
    }
}

impl fmt::Display for SharedFolder {
    /// For models and people: the path in a sandbox, and whether it can be changed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/mnt/{}{}", self.name, if self.writable { "" } else { " (read-only)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_takes_a_name_a_path_and_a_mode() {
        let folder = |name: &str, text: &str| SharedFolder::parse(name, text).map(|folder| folder.to_string());
        assert_eq!(folder("DOCS", "/srv/docs"), Ok("/mnt/docs (read-only)".to_owned()));
        assert_eq!(folder("work-1", "/srv/a:b:rw"), Ok("/mnt/work-1".to_owned()));
        assert_eq!(folder("Data", "/srv/a"), Err(SharedFolderError::Reserved));
        assert_eq!(folder("a", "/srv/a:ro"), Ok("/mnt/a (read-only)".to_owned()));
        assert_eq!(folder("a", "/srv/a:rw@ann"), Ok("/mnt/a".to_owned()));
        assert_eq!(SharedFolder::parse("a", "/srv/a@ann").map(|folder| folder.source), Ok("/srv/a@ann".into()));
        for owners in ["", "ann,", "a b", "ann:bob"] {
            assert_eq!(folder("a", &format!("/srv/a:ro@{owners}")), Err(SharedFolderError::Owners), "{owners}");
        }
        assert_eq!(SharedFolder::parse("a", "/srv//a/./b/").map(|folder| folder.source), Ok("/srv/a/b".into()));
        for name in ["", "-a", "_a", "a.b", "a/b", "é", &"a".repeat(33)] {
            assert_eq!(folder(name, "/srv"), Err(SharedFolderError::Name), "{name}");
        }
        for path in ["", "srv", "./srv", "/srv/../etc", ":rw", "~/docs"] {
            assert_eq!(folder("a", path), Err(SharedFolderError::Path), "{path}");
        }
    }

    #[test]
    fn folders_that_show_all_conversations_are_refused() {
        let root = Path::new("/var/sandboxes");
        for bad in ["/", "/var", "/var/sandboxes", "/var/sandboxes/c/files"] {
            let folder = SharedFolder::parse("a", bad).expect(bad);
            assert_eq!(folder.apart_from(root), Err(SharedFolderError::Root), "{bad}");
        }
        let folder = SharedFolder::parse("a", "/var/sandboxes-of-others").expect("a folder");
        assert!(folder.apart_from(root).is_ok());
    }

    #[test]
    fn folder_that_programs_can_replace_is_refused() {
        let all = ["/srv/a:rw", "/srv/b"].map(|text| SharedFolder::parse("a", text).expect("a folder"));
        let check = |path: &str| SharedFolder::check_replaceable(Path::new(path), &all);
        for bad in ["/srv/a/b", "/srv/a/b/c"] {
            assert_eq!(check(bad), Err(SharedFolderError::Replaceable), "{bad}");
        }
        for good in ["/srv/a", "/srv", "/srv/ab", "/srv/b/c"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn folder_of_owners_is_seen_by_them_alone() {
        let [ann, bob] = ["ann", "bob"].map(|name| name.parse::<Principal>().expect("a name"));
        let theirs = SharedFolder::parse("a", "/srv/a:ro@ann,carl").expect("a folder");
        assert!(theirs.is_seen_by(Some(&ann)) && !theirs.is_seen_by(Some(&bob)) && !theirs.is_seen_by(None));
        let all = SharedFolder::parse("a", "/srv/a").expect("a folder");
        assert!(all.is_seen_by(Some(&bob)) && all.is_seen_by(None));
    }
}
