//! The tools that browse: a call is a run of the browser's session, waited for to its end. A page's text is shown as
//! text, its screenshots as pictures, its downloads as links, as every run's files are.

use std::{fmt::Write as _, sync::Arc};

use rmcp::model::ContentBlock;

use super::{
    McpParts,
    caller::{ToolCall, ToolResult},
    compatible::own_conversation,
    content::{REST_BYTES, answer, link, listed, plain, section},
    picture::{self, Pictures},
    shown::{ANSWER_BYTES_MAX, OUTPUT_BYTES_MAX, left_out, shorten},
};
use crate::{
    api::schema::{
        browse::{Browse, NavigateText, PageResult},
        json_len,
    },
    domain::{error::Failure, id::ConversationId, owner::ConversationKey},
    services::{
        browser::{self, Part},
        runs::Report,
    },
};

/// The lists of links and of controls in one answer, in bytes each.
const LIST_BYTES_MAX: usize = 16 << 10;

impl McpParts {
    pub(super) async fn browse(&self, call: ToolCall<'_>, browse: Browse) -> ToolResult {
        let is_new = browse.conversation.is_none();
        let conversation = call.caller.key(browse.conversation.clone().unwrap_or_else(ConversationId::fresh));
        let report = self.browsed(call, conversation, &browse.into_call()).await?;
        let page = PageResult::new(&report, browser::page(&report));
        let mut blocks = vec![ContentBlock::text(page_text(&page, is_new))];
        let links: Vec<_> = page.files.iter().map(link).collect();
        let used = json_len(&blocks) + json_len(&links) + if call.caller.view.structured { json_len(&page) } else { 0 };
        let Pictures { blocks: pictures, .. } =
            picture::of_run(self, call.caller.view, &report, ANSWER_BYTES_MAX.saturating_sub(used + REST_BYTES)).await;
        blocks.extend(pictures);
        blocks.extend(links);
        Ok(answer(call.caller, blocks, &page, page.error.is_some()))
    }

    pub(super) async fn navigate_text(&self, call: ToolCall<'_>, NavigateText { url }: NavigateText) -> ToolResult {
        let browse = browser::Browse { url: Some(url), read: vec![Part::Text], ..browser::Browse::default() };
        let conversation = call.caller.key(own_conversation(call.caller)?);
        let report = self.browsed(call, conversation, &browse).await?;
        let page = browser::page(&report);
        let mut text = shorten(&page.text, OUTPUT_BYTES_MAX, left_out);
        if let Some(error) = &page.error {
            section(&mut text, &format!("[{}]", error.sentence));
            section(&mut text, &page.notes.join("\n"));
        }
        Ok(plain(text, page.error.is_some()))
    }

    async fn browsed(
        &self,
        call: ToolCall<'_>,
        conversation: ConversationKey,
        browse: &browser::Browse,
    ) -> Result<Arc<Report>, Failure> {
        let request = browser::request(&self.runs, conversation, browse)?;
        self.whole(call, request).await
    }
}

fn page_text(page: &PageResult, is_new: bool) -> String {
    let mut text = String::new();
    if let Some(error) = &page.error {
        section(&mut text, &format!("[Not all was done: {}]", error.message));
    }
    let status = page.status.map(|status| format!(", HTTP status {status}")).unwrap_or_default();
    section(&mut text, &shorten(&format!("[{} ({}{status})]", page.title, page.url), LIST_BYTES_MAX, left_out));
    section(&mut text, &shorten(&page.text, OUTPUT_BYTES_MAX, left_out));
    if page.text_truncated {
        section(&mut text, "[The text goes on.]");
    }
    let mut links = String::new();
    for link in &page.links {
        // Writing to a text does not fail.
        let _ = writeln!(links, "- {}: {}", link.text, link.url);
    }
    list(&mut text, "Links", &links, page.links_more);
    let mut controls = String::new();
    for one in &page.controls {
        let value = one.value.as_ref().map(|value| format!(" = \"{value}\"")).unwrap_or_default();
        let options = if one.options.is_empty() { String::new() } else { format!(" of {:?}", one.options) };
        let disabled = if one.disabled { " (disabled)" } else { "" };
        let _ = writeln!(controls, "- {} \"{}\"{value}{options}{disabled}: {}", one.role, one.name, one.selector);
    }
    list(&mut text, "Controls, with their selectors", &controls, page.controls_more);
    for note in &page.notes {
        section(&mut text, &format!("[{note}]"));
    }
    if !page.files.is_empty() {
        section(&mut text, "[Files in /data that this call made:]");
        for file in &page.files {
            section(&mut text, &listed(file, file.change));
        }
    }
    if is_new {
        let hint = format!("[The conversationId is {}: give it in the next call to go on here]", page.conversation_id);
        section(&mut text, &hint);
    }
    text
}

fn list(text: &mut String, name: &str, lines: &str, more: u64) {
    if lines.is_empty() && more == 0 {
        return;
    }
    section(text, &format!("[{name}:]"));
    section(text, &shorten(lines.trim_end(), LIST_BYTES_MAX, left_out));
    if more > 0 {
        section(text, &format!("[{more} more are not listed.]"));
    }
}
