//! Everything that is tested from outside, as one binary.

mod docs;
mod engine_contract;
mod engine_docker;
mod support;
mod tidy;
