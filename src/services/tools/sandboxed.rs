//! Tool servers in sandboxes of their own: a command in the image of a language, with the files of a conversation and
//! the connections that the tool server's own policies allow. Its sandbox is that of a program, with the tool server's
//! secret in addition.
//!
//! ```text
//! open ── start: never aborted, since the engine could finish it after the janitor looked for the sandbox
//!      └─ carry: relays both streams; ends with the connection, the server, its life, or `stop`
//! ```

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    domain::{
        Code, ConversationKey, DiskLimit, Environment, Failure, Language, Limits, StreamKind,
        text::{self, chain},
        tools::{ServerText, ToolServer, secret_lines},
    },
    ports::{
        engine::Stdin,
        storage::{StorageError, Usage},
        tools::{OpenStreams, Streams, Transport},
    },
    services::{
        carrier::Carrier,
        frames::{self, Start},
        network::{Channels, Network, next_of},
        sandbox::{Attachment, SandboxEvent, attach, send},
        shared_parts::SharedParts,
        tasks::Tasks,
    },
};

/// The longest that one lives. The next call starts it again.
const LIFE_MAX: Duration = Duration::from_hours(24);
/// How much longer process 1 waits before it ends the server by itself.
const GRACE: Duration = Duration::from_mins(1);
/// How long a server may take to end once its input has ended.
const END_MAX: Duration = Duration::from_secs(1);
/// How often its files are measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// Bytes under way in each direction.
const PIPE_BYTES: usize = 256 << 10;
/// The end of its standard error that is logged, in characters; how much of it is kept, in bytes.
const LAST_CHARS_MAX: usize = 1000;
const LAST_BYTES_MAX: usize = 16 << 10;

/// Programs that become the command. In other images the command is the arguments of the image's own.
const BY_PYTHON: &str = "import os, sys\n\
    command = sys.argv[1:]\n\
    if command[0] == 'uvx': command[:1] = ['uv', 'tool', 'run']\n\
    try: os.execvp(command[0], command)\n\
    except OSError as error: sys.exit(f'{command[0]}: {error.strerror}')\n";
const BY_BASH: &str = "exec \"$@\"\n";
const BY_JAVASCRIPT: &str = "let [command, ...rest] = process.argv.slice(2);\n\
    if (command === 'npx') [command, rest] = ['npm', ['exec', ...rest]];\n\
    const child = process.getBuiltinModule('node:child_process').spawn(command, rest, { stdio: 'inherit' });\n\
    child.on('error', (error) => { console.error(error.message); process.exit(127); });\n\
    child.on('exit', (code) => process.exit(code ?? 1));\n";

/// Starts tool servers in sandboxes. A clone is the same.
#[derive(Clone)]
pub struct SandboxedServers(Arc<Inner>);

struct Inner {
    parts: SharedParts,
    at_once_max: usize,
    room: Arc<Semaphore>,
    tasks: Tasks,
}

impl SandboxedServers {
    /// Of which there are at most so many at once.
    pub fn new(parts: SharedParts, at_once_max: usize) -> Self {
        let room = Arc::new(Semaphore::new(at_once_max));
        Self(Arc::new(Inner { parts, at_once_max, room, tasks: Tasks::default() }))
    }

    /// Starts the sandbox of a server, in the image of a language, each time that it is connected to.
    pub(super) fn transport(&self, server: Arc<ToolServer>, language: Language, secret: SecretString) -> Transport {
        let opener = Opener { inner: Arc::clone(&self.0), server, language, secret };
        let secrets = opener.secrets();
        let open: OpenStreams = Arc::new(move || {
            let started = opener.clone().start();
            Box::pin(async { started.await.map_err(|failure| io::Error::other(failure.message)) })
        });
        Transport::Streams { open, secrets }
    }

    /// Ends all of them.
    pub async fn stop(&self) {
        self.0.tasks.end().await;
    }
}

/// Starts the sandbox of one server.
#[derive(Clone)]
struct Opener {
    inner: Arc<Inner>,
    server: Arc<ToolServer>,
    language: Language,
    secret: SecretString,
}

