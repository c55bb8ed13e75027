//! Skills as tools, in CodeRunner's texts, as resources `skill://{source}/{name}/{path}`, and as entries of MCP's
//! skills extension (SEP-2640). The source is `public` or `user`, so a URI never leads to another skill of that name.

use std::fmt::Write as _;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rmcp::{
    ErrorData,
    model::{
        CallToolResult, GetSkillResult, ListSkillsResult, ReadResourceResult, Resource, ResourceContents,
        ResourceTemplate, Skill as Entry, SkillFrontmatter, SkillResource, SkillResources,
    },
};

use super::{
    Caller, McpParts,
    caller::{McpResult, ToolResult},
    content::{self, REST_BYTES},
    resources::{not_found, unread},
    shown::{ANSWER_BYTES_MAX, TEXT_BYTES_MAX, clipped, shorten},
};
use crate::{
    api::schema::{
        arguments::NoArguments,
        installed::{GetSkillFile, GetSkillInfo},
        json_len,
    },
    domain::{
        Code, Failure, SafePath, Scope,
        skills::{SKILL_FILE, SKILL_FILE_BYTES_MAX, SkillName},
        text::{self, one_line},
    },
    services::{
        files::media_type,
        skills::{Skill, SkillContent},
    },
};

/// What URIs of skills begin with.
pub(super) const SCHEME: &str = "skill://";
const RULE: usize = 80;
/// The longest file that is read as a resource, in bytes. A digest is of the whole, so none is shortened.
const RESOURCE_BYTES_MAX: u64 = TEXT_BYTES_MAX as u64;
/// Entries in one page: each costs reading all files of a skill.
const PAGE_MAX: usize = 10;
/// The entries of one page together, and one entry, in bytes of JSON.
const ENTRIES_BYTES_MAX: usize = ANSWER_BYTES_MAX - REST_BYTES;
const NO_FILE: &str = "uri: it names no file of a skill: resources/list names the skills";

impl McpParts {
    pub(super) async fn list_skills(&self, caller: &Caller, NoArguments {}: NoArguments) -> ToolResult {
        let skills = self.skills.list(&caller.principal).await?;
        let mut text = "Available Skills:\n\n".to_owned();
        for (title, label) in [("Public", "public"), ("User", "user")] {
            let of: Vec<&Skill> = skills.iter().filter(|skill| skill.source.label() == label).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{title} Skills ({}):", of.len());
            for skill in &of {
                let _ = writeln!(text, "  - {}: {}", skill.front.name, one_line(&skill.front.description));
            }
            text += if of.is_empty() { "  (none)\n\n" } else { "\n" };
        }
        let text = shorten(&text, TEXT_BYTES_MAX, |_, left| {
            format!("\n[… {left} bytes are left out here: a program finds all skills in /skills …]\n")
        });
        let text = format!("{text}Use get_skill_info(skill_name) to read documentation for a specific skill.");
        Ok(content::plain(text, false))
    }

    pub(super) async fn skill_info(&self, caller: &Caller, GetSkillInfo { skill_name }: GetSkillInfo) -> ToolResult {
        self.skill_text(caller, &skill_name, None).await
    }

    pub(super) async fn skill_file(&self, caller: &Caller, arguments: GetSkillFile) -> ToolResult {
        let GetSkillFile { skill_name, filename } = arguments;
        self.skill_text(caller, &skill_name, Some(&filename)).await
    }

    /// A file of a skill; its documentation where none is named.
    async fn skill_text(&self, caller: &Caller, name: &str, file: Option<&str>) -> ToolResult {
        let (wanted, bytes_max) = file.map_or((SKILL_FILE, SKILL_FILE_BYTES_MAX), |file| (file, u64::MAX));
        let (Ok(skill), Ok(path)) = (name.parse::<SkillName>(), SafePath::from_text(wanted)) else {
            return Ok(missing(name, wanted));
        };
        match self.skills.file(&caller.principal, &skill, &path, bytes_max).await {
            Ok(found) => Ok(answer(found, file)),
            Err(Failure { code: Code::SkillNotFound | Code::FileNotFound, .. }) => Ok(missing(name, wanted)),
            Err(failure) => Err(failure),
        }
    }

    /// The documentation of each skill.
    pub(super) async fn skill_resources(&self, caller: &Caller) -> Vec<Resource> {
        if caller.check_scope(Scope::Files).is_err() {
            return Vec::new();
        }
        // Off, or the disk failed: there are none to read.
        let skills = self.skills.list(&caller.principal).await.unwrap_or_default();
        let one = |skill: &Skill| {
            Resource::new(uri(skill, SKILL_FILE), skill.front.name.to_string())
                .with_description(clipped(&one_line(&skill.front.description), 1024))
                .with_mime_type("text/markdown")
        };
        skills.iter().map(one).collect()
    }

