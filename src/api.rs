//! The interfaces (surfaces) for clients. A surface translates: it parses a request, makes one call of a service, and
//! maps the answer. It contains no rules and no state.

pub mod http;
pub mod mcp;
pub mod schema;