impl Opener {
    /// What the server knows and no message may contain.
    fn secrets(&self) -> Vec<SecretString> {
        let filled = ServerText::filled(&self.server.text.env, self.secret.expose_secret());
        filled.into_iter().map(|(_, value)| value.into()).chain([self.secret.clone()]).collect()
    }

    async fn start(self) -> Result<Streams, Failure> {
        let Inner { parts, at_once_max, room, tasks } = &*self.inner;
        let full = || {
            let why = format!("{at_once_max} tool servers run in sandboxes, and no more may: try again later");
            Failure::new(Code::ToolUnavailable, why)
        };
        let room = Arc::clone(room).try_acquire_owned().map_err(|_| full())?;
        tasks.check_running()?;
        let runner = parts.catalog.get(&self.language)?;
        parts.isolation.wait(&runner.image).await?;
        if !runner.is_framed {
            return Err(Failure::argument("image", "its runner reads no input while a program runs (protocol 1 or 2)"));
        }
        let conversation = self.server.conversation();
        let policies = &self.server.text.network;
        let access = parts.network.named(policies, &runner.language)?;
        if access.is_some() && !runner.channels {
            return Err(Failure::argument("network", "its runner has no channels (protocol 2)"));
        }
        let (store, key) = (Arc::clone(&parts.store), conversation.clone());
        let data = tokio::task::spawn_blocking(move || Ok::<_, StorageError>(store.create(&key)?.data()));
        let data = data.await.map_err(|_| failed())??;
        parts.files.quota().disk_has_room(&Usage::default())?;
        if parts.files.quota().exceeded(&conversation).await.is_some() {
            let why = format!("its files in the conversation {conversation} take too much space: delete some");
            return Err(Failure::new(Code::QuotaExceeded, why));
        }
        let limits = parts.sandboxes.limits_of(&runner);
        let limits = Limits { wall_ms: text::ms(LIFE_MAX), ..limits };
        let (lease, spec) = parts.sandboxes.lease(&runner, (data, parts.sandboxes.mounts_of_all()), limits, LIFE_MAX);
        let (sandboxes, leased) = (parts.sandboxes.clone(), Arc::clone(&lease));
        // It goes on when the caller has gone, and holds its permit.
        let starting = tasks.spawn(async move { (sandboxes.start(&spec, leased).await, room) });
        let (started, room) = starting.await.map_err(|_| failed())?;
        let mut started = started.map_err(|error| {
            warn!(server = %self.server.name, error = %chain(&error), "the sandbox of a tool server was not started");
            error.failure()
        })?;
        if let Some(room_bytes) = parts.sandboxes.volumes.streamed_bytes() {
            let mut carrier = Carrier::new(&parts.files, &conversation, room_bytes, limits.file_bytes_max);
            carrier.write(&mut started.sandbox.stdin).await?;
        }

        let channels = access.map(|access| parts.network.open(access, &conversation, &runner.language));
        let request = self.request(&runner.language, channels.as_ref());
        let (stdin, mut sandbox) = attach(started);
        let (outgoing, link) = Channels::split(channels, &mut sandbox.channels);
        let (ours, theirs) = duplex(PIPE_BYTES);
        let opener = self.clone();
        tasks.spawn(async move {
            carry(&opener, &conversation, sandbox, theirs, (stdin, request, outgoing)).await;
            // The sandbox is given up before another one gets its permit.
            drop(lease);
            drop(room);
            for sentence in link.end().await {
                let sentence = sentence.trim_end();
                info!(server = %opener.server.name, sentence, "a tool server was refused a host");
            }
        });
        let (reader, writer) = split(ours);
        Ok((Box::new(reader), Box::new(writer)))
    }

    /// The frames that start the command; its input stays open.
    fn request(&self, language: &Language, channels: Option<&Channels>) -> Bytes {
        let ServerText { env, command, .. } = &self.server.text;
        let filled = ServerText::filled(env, self.secret.expose_secret());
        let env = filled.iter().fold(Environment::default(), |env, (name, value)| env.or(name, value));
        let env = &Network::environment(&env, channels);
        let start = Start {
            channels: channels.is_some(),
            authority: channels.and_then(Channels::authority_pem),
            ..Start::new(command, env, LIFE_MAX, GRACE)
        };
        let program = match language.as_str() {
            "python" => BY_PYTHON,
            "bash" => BY_BASH,
            "javascript" => BY_JAVASCRIPT,
            _ => "",
        };
        frames::request(program.as_bytes(), &start, &[], true)
    }
}

