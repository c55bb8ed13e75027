//! Everything that is tested from outside, as one binary.

mod api_conformance;
mod bad_input;
mod catalog;
mod compose;
mod conformance;
mod deletion;
mod docs;
mod engine_contract;
mod engine_docker;
mod gate;
mod load;
mod mcp_bad_input;
mod mcp_clients;
mod mcp_tools;
mod page;
mod paths;
mod piston;
mod quickstart;
mod quota;
mod rest;
mod rest_bad_input;
mod run_service;
mod runs;
mod standby;
mod support;
mod tidy;
