//! Sizes and times as descriptions and answers show them.

pub(super) fn seconds(ms: u64) -> String {
    if ms.is_multiple_of(1000) { format!("{} s", ms / 1000) } else { format!("{ms} ms") }
}

pub(super) fn thousandths(millis: u32) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number of bytes for people: at most one digit after the point, binary units.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            let point = if tenths.is_multiple_of(10) { String::new() } else { format!(".{}", tenths % 10) };
            return format!("{}{point} {unit}", tenths / 10);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(
            [0, 1023, 1024, 1536, 256 << 20, u64::MAX].map(size),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "256 MiB", "17179869183.9 GiB"]
        );
        assert_eq!([500, 1000, 1250, 2].map(thousandths), ["0.5", "1", "1.25", "0.002"]);
        assert_eq!([30_000, 1500].map(seconds), ["30 s", "1500 ms"]);
    }
}
