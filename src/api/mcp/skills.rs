//! Skills as tools, in CodeRunner's texts, and as resources `skill://{name}/{path}`.

use std::fmt::Write as _;

use rmcp::{
    ErrorData,
    model::{CallToolResult, JsonObject, ReadResourceResult, Resource, ResourceContents, ResourceTemplate},
};

use super::{
    Caller, McpParts, content,
    shown::{ANSWER_BYTES_MAX, shorten},
};
use crate::{
    api::schema::{
        arguments::Nothing,
        parse::{Source, parse},
        skills::{GetSkillFile, GetSkillInfo},
    },
    domain::{
        error::{Code, Failure},
        path::SafePath,
        skills::{SKILL_FILE, SkillName},
        text::one_line,
        token::Scope,
    },
    services::{
        files::media_type,
        skills::{Skill, SkillContent},
    },
};

/// What URIs of skills begin with.
pub(super) const SCHEME: &str = "skill://";
/// How much of a text an answer holds, in bytes: JSON writes a control character in six.
const TEXT_BYTES_MAX: usize = ANSWER_BYTES_MAX / 6 - 1024;
/// How much of an unknown name is repeated, in characters.
const NAME_CHARS_MAX: usize = 80;
const RULE: usize = 80;

impl McpParts {
    pub(super) async fn list_skills(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let Nothing {} = parse(arguments, Source::Json)?;
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
        let text = shorten(&text, TEXT_BYTES_MAX, |_, _| "…\n".to_owned());
        let text = format!("{text}Use get_skill_info(skill_name) to read documentation for a specific skill.");
        Ok(content::plain(text, false))
    }

    pub(super) async fn skill_info(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let GetSkillInfo { skill_name } = parse(arguments, Source::Json)?;
        let Ok(name) = skill_name.parse() else { return Ok(missing(&skill_name, SKILL_FILE)) };
        answer(self.skills.info(&caller.principal, &name).await, &skill_name, None)
    }

    pub(super) async fn skill_file(&self, caller: &Caller, arguments: JsonObject) -> Result<CallToolResult, Failure> {
        let GetSkillFile { skill_name, filename } = parse(arguments, Source::Json)?;
        let (Ok(name), Ok(path)) = (skill_name.parse::<SkillName>(), SafePath::from_text(&filename)) else {
            return Ok(missing(&skill_name, &filename));
        };
        let found = self.skills.file(&caller.principal, &name, &path, u64::MAX).await;
        answer(found, &skill_name, Some(&filename))
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
                .with_description(shorten(&one_line(&skill.front.description), 1024, |_, _| "…".to_owned()))
                .with_mime_type("text/markdown")
        };
        skills.iter().map(one).collect()
    }

    pub(super) async fn read_skill_resource(
        &self,
        caller: &Caller,
        uri: &str,
    ) -> Result<ReadResourceResult, ErrorData> {
        let not_found = |why: String| ErrorData::resource_not_found(why, None);
        caller.check_scope(Scope::Files).map_err(|failure| ErrorData::invalid_request(failure.message, None))?;
        let named = uri
            .strip_prefix(SCHEME)
            .and_then(|rest| rest.split_once('/'))
            .and_then(|(name, path)| Some((name.parse::<SkillName>().ok()?, SafePath::from_encoded(path).ok()?)));
        let (name, path) = named.ok_or_else(|| not_found("uri: it names no file of a skill".to_owned()))?;
        let found = self.skills.file(&caller.principal, &name, &path, TEXT_BYTES_MAX as u64).await;
        let SkillContent { bytes, .. } = found.map_err(|failure| not_found(failure.message))?;
        let contents = match String::from_utf8(bytes) {
            Ok(text) => ResourceContents::text(text, uri),
            Err(bytes) => ResourceContents::blob(base64(bytes.as_bytes()), uri),
        };
        Ok(ReadResourceResult::new(vec![contents.with_mime_type(media_type(path.name()))]))
    }
}

pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{name}}/{{+path}}"), "skill file")
        .with_title("A file of a skill")
        .with_description("A file of a skill, such as its SKILL.md.")
}

fn uri(skill: &Skill, path: &str) -> String {
    format!("{SCHEME}{}/{path}", skill.front.name)
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    BASE64_STANDARD.encode(bytes)
}

/// A file in CodeRunner's words.
fn answer(found: Result<SkillContent, Failure>, name: &str, file: Option<&str>) -> Result<CallToolResult, Failure> {
    let SkillContent { skill, bytes } = match found {
        Ok(found) => found,
        Err(failure) if matches!(failure.code, Code::SkillNotFound | Code::FileNotFound) => {
            return Ok(missing(name, file.unwrap_or(SKILL_FILE)));
        }
        Err(failure) => return Err(failure),
    };
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
    Ok(content::plain(text, false))
}

fn missing(name: &str, file: &str) -> CallToolResult {
    let shown = |text: &str| text.escape_debug().take(NAME_CHARS_MAX).collect::<String>();
    let why = format!(
        "Error: File '{}' not found in skill '{}'. Use list_skills() to see available skills.",
        shown(file),
        shown(name)
    );
    content::plain(why, true)
}
