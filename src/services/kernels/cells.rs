//! The code that clients have sent to a kernel and that has not ended, and which client sent each request.
//!
//! When a cell is over, its [`Progress`] says. What it used is known a moment after that.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use super::order::CellCode;
use crate::{
    domain::RunId,
    services::sessions::{Progress, message::KernelMessage},
};

/// How long after its end a cell waits for what it used.
const FIGURES_MAX: Duration = Duration::from_secs(5);
/// Requests whose replies are awaited. Some kinds have none, so the oldest is forgotten.
const ASKED_MAX: usize = 1024;
/// Cells that are not executed again when their request is repeated; the oldest is forgotten.
const EXECUTED_MAX: usize = 1024;

/// One execution.
pub(super) struct Cell {
    pub(super) id: String,
    pub(super) client: String,
    pub(super) header: Bytes,
    pub(super) code: CellCode,
    /// Its id as a run and when it began, once the kernel executes it.
    pub(super) begun: Option<(RunId, Instant)>,
    pub(super) progress: Progress,
    /// Bytes on standard output and on standard error.
    pub(super) printed: [u64; 2],
}

impl Cell {
    /// How long it was executed, so far or until it was over.
    pub(super) fn took(&self) -> Duration {
        let over = || self.progress.ended_at().unwrap_or_else(Instant::now);
        self.begun.map_or(Duration::ZERO, |(_, begun)| over() - begun)
    }
}

#[derive(Default)]
pub(super) struct Cells {
    /// In the order in which they were sent. Of those of several clients with one id, the kernel's messages are about
    /// the first.
    pub(super) open: Vec<Cell>,
    /// Those that are over and whose figures have not come.
    pub(super) unmeasured: VecDeque<Cell>,
    /// The bridge answers in order. So many answers are for none of these, and come before theirs.
    unclaimed: usize,
    /// Whether one has begun in the turn that is held.
    pub(super) has_begun: bool,
    /// The requests that were passed on, also to an earlier kernel.
    pub(super) executed: VecDeque<String>,
    asked: VecDeque<(String, String)>,
    /// The cell that asked for input last, and its request, until it is answered. A kernel asks for one at a time.
    question: Option<(String, KernelMessage)>,
}

impl Cells {
    pub(super) fn begin(&mut self, id: String, client: String, header: Bytes, code: CellCode) {
        self.has_begun = true;
        if self.executed.len() >= EXECUTED_MAX {
            self.executed.pop_front();
        }
        self.executed.push_back(code.request.clone());
        self.open.push(Cell { id, client, header, code, begun: None, progress: Progress::default(), printed: [0, 0] });
    }

    /// How many are not reported, and what is kept of them, in bytes.
    pub(super) fn held(&self) -> (usize, usize) {
        let held = || self.open.iter().chain(&self.unmeasured);
        (held().count(), held().map(|cell| cell.header.len() + cell.code.text.len()).sum())
    }

    /// The one that the kernel executes: it takes them in their order.
    pub(super) fn running(&mut self) -> Option<&mut Cell> {
        self.open.iter_mut().find(|cell| !cell.progress.has_replied())
    }

    fn of(&mut self, id: &str) -> Option<&mut Cell> {
        self.open.iter_mut().find(|cell| cell.id == id)
    }

