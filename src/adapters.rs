//! Each adapter knows its own vendor crate and serves one port; none knows another.

pub mod audit;
pub mod database;
pub mod engine;
pub mod metrics;
pub mod network;
pub mod storage;
pub mod tools;
pub mod traces;
pub mod web;
