//! A program and its result. Each program is a separate run; the files that it names are copied into its session first,
//! so that a program cannot change what another session holds.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{file_id, fresh, no_file, of_hint, session};
use crate::{
    api::http::{ApiCall, Reply, RequestBody, Room, coderunner::stderr, listed},
    domain::{Code, ConversationId, ConversationKey, Failure, FileEntry, Language, SafePath},
    services::{
        files::Files,
        runs::{Report, RunRequest},
    },
};

/// The files that one program may name.
const FILES_MAX: usize = 200;
/// How much of the name of a file is repeated that is not there, in characters.
const NAME_CHARS_MAX: usize = 200;
/// Names of languages that differ from those of runners.
const LANGUAGES: [(&str, &str); 5] =
    [("py", "python"), ("js", "javascript"), ("ts", "typescript"), ("rs", "rust"), ("f90", "fortran")];
/// The folder of programs, as LibreChat tells the model.
const FOLDER: &str = "/mnt/data/";

#[derive(Deserialize, JsonSchema)]
struct Exec {
    lang: String,
    code: String,
    args: Option<Vec<String>>,
    session_id: Option<String>,
    files: Option<Vec<Named>>,
    /// Programs with the same hint share a session.
    runtime_session_hint: Option<String>,
}

/// A file of a session, and its path for the program.
#[derive(Deserialize, JsonSchema)]
struct Named {
    id: String,
    name: Option<String>,
    storage_session_id: Option<String>,
    /// Its name in older versions.
    session_id: Option<String>,
}

impl Named {
    fn session(&self) -> &str {
        self.storage_session_id.as_deref().or(self.session_id.as_deref()).unwrap_or_default()
    }
}

/// The paths of named files, by their sessions and ids.
type FilePaths = BTreeMap<ConversationId, BTreeMap<String, SafePath>>;

/// A file that the program made, changed or was given.
fn reference(id: &str, path: &SafePath, session: &str) -> Value {
    json!({"id": id, "name": path.text(), "storage_session_id": session, "session_id": session})
}

