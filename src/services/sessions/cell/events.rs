//! The output of one cell: its kernel's messages become events.
//!
//! Displays, errors and requests for input become events at once up to a number; those of the others that a reader
//! needs are kept for the end of the cell. The rest is counted, and a line reports the count.

use anstream::adapter::strip_str;
use bytes::Bytes;
use serde_json::Value;

use super::{
    super::{
        display::Bundle,
        message::{Channel, Header, KernelMessage},
    },
    Execution,
};
use crate::domain::{DisplayKind, EventKind, StreamKind, event::Display};

/// Displays and clears that become events at once, and as many requests for input. Their answers are events too.
const EVENTS_MAX: usize = 500;
/// What these displays, tracebacks and the prompts of later requests may hold together, in bytes.
const EVENTS_BYTES_MAX: usize = 1 << 20;
/// Later displays whose last state is kept, and what they may hold together, in bytes.
const KEPT_MAX: usize = 100;
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Errors that become events at once. Of later ones the last is kept.
const ERRORS_MAX: usize = 100;
/// Later requests for input that become events, since they wait. One more is the end of the input.
const WAITING_MAX: usize = 10_000;
/// Files that one cell shows, and their bytes together.
const SHOWN_MAX: usize = 20;
const SHOWN_BYTES_MAX: usize = 16 << 20;
const NAME_CHARS_MAX: usize = 1000;
const PROMPT_CHARS_MAX: usize = 4096;

impl Execution<'_> {
    /// Takes a message of the kernel or the bridge.
    pub(super) fn record(&mut self, message: &KernelMessage) {
        let Header { msg_type, .. } = message.read_header();
        if message.channel == Channel::Bridge {
            match msg_type.as_str() {
                "figures" => {
                    let usage = message.read_content();
                    let oom_killed = self.oom_kills.have_grown(&usage);
                    self.figures = Some((usage, oom_killed));
                }
                "dropped" => self.dropped(&message.read_content()),
                _ => {}
            }
            return;
        }
        self.progress.observe(message);
        if message.read_parent().msg_id != self.request {
            return;
        }
        let content = message.read_content();
        match (message.channel, msg_type.as_str()) {
            (Channel::Iopub, "stream") => {
                let is_error = content["name"] == "stderr";
                let stream = if is_error { StreamKind::Stderr } else { StreamKind::Stdout };
                self.text(stream, content["text"].as_str().unwrap_or_default());
            }
            (Channel::Iopub, "display_data") => self.display(DisplayKind::Display, &content),
            (Channel::Iopub, "execute_result") => self.display(DisplayKind::Result, &content),
            (Channel::Iopub, "update_display_data") => self.display(DisplayKind::Update, &content),
            (Channel::Iopub, "error") => self.error(&content),
            (Channel::Iopub, "clear_output") => {
                let event = self.events.clear(content["wait"].as_bool().unwrap_or_default());
                self.emit(event);
            }
            (Channel::Iopub, "status") if content["execution_state"] == "idle" => self.progress.idle(),
            (Channel::Stdin, "input_request") => {
                let prompt = content["prompt"].as_str().unwrap_or_default().chars().take(PROMPT_CHARS_MAX).collect();
                let event = self.events.request(prompt, content["password"] == true);
                self.emit(event);
                self.asked = Some(message.header.clone());
            }
            (Channel::Shell, "execute_reply") => {
                if content["status"] == "error" && !self.has_error {
                    self.error(&content);
                }
                for page in content["payload"].as_array().into_iter().flatten().take(SHOWN_MAX) {
                    if let Some(text) = page["data"]["text/plain"].as_str() {
                        self.text(StreamKind::Stdout, text);
                    }
                }
                self.progress.reply(&content);
            }
            _ => {}
        }
    }

    pub(super) fn emit(&mut self, event: Option<EventKind>) {
        event.into_iter().for_each(&mut *self.sink);
    }

    fn text(&mut self, stream: StreamKind, text: &str) {
        let fits = usize::try_from(self.output_left).unwrap_or(usize::MAX).min(text.len());
        self.output_left -= fits as u64;
        self.output_over |= fits < text.len();
        if fits > 0 {
            (self.sink)(EventKind::Output(stream, Bytes::copy_from_slice(&text.as_bytes()[..fits])));
        }
    }

    /// Takes what the bridge says that it left out. What was printed of that counts as what comes does.
    fn dropped(&mut self, note: &Value) {
        // A text that was cut has a mark.
        if note["bytes"] != 0 {
            self.text(StreamKind::Stderr, "\n[Some output was lost: it came too fast.]\n");
        }
        let printed = note["printedBytes"].as_u64().unwrap_or_default();
        self.output_over |= printed > self.output_left;
        self.output_left = self.output_left.saturating_sub(printed);
    }

    fn line(&mut self, stream: StreamKind, mut text: String) {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        self.text(stream, &text);
    }

    fn display(&mut self, kind: DisplayKind, content: &Value) {
        let Some(bundle) = Bundle::of(content) else { return };
        if kind != DisplayKind::Update {
            let file = bundle.file();
            if let Some(text) = bundle.terminal_text(file.as_ref()) {
                self.line(StreamKind::Stdout, text);
            }
            if let Some(file) = file {
                let bytes = self.display_files.iter().map(|file| file.bytes.len()).sum::<usize>() + file.bytes.len();
                if self.display_files.len() < SHOWN_MAX && bytes <= SHOWN_BYTES_MAX {
                    self.display_files.push(file);
                }
            }
        }
        let event = self.events.display(bundle.display(kind, content));
        self.emit(event);
    }

    fn error(&mut self, content: &Value) {
        let short = |name: &str| content[name].as_str().unwrap_or_default().chars().take(NAME_CHARS_MAX).collect();
        let (name, value): (String, String) = (short("ename"), short("evalue"));
        let lines = content["traceback"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut traceback = lines.collect::<Vec<_>>().join("\n");
        // Models and logs read it; colours are for people.
        let plain = match strip_str(&traceback).to_string() {
            plain if plain.is_empty() && !name.is_empty() => format!("{name}: {value}"),
            plain => plain,
        };
        if !self.events.takes(traceback.len()) {
            traceback.clear();
        }
        // First, so that a reader who shows it with its colours knows that its lines follow as output.
        let event = self.events.error(EventKind::Error { name, value, traceback });
        self.emit(event);
        if !plain.is_empty() {
            self.line(StreamKind::Stderr, plain);
        }
        self.has_error = true;
    }
}