    /// Notes who sent a request that is no cell.
    pub(super) fn asked(&mut self, id: String, client: String) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((id, client));
    }

    /// The client that sent a request; forgotten at the reply.
    pub(super) fn asker(&mut self, id: &str, is_reply: bool) -> Option<String> {
        if let Some(cell) = self.open.iter().find(|cell| cell.id == id) {
            return Some(cell.client.clone());
        }
        let at = self.asked.iter().rposition(|(asked, _)| asked == id)?;
        if is_reply { self.asked.remove(at).map(|(_, client)| client) } else { Some(self.asked[at].1.clone()) }
    }

    /// Counts what a cell prints, if it is one.
    pub(super) fn printed(&mut self, id: &str, bytes: impl FnOnce() -> [u64; 2]) {
        if let Some(cell) = self.of(id) {
            let [stdout_bytes, stderr_bytes] = bytes();
            cell.printed[0] += stdout_bytes;
            cell.printed[1] += stderr_bytes;
        }
    }

    /// Keeps a request for input until a client answers one.
    pub(super) fn questioned(&mut self, id: &str, question: &KernelMessage) {
        if self.open.iter().any(|cell| cell.id == id) {
            self.question = Some((id.to_owned(), question.clone()));
        }
    }

    /// The request for input of a cell.
    pub(super) fn question(&self, id: &str) -> Option<&KernelMessage> {
        self.question.as_ref().filter(|(cell, _)| cell == id).map(|(_, question)| question)
    }

    pub(super) fn answered(&mut self) {
        self.question = None;
    }

    pub(super) fn replied(&mut self, id: &str, content: impl FnOnce() -> Value) {
        if let Some(cell) = self.of(id) {
            cell.progress.reply(&content());
        }
    }

    /// The header of the cell, if it is one.
    pub(super) fn idle(&mut self, id: &str) -> Option<Bytes> {
        let cell = self.of(id)?;
        cell.progress.idle();
        Some(cell.header.clone())
    }

    /// When the next one is over, has a probe, or is not measured any more, as far as that is known.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let measured = self.unmeasured.front().and_then(|cell| Some(cell.progress.ended_at()? + FIGURES_MAX));
        self.open.iter().filter_map(|cell| cell.progress.due()).chain(measured).min()
    }

    /// The next one whose figures did not come in time. When they come, they are no other cell's.
    pub(super) fn take_late(&mut self) -> Option<Cell> {
        let now = Instant::now();
        let is_late = |cell: &mut Cell| cell.progress.ended_at().is_none_or(|over| over + FIGURES_MAX <= now);
        let late = self.unmeasured.pop_front_if(is_late);
        self.unclaimed += usize::from(late.is_some());
        late
    }

    /// The bridge is asked what was used, before the first one of a turn.
    pub(super) fn ask_before(&mut self) {
        self.unclaimed += 1;
    }

    /// The one that the next answer of the bridge is for.
    pub(super) fn take_measured(&mut self) -> Option<Cell> {
        if self.unclaimed > 0 {
            self.unclaimed -= 1;
            return None;
        }
        self.unmeasured.pop_front()
    }

    /// Ends those that are over; how many.
    pub(super) fn end(&mut self) -> usize {
        let now = Instant::now();
        let is_over = |cell: &mut Cell| cell.progress.ended_at().is_some_and(|over| over <= now);
        let over: Vec<_> = self.open.extract_if(.., is_over).collect();
        self.question = self.question.take().filter(|(id, _)| over.iter().all(|cell| cell.id != *id));
        let count = over.len();
        self.unmeasured.extend(over);
        count
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::services::sessions::message::Channel;

    #[test]
    fn one_request_for_input_is_held_until_it_is_answered_or_its_cell_ends() {
        let mut cells = Cells::default();
        for id in ["first", "second"] {
            let code = CellCode { text: String::new(), request: id.to_owned() };
            cells.begin(id.to_owned(), "client".to_owned(), Bytes::new(), code);
        }
        let header = json!({"msg_id": "question", "msg_type": "input_request"});
        let question = KernelMessage::new(Channel::Stdin, &header, &json!({"prompt": "go?"}));
        for id in ["none", "first", "second"] {
            cells.questioned(id, &question);
        }
        assert_eq!((cells.question("first"), cells.question("second")), (None, Some(&question)));
        cells.answered();
        assert_eq!(cells.question("second"), None);
        cells.questioned("second", &question);
        cells.replied("second", || json!({"status": "ok"}));
        cells.idle("second");
        assert_eq!((cells.end(), cells.question("second")), (1, None));
    }

    #[test]
    fn code_is_held_until_its_cell_is_measured() {
        let (mut cells, header) = (Cells::default(), Bytes::from_static(b"{}"));
        let code = || CellCode { text: "x".repeat(1000), request: "request".to_owned() };
        for id in ["first", "second"] {
            cells.begin(id.to_owned(), "client".to_owned(), header.clone(), code());
        }
        assert_eq!(cells.held(), (2, 2004));
        cells.replied("first", || json!({"status": "ok"}));
        cells.idle("first");
        assert_eq!((cells.end(), cells.held()), (1, (2, 2004)));
        assert!(cells.take_measured().is_some());
        assert_eq!(cells.held(), (1, 1002));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_is_no_other_cells() {
        let mut cells = Cells::default();
        let end = |cells: &mut Cells, id: &str| {
            let code = CellCode { text: String::new(), request: id.to_owned() };
            cells.begin(id.to_owned(), "client".to_owned(), Bytes::new(), code);
            cells.replied(id, || json!({"status": "ok"}));
            cells.idle(id);
            cells.end()
        };
        cells.ask_before();
        assert_eq!(end(&mut cells, "late"), 1);
        assert!(cells.take_late().is_none());
        tokio::time::sleep(FIGURES_MAX).await;
        assert_eq!(cells.take_late().expect("it is late").id, "late");
        assert_eq!(end(&mut cells, "next"), 1);
        let measured = [(); 4].map(|()| cells.take_measured().map(|cell| cell.id));
        assert_eq!(measured, [None, None, Some("next".to_owned()), None]);
    }
}
