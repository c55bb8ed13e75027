//! What the services need of the outside world, as traits and small types: engines, runner images, files of
//! conversations, the database, networks, other servers, observers.
//!
//! Ports name no vendor: no Docker, no HTTP, no settings.

pub mod database;
pub mod engine;
pub mod history;
pub mod network;
pub mod observer;
pub mod packages;
pub mod peers;
pub mod runner;
pub mod sessions;
pub mod sign_in;
pub mod skills;
pub mod storage;
pub mod tools;
pub mod web;
