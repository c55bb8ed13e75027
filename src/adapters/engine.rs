//! Engines: what makes sandboxes.

pub mod docker;
pub mod fake;
pub mod observed;