#[derive(Default)]
pub(super) struct Events {
    shown: usize,
    bytes: usize,
    errors: usize,
    asked: usize,
    /// The last state of each later display; of those without an id the last one.
    kept: Vec<Display>,
    error: Option<EventKind>,
    /// The prompt of a later request for input, and whether what is typed is secret.
    request: Option<(String, bool)>,
    /// The request that is not answered became an event.
    is_told: bool,
    waited: usize,
    left_out: u64,
}

impl Events {
    /// Takes so many bytes, if there is room for them.
    pub(super) fn takes(&mut self, bytes: usize) -> bool {
        let fits = self.bytes + bytes <= EVENTS_BYTES_MAX;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    pub(super) fn display(&mut self, display: Display) -> Option<EventKind> {
        let is_kept = display.display_id.is_some() && self.position(&display).is_some();
        if !is_kept && self.shown < EVENTS_MAX && self.takes(display.bytes()) {
            self.shown += 1;
            return Some(EventKind::Display(Box::new(display)));
        }
        self.keep(display);
        None
    }

    fn position(&self, display: &Display) -> Option<usize> {
        self.kept.iter().position(|kept| kept.display_id == display.display_id)
    }

    fn keep(&mut self, mut display: Display) {
        let earlier = self.position(&display);
        let freed = earlier.map_or(0, |at| self.kept[at].bytes());
        let bytes = self.kept.iter().map(Display::bytes).sum::<usize>() - freed + display.bytes();
        if bytes > KEPT_BYTES_MAX || earlier.is_none() && self.kept.len() >= KEPT_MAX {
            self.left_out += 1;
            return;
        }
        if let Some(earlier) = earlier.map(|at| self.kept.remove(at)) {
            // Its readers have not seen what it updates.
            display.kind = if display.kind == DisplayKind::Update { earlier.kind } else { display.kind };
            self.left_out += u64::from(display.display_id.is_none());
        }
        self.kept.push(display);
    }

    pub(super) fn clear(&mut self, wait: bool) -> Option<EventKind> {
        if !wait {
            self.kept.clear();
        }
        let is_told = self.shown < EVENTS_MAX;
        self.shown += usize::from(is_told);
        self.left_out += u64::from(!is_told);
        is_told.then_some(EventKind::Clear { wait })
    }

    pub(super) fn error(&mut self, error: EventKind) -> Option<EventKind> {
        self.errors += 1;
        if self.errors <= ERRORS_MAX {
            return Some(error);
        }
        self.left_out += u64::from(self.error.replace(error).is_some());
        None
    }

    /// A later request becomes an event only when it waits, so that a long input costs no events.
    pub(super) fn request(&mut self, prompt: String, password: bool) -> Option<EventKind> {
        self.asked += 1;
        self.is_told = self.asked <= EVENTS_MAX;
        if self.is_told {
            return Some(EventKind::InputRequest { prompt, password });
        }
        self.request = Some((prompt, password));
        None
    }

    /// The request was answered, which readers of the request are told.
    pub(super) fn answered(&mut self) -> Option<EventKind> {
        self.request = None;
        std::mem::take(&mut self.is_told).then_some(EventKind::InputAnswered)
    }

    /// Whether a request becomes an event if it waits.
    pub(super) fn has_request(&self) -> bool {
        self.request.is_some()
    }

    /// The request that waits; nothing when there were too many.
    pub(super) fn take_request(&mut self) -> Option<EventKind> {
        let (mut prompt, password) = self.request.take().filter(|_| self.waited < WAITING_MAX)?;
        self.waited += 1;
        self.is_told = true;
        if !self.takes(prompt.len()) {
            prompt.clear();
        }
        Some(EventKind::InputRequest { prompt, password })
    }

    /// What becomes events when the cell has ended.
    pub(super) fn end(self) -> impl Iterator<Item = EventKind> {
        let note = (self.left_out > 0).then(|| {
            let note = format!(
                "\n[Events left out: {}. A cell passes on {EVENTS_MAX} displays, at most 1 MiB of them, and \
                 {ERRORS_MAX} errors; of the others the last.]\n",
                self.left_out
            );
            EventKind::Output(StreamKind::Stderr, note.into())
        });
        let kept = self.kept.into_iter().map(|display| EventKind::Display(Box::new(display)));
        kept.chain(self.error).chain(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn display(kind: DisplayKind, id: Option<usize>, form: String) -> Display {
        let display_id = id.map(|id| id.to_string());
        Display { kind, data: vec![("text/plain".to_owned(), form)], display_id }
    }

    fn full() -> Events {
        let mut events = Events::default();
        for n in 0..EVENTS_MAX {
            assert!(events.display(display(DisplayKind::Display, None, n.to_string())).is_some());
        }
        events
    }

    /// What is passed on at the end: displays as their kinds and forms, and the note.
    fn ended(events: Events) -> (Vec<(DisplayKind, String)>, Option<String>) {
        let (mut displays, mut note) = (Vec::new(), None);
        for event in events.end() {
            match event {
                EventKind::Display(display) => displays.push((display.kind, display.data[0].1.clone())),
                EventKind::Output(StreamKind::Stderr, text) => {
                    note = Some(String::from_utf8_lossy(&text).into_owned());
                }
                _ => {}
            }
        }
        (displays, note)
    }

    #[test]
    fn the_last_state_of_each_display_is_kept_and_what_is_left_out_is_counted() {
        let (show, update, result) = (DisplayKind::Display, DisplayKind::Update, DisplayKind::Result);
        let mut events = full();
        for n in 0..1000 {
            assert!(events.display(display(update, Some(1), n.to_string())).is_none());
        }
        assert!(events.display(display(show, Some(2), "new".to_owned())).is_none());
        assert!(events.display(display(update, Some(2), "newer".to_owned())).is_none());
        let expected = |last: &[(DisplayKind, &str)]| -> Vec<_> {
            last.iter().map(|(kind, form)| (*kind, (*form).to_owned())).collect()
        };
        let (displays, note) = ended(events);
        assert_eq!((displays, note), (expected(&[(update, "999"), (show, "newer")]), None), "nothing is missing");

        let mut events = full();
        for n in 0..3 {
            events.display(display(show, None, n.to_string()));
        }
        assert!(events.clear(true).is_none());
        events.display(display(result, None, "value".to_owned()));
        let (displays, note) = ended(events);
        assert_eq!(displays, expected(&[(result, "value")]));
        assert!(note.is_some_and(|note| note.contains("left out: 4.")), "three displays and a clear");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut events = full();
        for id in 0..1000 {
            events.display(display(DisplayKind::Update, Some(id), "x".repeat(100_000)));
            events.display(display(DisplayKind::Update, Some(id), "x".repeat(20_000)));
        }
        let bytes: usize = events.kept.iter().map(Display::bytes).sum();
        assert!(events.kept.len() <= KEPT_MAX && bytes <= KEPT_BYTES_MAX, "{bytes}");
        assert!(events.left_out > 900);

        let error = |n: usize| EventKind::Error { name: n.to_string(), value: String::new(), traceback: String::new() };
        let reported = (0..1000).filter(|n| events.error(error(*n)).is_some()).count();
        let last =
            events.end().find_map(|event| if let EventKind::Error { name, .. } = event { Some(name) } else { None });
        assert_eq!((reported, last.as_deref()), (ERRORS_MAX, Some("999")));

        let mut events = full();
        let reported = (0..=EVENTS_MAX).filter(|_| events.request("x".repeat(4096), false).is_some()).count();
        assert!(reported == EVENTS_MAX && events.has_request());
        let mut waited = 0;
        while events.take_request().is_some() {
            waited += 1;
            events.request("x".repeat(4096), false);
        }
        assert!(waited == WAITING_MAX && events.bytes <= EVENTS_BYTES_MAX, "{waited}");
    }
}
