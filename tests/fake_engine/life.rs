//! One fake sandbox: the task that plays its program, and the handle to it.
//!
//! ```text
//! Life::begin ── play: reads standard input to its end, then goes through the program's lines
//!                  ends with the program, or when `kill` is cancelled; then the exit is set, once
//! ```

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use tokio::{
    io::{AsyncReadExt, DuplexStream, duplex},
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    STALL_MAX, kernel,
    script::{self, Step},
    unavailable,
};
use crate::{
    domain::{SandboxId, StreamKind},
    ports::engine::{EngineError, Exit, Output, Sandbox, SandboxSpec, Volume},
};

/// What the pipes of a sandbox hold.
const STDIN_BYTES: usize = 64 << 10;
const OUTPUT_PIECES: usize = 8;
/// The pieces of a flood.
const PIECE_BYTES: usize = 32 << 10;
/// How often a program looks for the file that it waits for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

type Piece = Result<Output, EngineError>;

/// The faults of one sandbox.
#[expect(clippy::struct_excessive_bools, reason = "faults that are independent of each other")]
#[derive(Debug, Clone, Default)]
pub(super) struct Quirks {
    /// Its output breaks after the first piece.
    pub breaks: bool,
    /// How it ended will not be known.
    pub lost: bool,
    /// Its end is never reported.
    pub silent: bool,
    /// It reports that it is warm when this is false; at once where it is absent.
    pub loading: Option<watch::Receiver<bool>>,
    /// What it reports that it uses when it is warm.
    pub memory_bytes: u64,
    /// Its kernel never answers.
    pub is_mute: bool,
}

/// What programs that hold a text print, instead of being played; `None`: they never end.
pub(super) type Answers = Vec<(String, Option<String>)>;

/// What others can see and do.
#[derive(Debug)]
pub(super) struct Life {
    kill: CancellationToken,
    /// The program ends with the engine.
    _end: DropGuard,
    exit: watch::Receiver<Option<Exit>>,
    output: mpsc::WeakSender<Piece>,
    cpu_millis: Arc<AtomicU32>,
}

impl Life {
    pub(super) fn begin(spec: &SandboxSpec, quirks: Quirks, answers: Answers) -> (Arc<Self>, Sandbox) {
        let (stdin, input) = duplex(STDIN_BYTES);
        let (output, pieces) = mpsc::channel(OUTPUT_PIECES);
        let (ended, exit) = watch::channel(None);
        let kill = CancellationToken::new();
        let cpu_millis = Arc::new(AtomicU32::new(spec.loading_cpu_millis.unwrap_or(spec.limits.cpu_millis)));
        let (output_too, cpu_too) = (output.downgrade(), Arc::clone(&cpu_millis));
        let (end, exit_too) = (kill.clone().drop_guard(), exit.clone());
        let life = Self { kill: kill.clone(), _end: end, exit: exit_too, output: output_too, cpu_millis: cpu_too };
        // Without a folder of this host, scripts must not touch files.
        let data = match &spec.data {
            Volume::HostFolder(folder) => folder.clone(),
            Volume::Claim { .. } | Volume::Streamed { .. } => PathBuf::new(),
        };
        let framed = spec.own_init;
        let exit = exit_of(spec.id, exit, &quirks);
        let actor = Actor { data, output: Some(output), quirks, framed, cpu_millis, answers };
        tokio::spawn(run_program(input, actor, kill, ended));
        let sandbox =
            Sandbox { id: spec.id, stdin: Box::pin(stdin), output: ReceiverStream::new(pieces).boxed(), exit };
        (Arc::new(life), sandbox)
    }

    pub(super) fn limit_cpu(&self, cpu_millis: u32) {
        self.cpu_millis.store(cpu_millis, Ordering::Relaxed);
    }

    pub(super) fn is_running(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Ends it; false when a reader that is there and does not read held that up for too long.
    pub(super) async fn kill(&self) -> bool {
        let Some(output) = self.output.upgrade().filter(|_| !self.kill.is_cancelled()) else { return true };
        let free = tokio::select! {
            biased;
            _ = output.reserve() => true,
            () = output.closed() => true,
            () = sleep(STALL_MAX) => false,
        };
        self.kill.cancel();
        drop(output);
        if free {
            let _ = self.exit.clone().wait_for(Option::is_some).await;
        }
        free
    }
}

fn exit_of(
    id: SandboxId,
    mut exit: watch::Receiver<Option<Exit>>,
    quirks: &Quirks,
) -> BoxFuture<'static, Result<Exit, EngineError>> {
    let (is_silent, is_lost) = (quirks.silent, quirks.lost);
    async move {
        let known = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        if is_silent {
            std::future::pending::<()>().await;
        }
        known.filter(|_| !is_lost).ok_or(EngineError::Lost { id })
    }
    .boxed()
}

