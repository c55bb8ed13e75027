//! The body that begins a run over HTTP.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use utoipa::ToSchema;

use super::arguments::{Program, Wait};
use crate::domain::{ConversationId, Environment, Failure, Language, Limits, environment::check_args};

/// The least memory that a sandbox starts in, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// A program to run.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateRun {
    /// The conversation whose files are /data; a fresh one if none is named.
    #[serde(rename = "conversationId")]
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    pub conversation: Option<ConversationId>,
    /// A language or an alias of one, such as python.
    #[schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", min_length = 1, max_length = 32)]
    pub language: Language,
    /// The whole program.
    #[schema(value_type = String, min_length = 1)]
    pub code: Program,
    /// Arguments of the program, for runners that take them.
    #[schema(max_items = 256)]
    pub args: Option<Vec<String>>,
    /// Environment variables of the program, with names that the operator allows; no answer shows their values.
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub env: Option<Environment>,
    /// Names of the network policies that it may use, out of those of the token; default all, `[]` for none.
    #[schema(max_items = 64)]
    pub network: Option<Vec<String>>,
    /// Standard input, for runners that take it.
    pub stdin: Option<String>,
    /// Whether standard input stays open after `stdin`: more is sent with `sendInput`, which also ends it.
    pub stdin_open: Option<bool>,
    /// How many seconds to wait for the end; 0 answers at once. By default, the answer waits for the end.
    #[schema(value_type = Option<u64>, minimum = 0, maximum = 3600)]
    pub wait: Option<Wait>,
    /// Whether the run goes on when the client disconnects. By default, the server's setting decides, which is to
    /// cancel the run unless the operator changed it.
    pub detach: Option<bool>,
    /// Limits below the server's; higher values are lowered to the server's.
    pub limits: Option<RunLimits>,
}

/// Limits of a run.
#[derive(Debug, Default, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunLimits {
    /// Wall clock, in milliseconds.
    #[schema(minimum = 1)]
    pub wall_ms: Option<u64>,
    /// Memory, in bytes.
    #[schema(minimum = 16_777_216)]
    pub memory_bytes: Option<u64>,
    /// CPU time per second, in thousandths of a core.
    #[schema(value_type = Option<u32>, minimum = 10)]
    pub cpu_millis: Option<u64>,
    /// Processes and threads together.
    #[schema(value_type = Option<u32>, minimum = 4)]
    pub processes_max: Option<u64>,
    /// Output of both streams together, in bytes.
    #[schema(minimum = 1)]
    pub output_bytes_max: Option<u64>,
}

impl CreateRun {
    /// What the types of the members do not check: the arguments, and the limits, of which `server` is the upper bound.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
    pub fn checked(&self, server: &Limits) -> Result<Option<Limits>, Failure> {
        check_args(self.args.as_deref().unwrap_or_default())?;
        self.limits.as_ref().map(|limits| limits.within(server)).transpose()
    }
}

impl RunLimits {
    pub(super) fn within(&self, server: &Limits) -> Result<Limits, Failure> {
        let one = |name: &str, value: Option<u64>, min: u64, most: u64| match value {
            Some(value) if value < min => {
                Err(Failure::argument(&format!("limits.{name}"), format!("it must be at least {min}")))
            }
            value => Ok(value.map_or(u64::MAX, |value| value.min(most))),
        };
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(Limits {
            wall_ms: one("wallMs", self.wall_ms, 1, server.wall_ms)?,
            memory_bytes: one("memoryBytes", self.memory_bytes, MEMORY_BYTES_MIN, server.memory_bytes)?,
            cpu_millis: small(one("cpuMillis", self.cpu_millis, 10, server.cpu_millis.into())?),
            processes_max: small(one("processesMax", self.processes_max, 4, server.processes_max.into())?),
            output_bytes_max: one("outputBytesMax", self.output_bytes_max, 1, server.output_bytes_max)?,
            ..Limits::UNBOUNDED
        })
    }
}