/// The sandbox's standard input, what is written there first, and bytes for its channels.
type Input = (Stdin, Bytes, Option<mpsc::Receiver<Bytes>>);

/// Relays both streams of a server that runs, until it ends or has to.
async fn carry(
    opener: &Opener,
    conversation: &ConversationKey,
    mut sandbox: Attachment,
    pipe: DuplexStream,
    input: Input,
) {
    let (from_client, to_client) = split(pipe);
    let mut last = Vec::new();
    let why = {
        let mut reading = std::pin::pin!(read(&mut sandbox, to_client, &mut last));
        tokio::select! {
            biased;
            () = opener.inner.tasks.stop.cancelled() => None,
            why = &mut reading => Some(why),
            limit = outgrown(&opener.inner.parts, conversation) => {
                Some(format!("it was ended at a limit of its files: {limit:?}"))
            }
            () = sleep(LIFE_MAX) => None,
            // It has the time to write what it keeps.
            () = write(input, from_client) => {
                let _ = timeout(END_MAX, reading).await;
                None
            }
        }
    };
    if let Some(why) = why {
        let mut last = String::from_utf8_lossy(&last).into_owned();
        for secret in opener.secrets().iter().map(ExposeSecret::expose_secret).filter(|text| !text.is_empty()) {
            last = last.replace(secret, "…");
            last = secret_lines(secret).fold(last, |last, line| last.replace(line, "…"));
        }
        let skipped = last.chars().count().saturating_sub(LAST_CHARS_MAX);
        let last: String = last.chars().skip(skipped).collect();
        warn!(server = %opener.server.name, why, last = %last.escape_debug(), "a tool server ended by itself");
    }
}

/// Reads until the sandbox ends; why it did. A client that is gone is not waited for.
async fn read(sandbox: &mut Attachment, mut to_client: WriteHalf<DuplexStream>, last: &mut Vec<u8>) -> String {
    loop {
        match sandbox.next().await {
            SandboxEvent::Output(StreamKind::Stdout, bytes) => drop(to_client.write_all(&bytes).await),
            SandboxEvent::Output(StreamKind::Stderr, bytes) => {
                last.extend_from_slice(&bytes);
                let skipped = last.len().saturating_sub(LAST_BYTES_MAX);
                last.drain(..skipped);
            }
            SandboxEvent::Files(_) => {}
            SandboxEvent::ProgramExited(report) => return format!("it exited: {report:?}"),
            SandboxEvent::ContractBroken(why) => return format!("its runner broke its contract: {why}"),
            SandboxEvent::OutputBroke => return "the engine lost its output".to_owned(),
            SandboxEvent::SandboxExited(Ok(exit)) if exit.oom_killed => return "it used too much memory".to_owned(),
            SandboxEvent::SandboxExited(_) => return "its sandbox ended".to_owned(),
        }
    }
}

/// Writes the request, then what the client sends, until that ends; and what the channels send.
async fn write((mut stdin, request, mut channels): Input, mut from_client: ReadHalf<DuplexStream>) {
    let mut buffer = vec![0; PIPE_BYTES];
    let mut frame = request;
    loop {
        if !send(&mut stdin, &frame).await {
            // How it ended is read.
            std::future::pending::<()>().await;
        }
        frame = tokio::select! {
            read = from_client.read(&mut buffer) => match read {
                Ok(length @ 1..) => frames::stdin(&buffer[..length]),
                _ => break,
            },
            piece = next_of(&mut channels) => frames::channels(&piece),
        };
    }
    // Nothing is left to be done where it is gone.
    send(&mut stdin, &frames::stdin_end()).await;
}

/// Returns when its files take more than a conversation's may.
async fn outgrown(shared: &SharedParts, conversation: &ConversationKey) -> DiskLimit {
    loop {
        sleep(MEASURE_EVERY).await;
        if let Some(limit) = shared.files.quota().exceeds_now(conversation).await {
            return limit;
        }
    }
}

fn failed() -> Failure {
    Failure::new(Code::ToolUnavailable, "its sandbox could not be made; the server's log says more")
}
