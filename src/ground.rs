//! The ground everything stands on: settings and telemetry. Nothing here knows a service or a surface.

pub mod config;
pub mod telemetry;
