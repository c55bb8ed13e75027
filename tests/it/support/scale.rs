//! How much of something a test does: a little in the suite, all of it with `LONG=1`.

use std::{
    env,
    hash::{BuildHasher as _, Hasher as _, RandomState},
};

/// The long form is wanted.
pub fn long() -> bool {
    env::var_os("LONG").is_some_and(|value| value == "1")
}

/// How many: of the short form or of the long one.
pub fn how_many(short: usize, all: usize) -> usize {
    if long() { all } else { short }
}

/// A seed, which is printed: the one of a variable; where it is not set, `fixed` in the short form and a random one in
/// the long form.
pub fn seed(variable: &str, fixed: u64) -> u64 {
    let of_form = || if long() { RandomState::new().build_hasher().finish() } else { fixed };
    let seed = env::var(variable).map_or_else(|_| of_form(), |text| text.parse().expect("a seed is a number"));
    println!("{variable}={seed}");
    seed
}
