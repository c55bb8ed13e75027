//! A sandbox that runs and has no program yet.

use super::frames::Decoder;
use crate::ports::{engine::Sandbox, runner::Protocol};

/// A running sandbox and, for a framed runner, what was read of its frames so far.
pub(crate) struct Started {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// There for a framed runner.
    pub decoder: Option<Decoder>,
}

impl Started {
    /// A sandbox that has just been started.
    pub(crate) fn new(sandbox: Sandbox, protocol: Protocol) -> Self {
        Self { sandbox, decoder: (protocol == Protocol::Framed).then(Decoder::default) }
    }
}
