//! Shared by the fuzz targets: the number of cases, and alterations of a valid text.

use bolero::TypeGenerator;

use super::test_scale::rounds;

/// Cases of one target in an ordinary test. A coverage-guided fuzzer runs until it is stopped.
pub(crate) fn cases() -> usize {
    rounds(256, 100_000) as usize
}

/// One change of a text. Positions are taken modulo its length.
#[derive(Debug, Clone, Copy, TypeGenerator)]
pub(crate) enum Mutation {
    Replace(u16, u8),
    Insert(u16, u8),
    Remove(u16),
    /// Keeps only the bytes before this position.
    Cut(u16),
    /// Doubles a byte.
    Repeat(u16),
}

impl Mutation {
    pub(crate) fn apply(self, text: &mut Vec<u8>) {
        let inside = |at: u16| usize::from(at).checked_rem(text.len());
        match self {
            Self::Insert(at, byte) => text.insert(usize::from(at) % (text.len() + 1), byte),
            Self::Cut(at) => text.truncate(inside(at).unwrap_or(0)),
            Self::Replace(at, byte) => {
                if let Some(at) = inside(at) {
                    text[at] = byte;
                }
            }
            Self::Remove(at) => {
                if let Some(at) = inside(at) {
                    text.remove(at);
                }
            }
            Self::Repeat(at) => {
                if let Some(at) = inside(at) {
                    text.insert(at, text[at]);
                }
            }
        }
    }
}

pub(crate) fn mutated(good: impl AsRef<[u8]>, alterations: &[Mutation]) -> Vec<u8> {
    let mut text = good.as_ref().to_vec();
    for alteration in alterations {
        alteration.apply(&mut text);
    }
    text
}
