//! How much a test does: its short form always, its long form when somebody asks for it by `LONG=1`.

/// Rounds, names, levels: the second number when the long form is asked for.
pub(crate) fn rounds(short: u32, long: u32) -> u32 {
    if std::env::var_os("LONG").is_some() { long } else { short }
}
