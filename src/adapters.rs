//! Each adapter uses its own vendor crate and implements one port; none imports another.

pub mod audit;
pub mod database;
pub mod engine;
pub mod metrics;
pub mod network;
pub mod storage;
pub mod tools;
pub mod traces;
pub mod web;
