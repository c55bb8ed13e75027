//! A sandbox that runs and has no program yet: what a standby hands over and a run attaches to.

use super::frames::Decoder;
use crate::ports::{engine::Sandbox, runner::Protocol};

/// A running sandbox and, for a framed runner, the decoder of its frames, which may hold a part of one.
pub(crate) struct Started {
    pub sandbox: Sandbox,
    /// For a framed runner.
    pub decoder: Option<Decoder>,
}

impl Started {
    /// A sandbox that has just been started.
    pub(crate) fn new(sandbox: Sandbox, protocol: Protocol) -> Self {
        Self { sandbox, decoder: (protocol == Protocol::Framed).then(Decoder::default) }
    }
}
