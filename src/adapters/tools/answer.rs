//! Tools and answers of MCP as types of the port.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rmcp::model::{self, CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use crate::{
    domain::tools::{Hints, TOOL_NAME_BYTES_MAX, Tool},
    ports::tools::{Answer, Attachment, UpstreamError},
};

/// In place of a part that rmcp does not know.
const UNKNOWN: &str = "[a part of the answer is of a kind that this server does not know]";

/// `None` for one whose name no client could call.
pub(super) fn tool(tool: model::Tool) -> Option<Tool> {
    let name = tool.name.into_owned();
    let hints = tool
        .annotations
        .map(|hints| Hints { read_only_hint: hints.read_only_hint, destructive_hint: hints.destructive_hint });
    (!name.is_empty() && name.len() <= TOOL_NAME_BYTES_MAX).then(|| Tool {
        name,
        title: tool.title,
        description: tool.description.unwrap_or_default().into_owned(),
        input: Value::Object(tool.input_schema.as_ref().clone()),
        output: tool.output_schema.map(|schema| Value::Object(schema.as_ref().clone())),
        hints: hints.unwrap_or_default(),
    })
}

/// A page in which rmcp could not read every tool: those that it can, and where the next page is.
///
/// # Errors
/// It is no page.
pub(super) fn tools(mut page: Value) -> Result<(Vec<Tool>, Option<String>), UpstreamError> {
    let Some(Value::Array(tools)) = page.get_mut("tools").map(Value::take) else {
        return Err(UpstreamError::Unusable("it is not a list of tools".to_owned()));
    };
    let tools = tools.into_iter().filter_map(|value| tool(serde_json::from_value(value).ok()?)).collect();
    Ok((tools, page.get("nextCursor").and_then(Value::as_str).map(str::to_owned)))
}

/// # Errors
/// A part is not the base64 that it says.
pub(super) fn answered(result: CallToolResult) -> Result<Answer, UpstreamError> {
    let mut answer = Answer {
        is_error: result.is_error == Some(true),
        structured: result.structured_content,
        texts: Vec::new(),
        attachments: Vec::new(),
    };
    for block in result.content {
        match block {
            ContentBlock::Text(text) => answer.texts.push(text.text),
            ContentBlock::Image(image) => answer.attachments.push(attachment(image.mime_type, &image.data)?),
            ContentBlock::Audio(audio) => answer.attachments.push(attachment(audio.mime_type, &audio.data)?),
            ContentBlock::Resource(resource) => match resource.resource {
                ResourceContents::TextResourceContents { text, .. } => answer.texts.push(text),
                ResourceContents::BlobResourceContents { mime_type, blob, .. } => {
                    answer.attachments.push(attachment(mime_type.unwrap_or_default(), &blob)?);
                }
                _ => answer.texts.push(UNKNOWN.to_owned()),
            },
            ContentBlock::ResourceLink(link) => answer.texts.push(link.uri),
            _ => answer.texts.push(UNKNOWN.to_owned()),
        }
    }
    Ok(answer)
}

fn attachment(media_type: String, base64: &str) -> Result<Attachment, UpstreamError> {
    let bytes = BASE64_STANDARD.decode(base64);
    let bytes = bytes.map_err(|_| UpstreamError::Unusable("a part of it is not base64".to_owned()))?;
    Ok(Attachment { media_type, bytes })
}