/// Runs a program and waits for its end. One that fails is a result.
pub(super) async fn exec(call: ApiCall, body: RequestBody) -> Reply {
    // Without capacity the body is not read.
    call.parts.runs.check_capacity(&call.who)?;
    // None of it is kept while the program is waited for but what admission counts.
    let Exec { lang, code, args, session_id, files, runtime_session_hint } = body.lenient().await?;
    let language = language(&lang)?;
    let id = match (session_id, runtime_session_hint) {
        (Some(id), _) if !id.is_empty() => session(&id)?,
        (_, Some(hint)) if !hint.is_empty() => of_hint(&hint),
        _ => fresh(),
    };
    let named = files.unwrap_or_default();
    if named.len() > FILES_MAX {
        return Err(Failure::argument("files", format!("a program takes at most {FILES_MAX}")).into());
    }
    let request = RunRequest { args: args.unwrap_or_default(), ..RunRequest::new(call.key(id), language, code.into()) };
    // Copied files would make a conversation of a program that is refused.
    let own_name = |failure: Failure| failure.renamed("language", "lang");
    call.parts.runs.check(&request).map_err(own_name)?;
    let paths = paths_of(&call, &named).await?;
    let (mut given, mut missing) = (Vec::new(), Vec::new());
    for file in named {
        match give(&call.parts.files, &request.conversation, &paths, &file).await {
            Ok(delivered) => given.push(delivered),
            Err(failure) if is_gone(&failure) => {
                let name = file.name.as_deref().unwrap_or(&file.id).chars().take(NAME_CHARS_MAX).collect::<String>();
                missing.push(format!("The file {name:?} is no longer there: upload it again.\n"));
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    let report = call.finished(request).await.map_err(own_name)?;
    let mut room = Room::default();
    let executed = executed(&report, given, &missing.concat(), &mut room);
    Ok(listed::answer(executed, !room.is_full))
}

/// A language by LibreChat's short name of it.
fn language(name: &str) -> Result<Language, Failure> {
    let known = LANGUAGES.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    known.parse().map_err(|why| Failure::argument("lang", why))
}

fn is_gone(failure: &Failure) -> bool {
    matches!(failure.code, Code::ConversationNotFound | Code::FileNotFound | Code::NotAFile)
}

/// The ids of the named files of each session.
fn by_session(named: &[Named]) -> BTreeMap<ConversationId, BTreeSet<&str>> {
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for file in named {
        if let Ok(id) = session(file.session()) {
            all.entry(id).or_default().insert(file.id.as_str());
        }
    }
    all
}

/// Finds named files. Each session is listed once, since a list takes as long as the session has files.
async fn paths_of(call: &ApiCall, named: &[Named]) -> Result<FilePaths, Failure> {
    let mut paths = FilePaths::new();
    for (session, ids) in by_session(named) {
        let mut found = BTreeMap::new();
        let visit = |file: FileEntry| {
            let id = file_id(&file.path);
            if ids.contains(id.as_str()) {
                found.insert(id, file.path);
            }
        };
        call.parts.files.visit(&call.key(session.clone()), None, visit).await?;
        paths.insert(session, found);
    }
    Ok(paths)
}

/// Copies a file into a conversation, unless it is there already.
async fn give(
    files: &Files,
    conversation: &ConversationKey,
    paths: &FilePaths,
    file: &Named,
) -> Result<Value, Failure> {
    let from = file.session();
    let source = ConversationKey::new(conversation.owner.clone(), session(from)?);
    let at = paths.get(&source.id).and_then(|found| found.get(&file.id)).ok_or_else(no_file)?;
    let name = file.name.as_deref().map(|name| name.strip_prefix(FOLDER).unwrap_or(name));
    let to = match name {
        Some(name) => SafePath::from_text(name).map_err(|why| Failure::argument("files", why))?,
        None => at.clone(),
    };
    if source.id != conversation.id || to != *at {
        files.copy((&source, at), (conversation, &to), None).await?;
    }
    let mut given = reference(&file.id, &to, from);
    given["inherited"] = true.into();
    Ok(given)
}

/// What LibreChat reads. The list of files is as long as there is room; names are up to 4 KiB each.
fn executed(report: &Report, given: Vec<Value>, missing: &str, room: &mut Room) -> Value {
    let session = report.conversation.id.as_str();
    let made = |file: &FileEntry| reference(&file_id(&file.path), &file.path, session);
    let mut files: Vec<_> = report.files.made().map(made).filter(|file| room.takes(file)).collect();
    for file in given {
        if files.iter().all(|made| made["name"] != file["name"]) && room.takes(&file) {
            files.push(file);
        }
    }
    let stderr = format!("{missing}{}", stderr(report));
    json!({"session_id": session, "stdout": report.stdout.text, "stderr": stderr, "files": files})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_of_named_files_is_listed_once() {
        let named = |id: String, storage: Option<&str>, older: Option<&str>| Named {
            id,
            name: None,
            storage_session_id: storage.map(ToOwned::to_owned),
            session_id: older.map(ToOwned::to_owned),
        };
        let [first, second] = [fresh(), fresh()];
        let mut all: Vec<_> = (0..FILES_MAX).map(|n| named(n.to_string(), Some(first.as_str()), None)).collect();
        all.push(named("0".to_owned(), Some(first.as_str()), Some("other")));
        all.push(named("a".to_owned(), None, Some(second.as_str())));
        all.push(named("a".to_owned(), Some("../x"), Some(second.as_str())));
        all.push(named("a".to_owned(), None, None));
        let found: BTreeMap<_, _> = by_session(&all).into_iter().map(|(id, ids)| (id, ids.len())).collect();
        assert_eq!(found, BTreeMap::from([(first, FILES_MAX), (second, 1)]));
    }
}
