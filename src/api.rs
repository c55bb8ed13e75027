//! What clients see. A surface translates: it extracts, makes one call of a service, and maps the answer. No rule and
//! no state lives here.

pub mod http;
pub mod mcp;
pub mod schema;
