//! Ports for what has to be told its own.

use std::{
    net::{Ipv4Addr, TcpListener},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Below those that Linux gives to connections and to listeners that ask for any.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;
/// From the first choice of a process to that of the next.
const EACH: u32 = 16;

/// A port at which nothing listens. It is not bound meanwhile, so it is one that nothing else is given, and tests that
/// run at once look for theirs at different places.
pub fn free_port() -> u16 {
    static LOOKED: AtomicU32 = AtomicU32::new(0);
    let next = |_| {
        let at = process::id().wrapping_mul(EACH).wrapping_add(LOOKED.fetch_add(1, Ordering::Relaxed));
        u16::try_from(FIRST + at % COUNT).expect("a port")
    };
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    (0..COUNT).map(next).find(is_free).expect("a free port")
}
