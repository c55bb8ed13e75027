//! A self-hosted code sandbox for AI assistants.
//!
//! The crate is an orchestrator: it owns no interpreter and no sandbox technology. It decides, starts, watches,
//! collects and cleans up. Rooms stand in this order, and a room imports only rooms below it (held by
//! `tests/it/tidy.rs`):
//!
//! ```text
//! cli · app · api · services · adapters · ports · config · domain
//! ```

pub mod adapters;
pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod domain;
pub mod ports;
pub mod services;
