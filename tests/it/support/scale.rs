//! How much of something a test does: a little in the suite, all of it with `LONG=1`.

/// The long form is wanted.
pub fn long() -> bool {
    std::env::var_os("LONG").is_some_and(|value| value == "1")
}

/// How many: of the short form or of the long one.
pub fn how_many(short: usize, all: usize) -> usize {
    if long() { all } else { short }
}
