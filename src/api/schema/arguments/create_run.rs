//! What a client sends to begin a run over plain HTTP.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Arguments;
use crate::domain::{
    error::Failure,
    id::{ConversationId, Language},
    limits::Limits,
};

/// The least memory that a sandbox starts in, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
const CPU_MILLIS_MIN: u64 = 10;
const PROCESSES_MIN: u64 = 4;
const ARGS_MAX: usize = 256;
const NAMES: &[&str] =
    &["conversationId", "language", "code", "args", "stdin", "stdinOpen", "wait", "detach", "limits"];
const LIMITS: &[&str] = &["wallMs", "memoryBytes", "cpuMillis", "processesMax", "outputBytesMax"];

/// Arguments of a run.
#[derive(Debug)]
pub struct CreateRun {
    /// Whose files are /data; one of its own where none is named.
    pub conversation: Option<ConversationId>,
    /// A language or an alias of one.
    pub language: Language,
    /// The program's text.
    pub code: Bytes,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// What it reads.
    pub stdin: Bytes,
    /// It is sent more while it runs.
    pub stdin_open: bool,
    /// How long to wait for the end; to the end where it is not said.
    pub wait: Option<Duration>,
    /// Whether the run goes on when its client goes away, where it is said.
    pub detach: Option<bool>,
    /// Limits of its own.
    pub limits: Option<Limits>,
}

/// What to run.
#[derive(ToSchema)]
#[schema(as = CreateRun, rename_all = "camelCase")]
#[expect(dead_code, reason = "stands for the arguments in the API's description; they are read by hand")]
pub struct CreateRunBody {
    /// The conversation whose files are /data; a fresh one where none is named.
    #[schema(nullable = false, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    conversation_id: Option<String>,
    /// A language or an alias of one, such as python.
    #[schema(pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    language: String,
    /// The whole program.
    #[schema(min_length = 1)]
    code: String,
    /// Arguments of the program, for runners that take them.
    #[schema(nullable = false, max_items = 256)]
    args: Option<Vec<String>>,
    /// What the program reads from its standard input, for runners that take it.
    #[schema(nullable = false)]
    stdin: Option<String>,
    /// Its standard input stays open after `stdin`: more is sent with `sendInput`, which also ends it.
    #[schema(nullable = false)]
    stdin_open: Option<bool>,
    /// How many seconds to wait for the end; 0 answers at once. Where it is not said, the answer waits for the end.
    #[schema(nullable = false, minimum = 0, maximum = 3600)]
    wait: Option<u64>,
    /// Whether the run goes on when this request is broken off; where it is not said, the server's setting decides.
    /// It cancels the run unless the operator chose otherwise.
    #[schema(nullable = false)]
    detach: Option<bool>,
    /// Less than the server allows; more is lowered to that.
    #[schema(nullable = false)]
    limits: Option<RunLimits>,
}

/// What a run may use.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "stands for the arguments in the API's description; they are read by hand")]
struct RunLimits {
    /// Wall clock, in milliseconds.
    #[schema(nullable = false, minimum = 1)]
    wall_ms: Option<u64>,
    /// Memory, in bytes.
    #[schema(nullable = false, minimum = 16_777_216)]
    memory_bytes: Option<u64>,
    /// CPU time per second, in thousandths of a core.
    #[schema(nullable = false, minimum = 10)]
    cpu_millis: Option<u32>,
    /// Processes and threads together.
    #[schema(nullable = false, minimum = 4)]
    processes_max: Option<u32>,
    /// Output of both streams together, in bytes.
    #[schema(nullable = false, minimum = 1)]
    output_bytes_max: Option<u64>,
}

impl CreateRun {
    /// Reads them. `server` is what a run may use at most.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
    pub fn parse(members: Map<String, Value>, server: &Limits) -> Result<Self, Failure> {
        let mut arguments = Arguments::new(members, NAMES)?;
        let conversation = arguments.text("conversationId")?.map(|text| text.parse()).transpose();
        let conversation = conversation.map_err(|why| Failure::argument("conversationId", why))?;
        let language = arguments.required("language", "the language to run, such as python; /v1/runners names all")?;
        let language = language.parse().map_err(|why| Failure::argument("language", why))?;
        let code = arguments.required("code", "the program's text")?;
        if code.is_empty() {
            return Err(Failure::argument("code", "it is empty: give the program's text"));
        }
        Ok(Self {
            conversation,
            language,
            code: code.into(),
            args: args(arguments.value("args"))?,
            stdin: arguments.text("stdin")?.unwrap_or_default().into(),
            stdin_open: arguments.flag("stdinOpen")?.unwrap_or(false),
            wait: arguments.wait("wait")?,
            detach: arguments.flag("detach")?,
            limits: arguments.value("limits").map(|asked| limits(asked, server)).transpose()?,
        })
    }
}

fn args(value: Option<Value>) -> Result<Vec<String>, Failure> {
    let refuse =
        || Failure::argument("args", format!("it is not a list of at most {ARGS_MAX} strings without zero bytes"));
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) if all.len() <= ARGS_MAX => {
            let one = |value| match value {
                Value::String(text) if !text.contains('\0') => Ok(text),
                _ => Err(refuse()),
            };
            all.into_iter().map(one).collect()
        }
        Some(_) => Err(refuse()),
    }
}

fn limits(asked: Value, server: &Limits) -> Result<Limits, Failure> {
    let Value::Object(asked) = asked else {
        return Err(Failure::argument("limits", "it is not an object"));
    };
    let inside = |failure: Failure| {
        let name = format!("limits.{}", failure.argument.as_deref().unwrap_or_default());
        let message = format!("limits.{}", failure.message);
        Failure { message, ..failure }.about(&name)
    };
    let mut asked = Arguments::new(asked, LIMITS).map_err(inside)?;
    let mut one = |name: &str, min: u64, most: u64| match asked.whole_number(name).map_err(inside)? {
        None => Ok(most),
        Some(value) if value < min => Err(inside(Failure::argument(name, format!("it is less than {min}: give more")))),
        Some(value) => Ok(value.min(most)),
    };
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Ok(Limits {
        wall_ms: one("wallMs", 1, server.wall_ms)?,
        memory_bytes: one("memoryBytes", MEMORY_BYTES_MIN, server.memory_bytes)?,
        cpu_millis: small(one("cpuMillis", CPU_MILLIS_MIN, server.cpu_millis.into())?),
        processes_max: small(one("processesMax", PROCESSES_MIN, server.processes_max.into())?),
        output_bytes_max: one("outputBytesMax", 1, server.output_bytes_max)?,
        ..*server
    })
}
