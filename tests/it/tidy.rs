//! Reads the sources and fails on an import that runs upwards or sideways, on a vendor crate outside its row, on a file
//! without an opening comment, on long files and lines, and on words that hide who acts. The tables are the
//! architecture: change them in a commit of their own that says why.

mod tables;

use std::{
    fs,
    path::{Path, PathBuf},
};

use self::tables::{MAY_NAME, NEIGHBOURS, VENDORS};

const BAD_NAMES: [&str; 6] = ["mod", "utils", "util", "helpers", "common", "manager"];
const LINES_MAX: usize = 400;
const COLUMNS_MAX: usize = 120;
/// Words that hide who does what: the sentence names the client, the program, the operator or the server instead.
const VAGUE_WORDS: [&str; 5] = ["nobody", "somebody", "whoever", "everybody", "anybody"];

pub(crate) struct Source {
    /// Below `src/`, without the ending: `services/runs/log`.
    pub(crate) name: String,
    pub(crate) text: String,
}

pub(crate) fn sources() -> Vec<Source> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder of src/") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    found.sort();
    found
        .into_iter()
        .map(|path| Source {
            name: path.strip_prefix(&root).expect("below src/").with_extension("").display().to_string(),
            text: fs::read_to_string(&path).expect("a source"),
        })
        .collect()
}

/// The crate paths that a text names, as `room::module::…`, whether in a `use` tree or in an expression.
fn crate_paths(text: &str) -> Vec<Vec<String>> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') && before != Some('$') {
            continue;
        }
        expand(&code[at + "crate::".len()..], &[], &mut paths);
    }
    paths
}

/// Expands one path or `{a::b, c}` tree at the start of `text`; answers how much it read.
fn expand(text: &str, prefix: &[String], paths: &mut Vec<Vec<String>>) -> usize {
    let trimmed = text.trim_start();
    let mut read = text.len() - trimmed.len();
    if let Some(inner) = trimmed.strip_prefix('{') {
        read += 1;
        let mut rest = inner;
        loop {
            let used = expand(rest, prefix, paths);
            rest = &rest[used..];
            read += used;
            let next = rest.trim_start();
            read += rest.len() - next.len();
            rest = next;
            if let Some(after) = rest.strip_prefix(',') {
                read += 1;
                let skipped = after.trim_start();
                read += after.len() - skipped.len();
                rest = skipped;
                if !rest.starts_with('}') {
                    continue;
                }
            }
            return read + usize::from(rest.starts_with('}'));
        }
    }
    let word: String = trimmed.chars().take_while(|c| c.is_alphanumeric() || *c == '_' || *c == '*').collect();
    read += word.len();
    let mut path = prefix.to_vec();
    if !word.is_empty() {
        path.push(word.clone());
    }
    if let Some(after) = trimmed[word.len()..].strip_prefix("::") {
        return read + 2 + expand(after, &path, paths);
    }
    paths.push(path);
    read
}

fn room(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}

#[test]
fn the_reader_of_imports_reads_trees() {
    let text = "use crate::{a::{b, c::D}, e};\nlet x = crate::f::G::new(); // crate::no\nuse mycrate::h;";
    let paths: Vec<_> = crate_paths(text).into_iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["a::b", "a::c::D", "e", "f::G::new"]);
}