/// The environment of a program.
pub(super) struct Actor {
    data: PathBuf,
    output: Option<mpsc::Sender<Piece>>,
    pub(super) quirks: Quirks,
    /// Its image speaks frames.
    framed: bool,
    cpu_millis: Arc<AtomicU32>,
    answers: Answers,
}

async fn run_program(
    mut input: DuplexStream,
    mut actor: Actor,
    kill: CancellationToken,
    ended: watch::Sender<Option<Exit>>,
) {
    let mut exit = Exit { status: 0, oom_killed: false, process_limit_hit: false, broke_off: false };
    let program = async {
        if actor.framed {
            return kernel::serve(input, &mut actor, &mut exit).await;
        }
        let mut program = Vec::new();
        // A writer may disconnect in the middle; the part that was received is played.
        let _ = input.read_to_end(&mut program).await;
        actor.perform(&String::from_utf8_lossy(&program), &mut exit).await;
    };
    if kill.run_until_cancelled(program).await.is_none() {
        exit.status = 137;
    }
    drop(actor);
    ended.send_replace(Some(exit));
}

impl Actor {
    pub(super) async fn perform(&mut self, program: &str, exit: &mut Exit) {
        if let Some((_, answer)) = self.answers.iter().find(|(text, _)| program.contains(text)) {
            let Some(answer) = answer.clone() else { return std::future::pending().await };
            return self.emit(StreamKind::Stdout, answer.into_bytes()).await;
        }
        for line in program.lines() {
            match script::step(line) {
                None => {}
                Some(Step::Stdout(bytes)) => self.emit(StreamKind::Stdout, bytes).await,
                Some(Step::Stderr(bytes)) => self.emit(StreamKind::Stderr, bytes).await,
                Some(Step::Flood(bytes)) => self.flood(bytes).await,
                Some(Step::Write { name, text, append }) => self.write(&name, &text, append).await,
                Some(Step::Sleep(time)) => sleep(time).await,
                Some(Step::WaitFile(name)) => self.file(&name).await,
                Some(Step::Cpu) => {
                    let text = format!("{}\n", self.cpu_millis.load(Ordering::Relaxed));
                    self.emit(StreamKind::Stdout, text.into_bytes()).await;
                }
                Some(Step::Hang) => std::future::pending().await,
                Some(Step::ForkLimit) => exit.process_limit_hit = true,
                Some(Step::Invalid(why)) => {
                    exit.status = 127;
                    return self.emit(StreamKind::Stderr, why.into_bytes()).await;
                }
                Some(Step::OomChild) => exit.oom_killed = true,
                Some(Step::End { status, oom }) => {
                    exit.status = status;
                    exit.oom_killed |= oom;
                    return;
                }
            }
        }
    }

    /// Changes a file, and makes the folders in its name.
    pub(super) async fn write(&mut self, name: &str, text: &str, append: bool) {
        let path = self.data.join(name);
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let mut options = std::fs::OpenOptions::new();
        options.create(true).write(true).append(append).truncate(!append);
        let written = folder.and_then(|()| options.open(path)?.write_all(text.as_bytes()));
        if let Err(error) = written {
            self.emit(StreamKind::Stderr, format!("{error}\n").into_bytes()).await;
        }
    }

    /// Waits for a file, and removes it.
    pub(super) fn file(&self, name: &str) -> impl Future<Output = ()> + use<> {
        let path = self.data.join(name);
        async move {
            while std::fs::remove_file(&path).is_err() {
                sleep(LOOK_EVERY).await;
            }
        }
    }

    async fn flood(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let piece = bytes.min(PIECE_BYTES);
            self.emit(StreamKind::Stdout, vec![b'x'; piece]).await;
            bytes -= piece;
        }
    }

    /// Waits while the pipe is full. Output without a reader is discarded, as an engine does.
    pub(super) async fn emit(&mut self, stream: StreamKind, bytes: Vec<u8>) {
        if self.framed {
            return self.emit_frame(if stream == StreamKind::Stdout { 0x82 } else { 0x83 }, &bytes).await;
        }
        self.send(stream, bytes).await;
    }

    /// A frame of the runner protocol.
    pub(super) async fn emit_frame(&mut self, kind: u8, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let frame = [&[kind][..], &length.to_be_bytes(), payload].concat();
        self.send(StreamKind::Stdout, frame).await;
    }

    async fn send(&mut self, stream: StreamKind, bytes: Vec<u8>) {
        let Some(output) = self.output.as_ref().filter(|_| !bytes.is_empty()) else { return };
        let _ = output.send(Ok(Output { stream, bytes: Bytes::from(bytes) })).await;
        if self.quirks.breaks {
            let _ = output.send(Err(unavailable("read"))).await;
            self.output = None;
        }
    }
}
