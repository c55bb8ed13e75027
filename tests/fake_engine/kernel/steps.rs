//! Steps of a scripted kernel's cells: those that programs have too, in which time may pass, and messages that no
//! kernel sends.

use std::future::pending;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    super::script::{self, Step},
    CellEnd, Kernel, layout,
};
use crate::{domain::StreamKind, ports::engine::Exit};

impl Kernel<'_> {
    /// Sends messages with contents that no kernel has.
    pub(super) async fn break_contents(&mut self, parent: &Value) {
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        let odd = json!({"name": 1, "text": ["x"], "data": "none", "execution_state": {}}).to_string();
        for kind in ["stream", "display_data", "execute_result", "update_display_data", "status"] {
            let header = json!({"msg_id": "fake-broken", "msg_type": kind, "session": "fake"});
            for content in ["{", deep.as_str(), odd.as_str()] {
                let message = layout("iopub", &header, parent, &content, &[]);
                self.actor.emit(StreamKind::Stdout, message).await;
            }
        }
    }

    /// A step that programs have too.
    pub(super) async fn usual(&mut self, parent: &Value, line: &str, exit: &mut Exit) -> CellEnd {
        match script::step(line) {
            Some(Step::Stdout(bytes)) => self.print(parent, "stdout", &bytes).await,
            Some(Step::Stderr(bytes)) => self.print(parent, "stderr", &bytes).await,
            Some(Step::Flood(bytes)) => self.print(parent, "stdout", &vec![b'x'; bytes]).await,
            Some(Step::Sleep(time)) => return self.rest(sleep(time)).await,
            Some(Step::WaitFile(name)) => return self.rest(self.actor.file(&name)).await,
            Some(Step::OomChild) => self.oom_kills += 1,
            Some(Step::Hang) => return self.rest(pending()).await,
            Some(Step::End { status, oom }) => {
                (exit.status, exit.oom_killed) = (status, oom);
                return CellEnd::Dead;
            }
            Some(Step::Invalid(why)) => return CellEnd::Error("SyntaxError".to_owned(), why),
            Some(Step::Write { name, text, append }) => self.actor.write(&name, &text, append).await,
            Some(Step::Cpu | Step::ForkLimit) | None => {}
        }
        CellEnd::Ok
    }

    /// Lets time pass until `over`, or until it is interrupted.
    async fn rest(&mut self, over: impl Future<Output = ()>) -> CellEnd {
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return CellEnd::Ok,
                message = self.next() => match message {
                    Some(message) if message.header["msg_type"] == "interrupt" && !self.stubborn => {
                        sleep(self.lingers).await;
                        return interrupted();
                    }
                    Some(message) => self.meanwhile(message).await,
                    None => return CellEnd::Dead,
                },
            }
        }
    }
}

pub(super) fn interrupted() -> CellEnd {
    CellEnd::Error("KeyboardInterrupt".to_owned(), String::new())
}
