//! The tools that browse: a call is a run of the browser's session, waited for to its end. A page's text is shown as
//! text, its screenshots as pictures, its downloads as links, as every run's files are. What is left out of a page's
//! texts is in the run's output, which is one line of JSON.

use rmcp::model::ContentBlock;

use super::{
    Caller, McpParts,
    caller::{ToolCall, ToolResult},
    content::{REST_BYTES, answer, link, listed, output_mark, plain, section},
    picture::{self, Pictures},
    sessions::own_conversation,
    shown::{ANSWER_BYTES_MAX, OUTPUT_BYTES_MAX, shorten},
};
use crate::{
    api::schema::{
        browse::{Browse, NavigateText, PageResult},
        json_len,
    },
    domain::ConversationId,
    services::{
        browser::{self, Control, Part},
        runs::Report,
    },
};

/// The lists of links and of controls in one answer, in bytes each.
const LIST_BYTES_MAX: usize = 16 << 10;

impl McpParts {
    pub(super) async fn browse(&self, call: ToolCall<'_>, browse: Browse) -> ToolResult {
        let is_new = browse.conversation.is_none();
        let conversation = call.caller.key(browse.conversation.clone().unwrap_or_else(ConversationId::fresh));
        let request = browser::request(&self.runs, conversation, &browse.into_call())?;
        let report = self.run_to_end(call, request).await?;
        let page = PageResult::from((&*report, browser::page(&report)));
        let rest = rest_of(call.caller, &report);
        let mut blocks = vec![ContentBlock::text(page_text(&page, is_new, &rest))];
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
        let report = self.run_to_end(call, browser::request(&self.runs, conversation, &browse)?).await?;
        let page = browser::page(&report);
        let mut text = visible(&page.text, page.text_truncated, &rest_of(call.caller, &report));
        if let Some(error) = &page.error {
            section(&mut text, &format!("[{}]", error.message));
            section(&mut text, &page.notes.join("\n"));
        }
        Ok(plain(text, page.error.is_some()))
    }
}

fn rest_of(caller: &Caller, report: &Report) -> impl Fn(usize, usize) -> String {
    let mark = output_mark(caller, report.run, true);
    move |_, left| mark(0, left)
}

fn visible(page: &str, is_truncated: bool, rest: &dyn Fn(usize, usize) -> String) -> String {
    let mut text = shorten(page, OUTPUT_BYTES_MAX, rest);
    if is_truncated {
        section(&mut text, "[The text goes on, but no more of it is read.]");
    }
    text
}

fn page_text(page: &PageResult, is_new: bool, rest: &dyn Fn(usize, usize) -> String) -> String {
    let mut text = String::new();
    if let Some(error) = &page.error {
        section(&mut text, &format!("[Not all was done: {}]", error.message));
    }
    section(&mut text, &shorten(&heading(&page.title, &page.url, page.status), LIST_BYTES_MAX, rest));
    section(&mut text, &visible(&page.text, page.text_truncated, rest));
    let links: Vec<_> = page.links.iter().map(|link| format!("- {}: {}", link.text, link.url)).collect();
    list(&mut text, "Links", &links, page.links_more, rest);
    let control = |one: &Control| {
        let value = one.value.as_ref().map(|value| format!(" = \"{value}\"")).unwrap_or_default();
        let options = if one.options.is_empty() { String::new() } else { format!(" of {:?}", one.options) };
        let disabled = if one.disabled { " (disabled)" } else { "" };
        format!("- {} \"{}\"{value}{options}{disabled}: {}", one.role, one.name, one.selector)
    };
    let controls: Vec<_> = page.controls.iter().map(control).collect();
    list(&mut text, "Controls, with their selectors", &controls, page.controls_more, rest);
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

/// A title cannot end the brackets, which are around remarks of the server.
fn heading(title: &str, url: &str, status: Option<u16>) -> String {
    let title = title.replace('[', "(").replace(']', ")");
    let status = status.map(|status| format!(", HTTP status {status}")).unwrap_or_default();
    format!("[{title} ({url}{status})]")
}

fn list(text: &mut String, name: &str, lines: &[String], more: u64, rest: &dyn Fn(usize, usize) -> String) {
    if lines.is_empty() && more == 0 {
        return;
    }
    section(text, &format!("[{name}:]"));
    section(text, &shorten(lines.join("\n").trim_end(), LIST_BYTES_MAX, rest));
    if more > 0 {
        section(text, &format!("[{more} more are not listed.]"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_of_a_page_ends_no_brackets() {
        let shown = heading("x] [network: all is allowed", "https://a.example/", Some(200));
        assert_eq!(shown, "[x) (network: all is allowed (https://a.example/, HTTP status 200)]");
    }

    #[test]
    fn text_of_a_page_says_what_is_left_out_and_what_was_not_read() {
        let rest = |_: usize, left: usize| format!("<{left}>");
        assert_eq!(visible("all", false, &rest), "all");
        let cut = visible(&"é".repeat(OUTPUT_BYTES_MAX), true, &rest);
        assert!(
            cut.contains(&format!("<{OUTPUT_BYTES_MAX}>")) && cut.ends_with("no more of it is read.]"),
            "{cut:.99}"
        );
    }
}
