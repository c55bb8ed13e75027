//! The inside of a fake sandbox whose image speaks frames: process 1, the bridge and a kernel, in one.
//!
//! A program is played as in any sandbox. A session's cells are scripts too, with steps of their own:
//!
//! | line | what happens |
//! | --- | --- |
//! | `set name value`, `get name` | a variable of the session; `get` of one that is not there is an error |
//! | `raise Name some text` | the cell ends with an error |
//! | `complain Name some text` | an error is shown, and the cell goes on |
//! | `ask some prompt` | waits for a line of input, and prints it |
//! | `shout some prompt` | the same; 2 KiB are printed right behind the prompt |
//! | `show text/html some text` | a display with that form and `text/plain` |
//! | `figure` | a display with a small picture |
//! | `display id some text`, `update id some text` | a display with that id, and its next state |
//! | `burn 2s` | so much processor time is used, in no time |
//! | `comm some text` | a message of a widget with two buffers, the text and an empty one |
//! | `idle` | an idle status, as at the end of this cell |
//! | `noidle` | no idle status follows the reply of this cell |
//! | `noreply` | this cell ends with an idle status alone |
//! | `drop BYTES` | says that so much of what was printed was left out |
//! | `stubborn` | interrupts are ignored from here on |
//! | `linger 1500ms` | an interrupted step ends so long after its interrupt, from here on |
//! | `wake` | ends once an interrupt has come and another message after it |
//! | `deaf` | nothing is read any more, as by a bridge that is stopped |
//! | `forge` | output, a reply and an idle status for a request that is not this one |
//! | `broken` | messages of this cell whose content is no JSON, nested too deeply, or of other types |
//! | `garbage` | bytes that are no message |
//! | `fail` | the bridge gives the kernel up, as for a message that is too long, and ends with status 0 |
//! | `exit 3`, `signal 9`, `oom` | the kernel ends |
//!
//! A completion of `full` is answered as by the bridge of a kernel that does not read.
//!
//! It reads and writes the frames by itself, so a mistake in the server's codec shows.

mod codec;
mod steps;

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::DuplexStream,
    sync::{mpsc, watch},
};

use self::{
    codec::{Message, frame, layout, read},
    steps::interrupted,
};
use super::{life::Actor, script};
use crate::{domain::StreamKind, ports::engine::Exit};

const CONFIG: u8 = 1;
const PROGRAM: u8 = 2;
const GO: u8 = 3;
const READY: u8 = 0x81;
const EXIT: u8 = 0x84;
/// Bytes of a frame's or a message's text that are sent at once.
const PIECE_BYTES: usize = 32 << 10;
/// Processor time of loading the interpreter, and of a cell, in milliseconds.
const LOADING_MS: u64 = 900;
const CELL_MS: u64 = 10;
/// A picture of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// Reads what the server sends: a program that is then played, or the name of a kernel.
pub(super) async fn serve(mut input: DuplexStream, actor: &mut Actor, exit: &mut Exit) {
    actor.emit_frame(READY, br#"{"protocol":2}"#).await;
    let (mut loading, mut is_warm) = (actor.quirks.loading.take(), false);
    let (mut config, mut program, mut oom_kills) = (Value::Null, Vec::new(), 0);
    let mut used_ms = None;
    loop {
        let mut next = Box::pin(frame(&mut input));
        let received = loop {
            tokio::select! {
                biased;
                () = loaded(loading.as_mut()), if !is_warm => {
                    is_warm = true;
                    let ready = json!({"protocol": 2, "warm": true, "memoryBytes": actor.quirks.memory_bytes});
                    actor.emit_frame(READY, ready.to_string().as_bytes()).await;
                }
                received = &mut next => break received,
            }
        };
        let Some((kind, payload)) = received else { return };
        match kind {
            CONFIG => config = serde_json::from_slice(&payload).unwrap_or_default(),
            PROGRAM => program.extend_from_slice(&payload),
            GO => break,
            _ => {}
        }
    }
    if config["kernel"].is_string() {
        let (messages, received) = mpsc::channel(64);
        let reading = tokio::spawn(read(input, messages));
        let mut kernel = Kernel {
            actor,
            received,
            later: VecDeque::new(),
            variables: HashMap::new(),
            cells: 0,
            cpu_ms: LOADING_MS,
            oom_kills: 0,
            signs: Signs::Both,
            stubborn: false,
            lingers: Duration::ZERO,
            failed: false,
        };
        kernel.run(exit).await;
        if kernel.failed {
            kernel.send("bridge", "failed", &json!({}), &json!({"message": "it gives up"})).await;
        }
        (oom_kills, used_ms) = (kernel.oom_kills, Some(kernel.cpu_ms));
        reading.abort();
    } else {
        actor.perform(&String::from_utf8_lossy(&program), exit).await;
    }
    let oom = oom_kills + u64::from(exit.oom_killed);
    let end = match exit.status {
        status @ 129..=192 => json!({"signal": status - 128, "oomKills": oom, "cpuMs": used_ms}),
        status => json!({"status": status, "oomKills": oom, "cpuMs": used_ms}),
    };
    actor.emit_frame(EXIT, end.to_string().as_bytes()).await;
}

/// Returns when everything is loaded.
async fn loaded(loading: Option<&mut watch::Receiver<bool>>) {
    if let Some(loading) = loading {
        drop(loading.wait_for(|is_loading| !is_loading).await);
    }
}

struct Kernel<'a> {
    actor: &'a mut Actor,
    received: mpsc::Receiver<Message>,
    /// Cells that came while another one ran.
    later: VecDeque<Message>,
    variables: HashMap<String, String>,
    cells: u64,
    /// Since the sandbox was started.
    cpu_ms: u64,
    /// Processes of earlier cells included.
    oom_kills: u64,
    /// With what the cell that runs ends.
    signs: Signs,
    stubborn: bool,
    /// How long after its interrupt a step ends.
    lingers: Duration,
    /// The bridge ends, and says so.
    failed: bool,
}

