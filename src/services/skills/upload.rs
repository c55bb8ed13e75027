//! An uploaded skill: a zip that is checked as a whole, in memory, before anything of it is written.
//!
//! Sizes that the archive states are not trusted: what is unpacked is counted, and unpacking ends at the bound. Links,
//! encrypted entries, names that leave the folder and names that programs could take for options are refused.

#[cfg(test)]
mod fuzz;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Cursor, Read as _},
};

use zip::{CompressionMethod, ZipArchive, read::ZipFile};

use crate::{
    domain::{
        Code, Failure, SafePath,
        skills::{
            FrontMatter, SKILL_BYTES_MAX, SKILL_DEPTH_MAX, SKILL_ENTRIES_MAX, SKILL_FILE, SKILL_FILE_BYTES_MAX,
            SkillName,
        },
    },
    ports::skills::NewFile,
};

/// The signature of an entry in a zip's directory. Each costs memory before the first can be checked.
const ENTRY_SIGNATURE: &[u8] = b"PK\x01\x02";
/// How often it may occur; more than [`SKILL_ENTRIES_MAX`], since files may hold it too.
const SIGNATURES_MAX: usize = 20_000;
/// What macOS adds to archives.
const MAC_FOLDER: &[u8] = b"__MACOSX";
const FILE_KIND: u32 = 0o170_000;

type Files = BTreeMap<SafePath, NewFile>;

pub(super) fn bad(why: impl Into<String>) -> Failure {
    Failure::new(Code::BadArchive, why)
}

/// Unpacks and checks an archive. Its files are at its top, or all in a folder with the skill's name.
pub(super) fn check(archive: &[u8], name: &SkillName) -> Result<(Vec<NewFile>, FrontMatter), Failure> {
    if archive.windows(ENTRY_SIGNATURE.len()).filter(|four| *four == ENTRY_SIGNATURE).count() > SIGNATURES_MAX {
        return Err(too_many());
    }
    let mut zip =
        ZipArchive::new(Cursor::new(archive)).map_err(|_| bad("The body is no zip that can be read: send a zip."))?;
    if zip.len() > SKILL_ENTRIES_MAX {
        return Err(too_many());
    }
    // The library returns only the last of them; another program may show the first.
    if zip.has_duplicate_names() {
        return Err(bad("The archive has two entries with one name: keep one of them."));
    }
    let (mut files, mut left) = (Files::new(), SKILL_BYTES_MAX);
    for index in 0..zip.len() {
        let entry = zip.by_index(index);
        let entry = entry.map_err(|_| bad(format!("Entry {} of the archive cannot be read.", index + 1)))?;
        if let Some(file) = unpack(entry, &mut left)?
            && let Some(twice) = files.insert(file.path.clone(), file)
        {
            return Err(bad(format!("{}: the archive has it twice.", twice.path)));
        }
    }
    let files = at_top(files, name)?;
    check_conflicts(&files)?;
    let of_skill = files.iter().find(|file| file.path.as_bytes() == SKILL_FILE.as_bytes());
    let text = of_skill.map(|file| &*file.bytes).unwrap_or_default();
    if text.len() as u64 > SKILL_FILE_BYTES_MAX {
        let why = format!("{SKILL_FILE} is longer than {SKILL_FILE_BYTES_MAX} bytes: put details into other files.");
        return Err(Failure::new(Code::BadSkill, why));
    }
    if str::from_utf8(text).is_err() {
        return Err(Failure::new(Code::BadSkill, format!("{SKILL_FILE} must be UTF-8 text.")));
    }
    let front = FrontMatter::parse(text, Some(name));
    let front = front.map_err(|why| Failure::new(Code::BadSkill, format!("The skill is not valid: {why}.")))?;
    Ok((files, front))
}

/// The file of an entry; `None` for a folder.
fn unpack(entry: ZipFile<'_, Cursor<&[u8]>>, left: &mut u64) -> Result<Option<NewFile>, Failure> {
    let name = entry.name_raw().to_vec();
    let refuse = |why: &str| {
        let shown: String = String::from_utf8_lossy(&name).escape_debug().take(120).collect();
        bad(format!("{shown}: {why}"))
    };
    let mode = entry.unix_mode().unwrap_or(0o644);
    if !matches!(mode & FILE_KIND, 0 | 0o100_000 | 0o040_000) {
        return Err(refuse("only plain files and folders are accepted."));
    }
    if entry.encrypted() || !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return Err(refuse("only stored and deflated entries without a password are accepted."));
    }
    let inside = name.strip_suffix(b"/").unwrap_or(&name);
    let path = SafePath::from_components(inside.split(|&byte| byte == b'/')).map_err(|why| refuse(&why.to_string()))?;
    if path.components().next() == Some(MAC_FOLDER) {
        return Ok(None);
    }
    if path.components().count() > SKILL_DEPTH_MAX {
        return Err(refuse(&format!("it is more than {SKILL_DEPTH_MAX} folders deep.")));
    }
    let is_plain = |part: &[u8]| !part.starts_with(b"-") && !part.contains(&b'\\') && str::from_utf8(part).is_ok();
    if path.needs_encoding() || !path.components().all(is_plain) {
        return Err(refuse("names must be plain text, without a hyphen at the beginning or a backslash."));
    }
    if name.ends_with(b"/") || mode & FILE_KIND == 0o040_000 {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = entry.take(*left + 1).read_to_end(&mut bytes);
    read.map_err(|_| refuse("it cannot be unpacked, or its checksum is wrong."))?;
    let Some(rest) = left.checked_sub(bytes.len() as u64) else {
        return Err(bad(format!("The files of a skill may have {SKILL_BYTES_MAX} bytes together.")));
    };
    *left = rest;
    Ok(Some(NewFile { path, bytes, is_executable: mode & 0o111 != 0 }))
}

/// The files without the folder that all of them are in.
fn at_top(files: Files, name: &SkillName) -> Result<Vec<NewFile>, Failure> {
    let has = |path: &str| files.keys().any(|file| file.as_bytes() == path.as_bytes());
    let skip = match () {
        () if has(SKILL_FILE) => 0,
        () if has(&format!("{name}/{SKILL_FILE}")) => 1,
        () => {
            let why = format!("The archive must have {SKILL_FILE} at its top, or in a folder `{name}`.");
            return Err(Failure::new(Code::BadSkill, why));
        }
    };
    let one = |NewFile { path, bytes, is_executable }| {
        let outside = || bad(format!("{path}: it is not in the skill's folder, as {SKILL_FILE} is."));
        if skip == 1 && path.components().next() != Some(name.as_str().as_bytes()) {
            return Err(outside());
        }
        let path = SafePath::from_components(path.components().skip(skip)).map_err(|_| outside())?;
        Ok(NewFile { path, bytes, is_executable })
    };
    files.into_values().map(one).collect()
}

/// Refuses a path that is both a file and a folder, which could not be written.
fn check_conflicts(files: &[NewFile]) -> Result<(), Failure> {
    let all: BTreeSet<&[u8]> = files.iter().map(|file| file.path.as_bytes()).collect();
    for NewFile { path, .. } in files {
        if path.above().any(|folder| all.contains(folder)) {
            return Err(bad(format!("{path}: the archive has a folder of it both as a file and as a folder.")));
        }
    }
    Ok(())
}

fn too_many() -> Failure {
    bad(format!("The archive has more than {SKILL_ENTRIES_MAX} entries."))
}
