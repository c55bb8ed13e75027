//! Files with holes as entries of GNU tar: the header has the positions of what is stored.
//!
//! A header has room for four positions, and the last one may be the file's end. A file with more parts is stored with
//! its smallest holes filled.

use std::{cmp::Reverse, ops::Range};

use tar::{EntryType, Header};

/// The parts of a file that are stored apart from each other.
const PARTS_MAX: usize = 3;

/// Joins the parts across the smallest holes, and counts the bytes of these.
pub(super) fn joined(data: &[Range<u64>]) -> (Vec<Range<u64>>, u64) {
    let pairs = data.windows(2).enumerate();
    let mut holes: Vec<(u64, usize)> =
        pairs.map(|(at, pair)| (pair[1].start.saturating_sub(pair[0].end), at + 1)).collect();
    holes.sort_unstable_by_key(|hole| Reverse(*hole));
    let filled = holes.iter().skip(PARTS_MAX - 1).map(|(bytes, _)| bytes).sum();
    holes.truncate(PARTS_MAX - 1);
    let mut begins: Vec<usize> = holes.into_iter().map(|(_, at)| at).collect();
    begins.sort_unstable();
    begins.push(data.len());
    let (mut parts, mut from) = (Vec::new(), 0);
    for to in begins {
        if let [first, ..] = &data[from..to] {
            parts.push(first.start..data[to - 1].end);
        }
        from = to;
    }
    (parts, filled)
}

/// Makes the header that of a file of this length with holes.
pub(super) fn mark(header: &mut Header, parts: &[Range<u64>], length: u64) {
    let Some(gnu) = header.as_gnu_mut() else { return };
    gnu.set_real_size(length);
    // GNU tar learns of a hole at the end by an empty part behind it.
    let end = parts.last().is_none_or(|last| last.end < length).then_some(length..length);
    for (entry, part) in gnu.sparse.iter_mut().zip(parts.iter().cloned().chain(end)) {
        entry.set_offset(part.start);
        entry.set_length(part.end - part.start);
    }
    header.set_entry_type(EntryType::GNUSparse);
}

/// The parts of a file with holes, and its length. `None` for those that overlap or are not as long as what is stored.
pub(super) fn read(header: &Header, stored: u64) -> Option<(Vec<Range<u64>>, u64)> {
    let gnu = header.as_gnu()?;
    let length = gnu.real_size().ok()?;
    if gnu.isextended[0] != 0 {
        return None;
    }
    let (mut parts, mut end, mut bytes) = (Vec::new(), 0, 0);
    for entry in gnu.sparse.iter().filter(|entry| !entry.is_empty()) {
        let (from, count) = (entry.offset().ok()?, entry.length().ok()?);
        let to = from.checked_add(count)?;
        if from < end || to > length {
            return None;
        }
        (end, bytes) = (to, bytes + count);
        if count > 0 {
            parts.push(from..to);
        }
    }
    (bytes == stored).then_some((parts, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_across_the_smallest_holes() {
        let of = |parts: &[(u64, u64)]| parts.iter().map(|(from, to)| *from..*to).collect::<Vec<_>>();
        for (data, wanted, filled) in [
            (of(&[]), of(&[]), 0),
            (of(&[(0, 9)]), of(&[(0, 9)]), 0),
            (of(&[(1, 2), (5, 6), (8, 9)]), of(&[(1, 2), (5, 6), (8, 9)]), 0),
            (of(&[(0, 1), (2, 3), (9, 10), (12, 13), (30, 31)]), of(&[(0, 3), (9, 13), (30, 31)]), 3),
        ] {
            assert_eq!(joined(&data), (wanted, filled), "{data:?}");
        }
    }

    #[test]
    fn headers_have_the_parts_that_they_were_given() {
        let of = |parts: &[(u64, u64)]| parts.iter().map(|(from, to)| *from..*to).collect::<Vec<_>>();
        let far = 1 << 40;
        for (parts, length) in
            [(of(&[]), far), (of(&[(0, 5), (far, far + 2)]), far + 2), (of(&[(1, 2), (3, 4), (5, 6)]), far)]
        {
            let stored: u64 = parts.iter().map(|part| part.end - part.start).sum();
            let mut header = Header::new_gnu();
            mark(&mut header, &parts, length);
            assert_eq!((read(&header, stored), header.entry_type()), (Some((parts, length)), EntryType::GNUSparse));
            assert!(read(&header, stored + 1).is_none());
        }
    }
}
