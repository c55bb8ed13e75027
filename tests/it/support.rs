//! What several test files share.

pub mod alone;
pub mod browser;
pub mod cable;
pub mod calls;
pub mod cluster;
pub mod collector;
pub mod dice;
pub mod engines;
pub mod fake_server;
#[path = "../../src/adapters/storage/tests/holder.rs"]
pub mod holder;
pub mod http;
pub mod images;
pub mod issuer;
pub mod port;
pub mod postgres;
pub mod private_engine;
pub mod process;
pub mod renaming;
pub mod scale;
pub mod server;
pub mod sheet;
pub mod socket;
pub mod sse;
pub mod stepping;
pub mod until;

pub use fake_server::FakeServer;
pub use port::free_port;
pub use server::Server;
pub use until::until;