    /// Entries in the order of names, public ones first. A skill that is larger than any that can be uploaded has no
    /// entry, nor one whose entry is too long for an answer.
    pub(super) async fn skill_page(&self, caller: &Caller, cursor: Option<String>) -> McpResult<ListSkillsResult> {
        let invalid = |failure: Failure| ErrorData::invalid_request(failure.message, None);
        caller.check_scope(Scope::Files).map_err(invalid)?;
        let all = self.skills.list(&caller.principal).await.map_err(invalid)?;
        let start = cursor
            .as_ref()
            .map_or(Some(0), |cursor| Some(all.iter().position(|skill| uri(skill, SKILL_FILE) == *cursor)? + 1));
        let why = "cursor: it is not of this list, or the list has changed: begin anew";
        let rest = &all[start.ok_or_else(|| ErrorData::invalid_params(why, None))?..];
        let (mut entries, mut taken, mut bytes) = (Vec::new(), 0, 0);
        for skill in &rest[..rest.len().min(PAGE_MAX)] {
            if let Ok(entry) = self.entry(caller, &skill.front.name).await {
                bytes += json_len(&entry) + ",".len();
                if bytes > ENTRIES_BYTES_MAX {
                    break;
                }
                entries.push(entry);
            }
            taken += 1;
        }
        let mut result = ListSkillsResult::with_all_items(entries);
        let last = rest[..taken].last().filter(|_| rest.len() > taken);
        result.next_cursor = last.map(|skill| uri(skill, SKILL_FILE));
        Ok(result)
    }

    pub(super) async fn skill_entry(&self, caller: &Caller, uri: &str) -> McpResult<GetSkillResult> {
        caller.check_scope(Scope::Files).map_err(|failure| ErrorData::invalid_request(failure.message, None))?;
        let invalid = |why: String| ErrorData::invalid_params(why, None);
        let none = || invalid("uri: there is no such skill: skills/list names all there are".to_owned());
        let (_, name, _) = named(uri).ok_or_else(none)?;
        let entry = self.entry(caller, &name).await.map_err(|failure| invalid(failure.message))?;
        if entry.uri == uri { Ok(GetSkillResult::new(entry)) } else { Err(none()) }
    }

    async fn entry(&self, caller: &Caller, name: &SkillName) -> Result<Entry, Failure> {
        let (skill, files) = self.skills.digests(&caller.principal, name).await?;
        let one = |(path, digest, size): &(SafePath, String, u64)| {
            SkillResource::new(uri(&skill, &path.to_encoded()), format!("sha256:{digest}"), *size)
        };
        let mut front = SkillFrontmatter::new(name.to_string(), skill.front.description.clone());
        front
            .extra
            .extend(skill.front.all.clone().into_iter().filter(|(key, _)| key != "name" && key != "description"));
        let entry = Entry::new(uri(&skill, SKILL_FILE), front, SkillResources::Files(files.iter().map(one).collect()));
        if json_len(&entry) >= ENTRIES_BYTES_MAX {
            let why = "uri: the skill's files are too many for one answer: see them in a program, below /skills";
            return Err(Failure::new(Code::TooLarge, why));
        }
        Ok(entry)
    }

    pub(super) async fn read_skill_resource(&self, caller: &Caller, uri: &str) -> McpResult<ReadResourceResult> {
        caller.check_scope(Scope::Files).map_err(|failure| ErrorData::invalid_request(failure.message, None))?;
        let (source, name, path) = named(uri).ok_or_else(|| not_found(NO_FILE.to_owned()))?;
        let found = self.skills.file(&caller.principal, &name, &path, RESOURCE_BYTES_MAX).await;
        let SkillContent { bytes, skill } = found.map_err(unread)?;
        if skill.source.label() != source {
            return Err(not_found(NO_FILE.to_owned()));
        }
        let contents = match String::from_utf8(bytes) {
            Ok(text) => ResourceContents::text(text, uri),
            Err(bytes) => ResourceContents::blob(BASE64_STANDARD.encode(bytes.as_bytes()), uri),
        };
        Ok(ReadResourceResult::new(vec![contents.with_mime_type(media_type(path.name()))]))
    }
}

/// The source, skill and file that a URI names.
fn named(uri: &str) -> Option<(&str, SkillName, SafePath)> {
    let mut parts = uri.strip_prefix(SCHEME)?.splitn(3, '/');
    let (source, name) = (parts.next()?, parts.next()?.parse().ok()?);
    Some((source, name, SafePath::from_encoded(parts.next()?).ok()?))
}

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{source}}/{{name}}/{{+path}}"), "skill file")
        .with_title("A file of a skill")
        .with_description("A file of a skill, such as its SKILL.md.")
}

fn uri(skill: &Skill, path: &str) -> String {
    format!("{SCHEME}{}/{}/{path}", skill.source.label(), skill.front.name)
}

/// A file in CodeRunner's words.
fn answer(SkillContent { skill, bytes }: SkillContent, file: Option<&str>) -> CallToolResult {
    let mut text = format!("Skill: {} ({})\n", skill.front.name, skill.source.label());
    if let Some(file) = file {
        // It was found, so it is a plain path.
        let _ = writeln!(text, "File: {}", one_line(file));
    }
    let _ = write!(text, "Location: {}/\n{}\n\n", skill.location(), "=".repeat(RULE));
    let size = bytes.len();
    match String::from_utf8(bytes) {
        Ok(body) => {
            text += &shorten(&body, TEXT_BYTES_MAX, |_, _| {
                format!("\n[… of {size} bytes; read the file in a program, in {}]\n", skill.location())
            });
        }
        Err(_) => {
            let _ = write!(text, "[binary, {size} bytes: read it in a program, in {}]", skill.location());
        }
    }
    content::plain(text, false)
}

fn missing(name: &str, file: &str) -> CallToolResult {
    let (file, name) = (text::shown(file), text::shown(name));
    let why = format!("Error: File '{file}' not found in skill '{name}'. Use list_skills() to see available skills.");
    content::plain(why, true)
}
