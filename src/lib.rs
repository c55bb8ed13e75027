//! A self-hosted code sandbox for AI assistants.
//!
//! The crate is an orchestrator: it owns no interpreter and no sandbox technology. It decides, starts, watches,
//! collects and cleans up. Rooms stand in this order, and a room imports only rooms below it (held by
//! `tests/it/tidy.rs`):
//!
//! ```text
//! cli · app · surfaces · services · adapters · ports · ground · nouns
//! ```

pub mod adapters;
pub mod app;
pub mod cli;
pub mod ground;
pub mod nouns;
pub mod ports;
pub mod services;
pub mod surfaces;
