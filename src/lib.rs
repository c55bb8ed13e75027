//! A self-hosted code sandbox for AI assistants.
//!
//! The crate is an orchestrator: it owns no interpreter and no sandbox technology. It decides what may run, starts
//! sandboxes, watches them, collects their results and destroys them. The layers are in this order, and a layer imports
//! only layers below it (`tests/it/tidy.rs` checks that):
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
