//! The initial state of a session, which a restart keeps.

use crate::domain::{environment::Environment, error::Failure};

/// What a session begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Added to its environment.
    pub env: Environment,
    /// The network policies that it wants; `None`: all that hold for it.
    pub network: Option<Vec<String>>,
}

impl Setup {
    /// Whether a session that is open is what this asks for; what it does not say is not asked for.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for what is different.
    pub(super) fn check_same(&self, open: &Self) -> Result<(), Failure> {
        for (argument, is_other) in [
            ("env", !self.env.is_empty() && open.env != self.env),
            ("network", self.network.is_some() && open.network != self.network),
        ] {
            if is_other {
                return Err(Failure::argument(
                    argument,
                    "the session is open, with what it began with: close it first",
                ));
            }
        }
        Ok(())
    }
}