#[test]
fn no_import_runs_upwards_or_sideways() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !matches!(source.name.as_str(), "lib" | "main")) {
        let own = room(&source.name);
        let (_, allowed) = MAY_NAME.iter().find(|(room, _)| *room == own).expect("every room is in the table");
        let is_test = source.name.split('/').any(|part| part == "tests");
        for path in crate_paths(&source.text) {
            let Some(target) = path.first() else { continue };
            let named = path.join("::");
            // Tests of services build them on real folders, on a file of SQLite and on the scripted engine.
            let of_tests = ["adapters::storage", "adapters::database", "adapters::engine::fake"];
            let of_a_test = is_test && of_tests.iter().any(|part| named.starts_with(part));
            if target != own && !allowed.contains(&target.as_str()) && !of_a_test {
                wrong.push(format!("{} names crate::{named}", source.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn neighbours_keep_apart() {
    let mut wrong = Vec::new();
    for source in sources() {
        let parts: Vec<_> = source.name.split('/').collect();
        let [room, module, ..] = parts.as_slice() else { continue };
        let Some((_, allowed)) = NEIGHBOURS.iter().find(|(name, _)| *name == format!("{room}::{module}")) else {
            // A module that is not in the table has not been thought about.
            assert!(!matches!(*room, "adapters" | "ports" | "services"), "{room}::{module} is missing from the table");
            continue;
        };
        // From a module's own file, `super::` names its neighbours.
        let mut paths = crate_paths(&source.text);
        if parts.len() == 2 {
            let own = source.text.split("mod tests {").next().unwrap_or_default();
            let neighbours = own.replace("super::super::", "crate::").replace("super::", &format!("crate::{room}::"));
            paths.extend(crate_paths(&neighbours));
        }
        for path in paths {
            if path.first().is_some_and(|first| first == room)
                && let Some(target) = path.get(1)
                && target != module
                && !allowed.contains(&target.as_str())
                && NEIGHBOURS.iter().any(|(name, _)| *name == format!("{room}::{target}"))
            {
                wrong.push(format!("{} names {}", source.name, path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An engine names no other one, and the rows above name none: they use what `adapters::engine` has for all.
#[test]
fn engines_are_named_by_themselves_alone() {
    for source in sources() {
        let is_test = source.name.split('/').any(|part| part == "tests");
        for engine in ["docker", "fake", "kubernetes"] {
            let is_own = source.name.starts_with(&format!("adapters/engine/{engine}"));
            let names = source.text.contains(&format!("engine::{engine}"));
            assert!(is_own || is_test || !names, "{} names engine::{engine}", source.name);
        }
    }
}

#[test]
fn vendors_stay_in_their_rooms() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (vendor, places) in VENDORS {
            let names = source.text.contains(&format!("{vendor}::")) || source.text.contains(&format!("use {vendor};"));
            let inside = places.iter().any(|place| {
                source.name == *place || source.name.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
            });
            if names && !inside {
                wrong.push(format!("{} names {vendor}", source.name));
            }
        }
        let reads_environment = source.text.contains("env::var") || source.text.contains("env::vars");
        // Of tests one asks how much they are to do.
        if reads_environment && room(&source.name) != "cli" && source.name != "domain/test_scale" {
            wrong.push(format!("{} reads the environment", source.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_are_small_and_say_what_they_own() {
    let all = sources();
    let mut wrong = Vec::new();
    for source in &all {
        let stem = source.name.rsplit('/').next().unwrap_or_default();
        if BAD_NAMES.contains(&stem) {
            wrong.push(format!("{}: a name that says nothing", source.name));
        }
        if !source.text.starts_with("//!") {
            wrong.push(format!("{}: does not open with what it owns", source.name));
        }
    }
    for (path, text) in all_sources() {
        let count = text.lines().count();
        if count > LINES_MAX {
            wrong.push(format!("{}: {count} lines", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Sources, tests, benches and process 1.
fn all_rust() -> Vec<(PathBuf, String)> {
    tracked(&["*.rs"])
}

/// Every source that is written by hand. Left out: what is generated, and the programs that the tests run, which are as
/// odd as those of users.
fn all_sources() -> Vec<(PathBuf, String)> {
    let kinds =
        ["rs", "py", "js", "mjs", "cjs", "sh", "toml", "yml", "yaml", "css", "html"].map(|kind| format!("*.{kind}"));
    let left_out = ["static/dist", "deploy/kubernetes/manifests", "tests/hostile", "tests/runners/awkward"]
        .map(|folder| format!(":!{folder}"));
    tracked(&[kinds.as_slice(), &left_out].concat())
}

fn tracked<S: AsRef<std::ffi::OsStr>>(paths: &[S]) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = std::process::Command::new("git").args(["ls-files", "--"]).args(paths).current_dir(root).output();
    let listed = listed.expect("git");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8(listed.stdout).expect("names");
    let paths = names.lines().map(|name| root.join(name)).filter(|path| path.exists());
    paths.map(|path| (path.clone(), fs::read_to_string(path).expect("a source"))).collect()
}

#[test]
fn lines_are_at_most_120_columns_wide() {
    let mut wrong = Vec::new();
    for (path, text) in all_sources() {
        let wide = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
        wrong.extend(wide.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The last column of the rows in `ARCHITECTURE.md`.
#[test]
fn the_architecture_says_how_much_code_a_row_has() {
    let sources = sources();
    let of = |row: &str| {
        let of_tests = |part: &str| part.ends_with("tests") || ["fuzz", "fuzz_support", "test_scale"].contains(&part);
        let own = sources.iter().filter(|source| room(&source.name) == row);
        let code = own.filter(|source| !source.name.split('/').any(of_tests));
        let lines = code.flat_map(|source| source.text.split("mod tests {").next().unwrap_or_default().lines());
        lines.map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
    };
    let (_, text) = tracked(&["ARCHITECTURE.md"]).pop().expect("a document");
    let mut checked = Vec::new();
    for line in text.lines().skip_while(|line| !line.ends_with("| code lines |")).skip(2) {
        let Some((rest, told)) = line.trim_end_matches(" |").rsplit_once("| ") else { break };
        let rows: Vec<_> =
            rest.split('|').nth(1).expect("a row").split(',').map(|row| row.trim_matches([' ', '`'])).collect();
        let lines: usize = rows.iter().map(|row| of(row)).sum();
        let told: usize = told.parse().expect("a number");
        assert!(told.abs_diff(lines) * 10 <= lines, "{rows:?} has {lines} code lines, and ARCHITECTURE.md says {told}");
        checked.extend(rows);
    }
    assert_eq!(checked, ["main", "cli", "app", "api", "services", "adapters", "ports", "config", "domain"]);
}

#[test]
fn comments_and_functions_name_who_acts() {
    let mut wrong = Vec::new();
    for (path, text) in all_rust().into_iter().filter(|(path, _)| !path.ends_with("tests/it/tidy.rs")) {
        for (number, line) in text.lines().enumerate() {
            let function = line.split_once("fn ").and_then(|(_, rest)| rest.split('(').next()).unwrap_or_default();
            let (_, comment) = line.split_once("//").unwrap_or_default();
            let text = format!("{function} {comment}").to_lowercase();
            let mut words = text.split(|c: char| !c.is_alphanumeric());
            if words.any(|word| VAGUE_WORDS.contains(&word)) || text.contains("behind the back") {
                wrong.push(format!("{}:{}: {line}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A line that was continued and joined again leaves its indentation in the middle of what people read.
#[test]
fn no_sentence_has_a_hole_in_it() {
    let hole = " ".repeat(8);
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        let holed = lines.filter(|line| {
            line.match_indices(&hole).any(|(at, _)| {
                let after = line[at..].trim_start().chars().next();
                line[..at].ends_with(|c: char| c.is_alphabetic() || ",.:;".contains(c))
                    && after.is_some_and(char::is_alphabetic)
            })
        });
        wrong.extend(holed.map(|line| format!("{}: {line}", source.name)));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