/// The messages that end a cell.
#[derive(PartialEq, Eq)]
enum Signs {
    Both,
    Reply,
    Idle,
}

/// How a cell ended.
enum CellEnd {
    Ok,
    Error(String, String),
    /// With the kernel.
    Dead,
}

impl Kernel<'_> {
    async fn run(&mut self, exit: &mut Exit) {
        if self.actor.quirks.is_mute {
            return pending().await;
        }
        let info = json!({"status": "ok", "implementation": "fake", "language_info": {"name": "script"}});
        let mut ready = info.clone();
        ready["cpuMs"] = self.cpu_ms.into();
        self.send("bridge", "ready", &json!({}), &ready).await;
        while let Some(Message { channel, header, content }) = self.next_between().await {
            let kind = header["msg_type"].as_str().unwrap_or_default();
            let answer = match kind {
                "execute_request" => {
                    if self.cell(&header, &content, exit).await {
                        return;
                    }
                    continue;
                }
                "complete_request" if content["code"] == "full" => json!({"status": "error", "ename": "QueueFull"}),
                "complete_request" => {
                    json!({"status": "ok", "matches": self.variables.keys().collect::<Vec<_>>(),
                    "cursor_start": 0, "cursor_end": content["cursor_pos"], "metadata": {}})
                }
                "inspect_request" => {
                    json!({"status": "ok", "found": true, "data": {"text/plain": content["code"]}, "metadata": {}})
                }
                "kernel_info_request" => info.clone(),
                _ => {
                    self.tell(&header).await;
                    continue;
                }
            };
            self.send(&channel, &kind.replace("request", "reply"), &header, &answer).await;
        }
    }

    /// The next message; none at the end of the input, and for one that is too long.
    async fn next(&mut self) -> Option<Message> {
        let message = self.received.recv().await?;
        self.failed |= message.channel.is_empty();
        (!self.failed).then_some(message)
    }

    /// The next one between cells: first what came while one ran.
    async fn next_between(&mut self) -> Option<Message> {
        match self.later.pop_front() {
            Some(message) => Some(message),
            None => self.next().await,
        }
    }

    /// Takes a message that comes while a cell runs.
    async fn meanwhile(&mut self, message: Message) {
        if message.header["msg_type"] == "execute_request" {
            self.later.push_back(message);
        } else {
            self.tell(&message.header).await;
        }
    }

    async fn send(&mut self, channel: &str, kind: &str, parent: &Value, content: &Value) {
        let header = json!({"msg_id": format!("fake-{kind}"), "msg_type": kind, "session": "fake"});
        let message = layout(channel, &header, parent, content, &[]);
        self.actor.emit(StreamKind::Stdout, message).await;
    }

    /// Reports what was used, also while a cell runs, if it is asked for that.
    async fn tell(&mut self, asked: &Value) {
        if asked["msg_type"] == "figures" {
            let used = json!({"cpuMs": self.cpu_ms, "memoryBytes": 2_000_000, "memoryPeakBytes": 3_000_000,
                "oomKills": self.oom_kills});
            self.send("bridge", "figures", asked, &used).await;
        }
    }

    async fn print(&mut self, parent: &Value, name: &str, text: &[u8]) {
        for piece in text.chunks(PIECE_BYTES) {
            let content = json!({"name": name, "text": String::from_utf8_lossy(piece)});
            self.send("iopub", "stream", parent, &content).await;
        }
    }

    /// Plays a cell; whether the kernel ended in it.
    async fn cell(&mut self, parent: &Value, request: &Value, exit: &mut Exit) -> bool {
        self.cells += 1;
        self.cpu_ms += CELL_MS;
        self.signs = Signs::Both;
        self.send("iopub", "status", parent, &json!({"execution_state": "busy"})).await;
        let mut end = CellEnd::Ok;
        for line in request["code"].as_str().unwrap_or_default().lines() {
            end = self.step(parent, line.trim(), exit).await;
            if !matches!(end, CellEnd::Ok) {
                break;
            }
        }
        let reply = match end {
            CellEnd::Ok => json!({"status": "ok", "execution_count": self.cells, "payload": []}),
            CellEnd::Dead => return true,
            CellEnd::Error(name, value) => {
                let mut reply = self.show_error(parent, &name, &value).await;
                reply["status"] = "error".into();
                reply
            }
        };
        if self.signs != Signs::Idle {
            self.send("shell", "execute_reply", parent, &reply).await;
        }
        if self.signs != Signs::Reply {
            self.send("iopub", "status", parent, &json!({"execution_state": "idle"})).await;
        }
        false
    }

    /// Shows an error; its content.
    async fn show_error(&mut self, parent: &Value, name: &str, value: &str) -> Value {
        let traceback = [format!("\u{1b}[31mTraceback\u{1b}[0m: {name}: {value}")];
        let error = json!({"ename": name, "evalue": value, "traceback": traceback});
        self.send("iopub", "error", parent, &error).await;
        error
    }

    async fn step(&mut self, parent: &Value, line: &str, exit: &mut Exit) -> CellEnd {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let count = self.cells;
        match word {
            "set" => drop(self.variables.insert(name.to_owned(), value.to_owned())),
            "get" => {
                let Some(value) = self.variables.get(name) else {
                    return CellEnd::Error("NameError".to_owned(), format!("name '{name}' is not defined"));
                };
                let content = json!({"data": {"text/plain": value}, "metadata": {}, "execution_count": count});
                self.send("iopub", "execute_result", parent, &content).await;
            }
            "complain" => drop(self.show_error(parent, name, value).await),
            "raise" => return CellEnd::Error(name.to_owned(), value.to_owned()),
            "show" => {
                let content = json!({"data": {name: value, "text/plain": "<object>"}, "metadata": {}});
                self.send("iopub", "display_data", parent, &content).await;
            }
            "figure" => {
                let data = json!({"image/png": PNG, "text/plain": "<Figure>"});
                self.send("iopub", "display_data", parent, &json!({"data": data, "metadata": {}})).await;
            }
            "display" | "update" => {
                let kind = if word == "display" { "display_data" } else { "update_display_data" };
                let transient = json!({"display_id": name});
                let content = json!({"data": {"text/plain": value}, "metadata": {}, "transient": transient});
                self.send("iopub", kind, parent, &content).await;
            }
            "burn" => {
                let burnt = script::duration(rest).unwrap_or_default();
                self.cpu_ms += u64::try_from(burnt.as_millis()).unwrap_or_default();
            }
            "idle" => self.send("iopub", "status", parent, &json!({"execution_state": "idle"})).await,
            "noidle" => self.signs = Signs::Reply,
            "noreply" => self.signs = Signs::Idle,
            "drop" => {
                let printed = rest.parse::<u64>().unwrap_or_default();
                let content = json!({"messages": 0, "bytes": 0, "printedBytes": printed});
                self.send("bridge", "dropped", &json!({}), &content).await;
            }
            "comm" => {
                let header = json!({"msg_id": "fake-comm", "msg_type": "comm_msg", "session": "fake"});
                let message = layout("iopub", &header, parent, &json!({"comm_id": "c", "data": {}}), &[rest, ""]);
                self.actor.emit(StreamKind::Stdout, message).await;
            }
            "stubborn" => self.stubborn = true,
            "linger" => self.lingers = script::duration(rest).unwrap_or_default(),
            "fail" => {
                self.failed = true;
                return CellEnd::Dead;
            }
            "deaf" => pending().await,
            "wake" => {
                while let Some(message) = self.next().await {
                    if message.header["msg_type"] == "interrupt" {
                        // The next message wakes it.
                        return self.next().await.map_or(CellEnd::Dead, |_| interrupted());
                    }
                    self.meanwhile(message).await;
                }
                return CellEnd::Dead;
            }
            "broken" => self.break_contents(parent).await,
            "garbage" => self.actor.emit(StreamKind::Stdout, vec![0xff; 64]).await,
            "forge" => {
                let other = json!({"msg_id": "another", "msg_type": "execute_request", "session": "another"});
                self.print(&other, "stdout", b"of another cell\n").await;
                self.send("shell", "execute_reply", &other, &json!({"status": "error"})).await;
                self.send("iopub", "status", &other, &json!({"execution_state": "idle"})).await;
            }
            "ask" | "shout" => {
                self.send("stdin", "input_request", parent, &json!({"prompt": rest, "password": false})).await;
                if word == "shout" {
                    self.print(parent, "stdout", &[b'x'; 2 << 10]).await;
                }
                loop {
                    match self.next().await {
                        Some(message) if message.header["msg_type"] == "input_reply" => {
                            let text = format!("{}\n", message.content["value"].as_str().unwrap_or_default());
                            self.print(parent, "stdout", text.as_bytes()).await;
                            break;
                        }
                        Some(message) if message.header["msg_type"] == "interrupt" => return interrupted(),
                        Some(message) => self.meanwhile(message).await,
                        None => return CellEnd::Dead,
                    }
                }
            }
            _ => return self.usual(parent, line, exit).await,
        }
        CellEnd::Ok
    }
}
