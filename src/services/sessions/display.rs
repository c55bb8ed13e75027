//! What a cell shows: a mime bundle of its kernel, made into text for readers and files for the rest. Knows no surface.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Map, Value};

use crate::domain::{DisplayKind, event::Display};

/// What is kept of the forms of one display, in bytes. Its pictures are files as well.
const DISPLAY_BYTES_MAX: usize = 256 << 10;
const TYPES_MAX: usize = 16;
const TYPE_CHARS_MAX: usize = 100;
const DISPLAY_ID_CHARS_MAX: usize = 200;

const PLAIN: &str = "text/plain";
const MARKDOWN: &str = "text/markdown";
const HTML: &str = "text/html";
const SVG: &str = "image/svg+xml";
const PLOTLY: &str = "application/vnd.plotly.v1+json";

/// A picture or a page that a cell shows, to be stored as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::services) struct DisplayFile {
    /// The extension of its file's name.
    pub extension: &'static str,
    pub bytes: Bytes,
}

/// A mime bundle, read.
#[derive(Debug)]
pub(super) struct Bundle<'a>(&'a Map<String, Value>);

impl<'a> Bundle<'a> {
    /// The forms in the content of a message.
    pub(super) fn of(content: &'a Value) -> Option<Self> {
        content["data"].as_object().map(Self)
    }

    fn text(&self, media_type: &str) -> Option<String> {
        match self.0.get(media_type)? {
            Value::String(text) => Some(text.clone()),
            // The notebook format's lists of lines.
            Value::Array(lines) => Some(lines.iter().filter_map(Value::as_str).collect()),
            _ => None,
        }
    }

    /// What a terminal shows of it. A picture is announced by its `file`, so its name in the program's memory says
    /// nothing more.
    pub(super) fn terminal_text(&self, file: Option<&DisplayFile>) -> Option<String> {
        let is_picture = file.is_some();
        let text = self.text(MARKDOWN).or_else(|| self.text(PLAIN))?;
        if text.is_empty() || is_picture && is_repr(&text) { None } else { Some(text) }
    }

    /// What is stored as a file: a picture, or a page that has no form as text.
    pub(super) fn file(&self) -> Option<DisplayFile> {
        let binary = [
            ("image/png", "png"),
            ("image/jpeg", "jpg"),
            ("image/gif", "gif"),
            ("image/webp", "webp"),
            ("application/pdf", "pdf"),
        ];
        for (media_type, extension) in binary {
            if let Some(text) = self.text(media_type) {
                let digits: String = text.split_ascii_whitespace().collect();
                let bytes = BASE64_STANDARD.decode(digits).ok()?;
                return Some(DisplayFile { extension, bytes: bytes.into() });
            }
        }
        if let Some(svg) = self.text(SVG) {
            return Some(DisplayFile { extension: "svg", bytes: svg.into() });
        }
        let only_page = self.0.contains_key(PLOTLY) || self.text(PLAIN).is_none_or(|text| is_repr(&text));
        let html = self.text(HTML).filter(|_| only_page)?;
        Some(DisplayFile { extension: "html", bytes: html.into() })
    }

    /// The event: every form, as far as there is room.
    pub(super) fn display(&self, kind: DisplayKind, content: &Value) -> Display {
        let display_id = content["transient"]["display_id"].as_str();
        let display_id = display_id.map(|id| id.chars().take(DISPLAY_ID_CHARS_MAX).collect());
        let mut display = Display { kind, data: Vec::new(), display_id };
        for (media_type, form) in self.0.iter().take(TYPES_MAX) {
            let form = match form {
                Value::String(_) | Value::Array(_) => self.text(media_type).unwrap_or_default(),
                other => other.to_string(),
            };
            let fits = display.bytes() + media_type.len() + form.len() <= DISPLAY_BYTES_MAX;
            if fits && media_type.chars().nth(TYPE_CHARS_MAX).is_none() {
                display.data.push((media_type.clone(), form));
            }
        }
        display
    }
}

/// How much a message of a cell prints or shows as text, in bytes: on standard output, and on standard error.
pub(in crate::services) fn printed_bytes(msg_type: &str, content: &Value) -> [u64; 2] {
    let length = |text: &Value| text.as_str().map_or(0, str::len) as u64;
    match msg_type {
        "stream" if content["name"] == "stderr" => [0, length(&content["text"])],
        "stream" => [length(&content["text"]), 0],
        "display_data" | "execute_result" => {
            let text = Bundle::of(content).and_then(|bundle| bundle.terminal_text(None));
            [text.map_or(0, |text| text.len() as u64), 0]
        }
        "error" => [0, content["traceback"].as_array().into_iter().flatten().map(length).sum()],
        _ => [0, 0],
    }
}

/// Whether a text is only the name of an object, such as `<Figure size 640x480 with 1 Axes>`.
fn is_repr(text: &str) -> bool {
    let text = text.trim();
    (text.starts_with('<') && text.ends_with('>') && text.lines().count() == 1) || text == "Figure()"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(data: &Value) -> (Option<String>, Option<&'static str>) {
        let content = json!({ "data": data });
        let bundle = Bundle::of(&content).expect("a bundle");
        let file = bundle.file();
        (bundle.terminal_text(file.as_ref()), file.map(|shown| shown.extension))
    }

    #[test]
    fn a_bundle_is_text_or_a_file_or_both() {
        assert_eq!(read(&json!({"text/plain": "42"})), (Some("42".to_owned()), None));
        let frame = json!({"text/plain": "   a\n0  1", "text/html": "<table>"});
        assert_eq!(read(&frame), (Some("   a\n0  1".to_owned()), None));
        let figure = json!({"text/plain": "<Figure size 1x1 with 1 Axes>", "image/png": "iVBORw0K\nGgo="});
        assert_eq!(read(&figure), (None, Some("png")));
        let plot = json!({"text/html": "<div>", PLOTLY: {}, "text/plain": "Figure()"});
        assert_eq!(read(&plot), (None, Some("html")));
        assert_eq!(read(&json!({"text/html": "<b>1</b>", "text/plain": "<object at 0x1>"})).1, Some("html"));
        assert_eq!(read(&json!({"text/markdown": "*a*", "text/plain": "a"})).0.as_deref(), Some("*a*"));
        assert_eq!(read(&json!({"image/svg+xml": "<svg/>", "text/plain": "<SVG object>"})), (None, Some("svg")));
        let photo = json!({"image/jpeg": "/9j/", "text/plain": "a photo"});
        assert_eq!(read(&photo), (Some("a photo".to_owned()), Some("jpg")));
        let widget =
            json!({"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "IntSlider()"});
        assert_eq!(read(&widget), (Some("IntSlider()".to_owned()), None));
        assert_eq!(read(&json!({"text/plain": ["a\n", "b"]})).0.as_deref(), Some("a\nb"));
        assert_eq!(read(&json!({"image/png": "no base64 at all!"})), (None, None));
        assert_eq!(read(&json!({"text/plain": {"odd": 1}})), (None, None));
    }

    #[test]
    fn a_display_is_bounded_in_bytes_types_and_names() {
        let mut data = Map::new();
        for n in 0..1000 {
            data.insert(format!("text/{n}"), json!("x".repeat(100_000)));
        }
        data.insert("t".repeat(1000), json!("x"));
        let content = json!({"data": data, "transient": {"display_id": "é".repeat(10_000)}});
        let display = Bundle::of(&content).expect("a bundle").display(DisplayKind::Display, &content);
        assert!(display.bytes() <= DISPLAY_BYTES_MAX && display.data.len() == 2, "{}", display.bytes());
    }
}
