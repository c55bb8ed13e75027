//! What targets on made-up input share: how many cases they try, and alterations of something good.

use bolero::TypeGenerator;

use super::test_scale::rounds;

/// Cases of one target in an ordinary test. An engine that is guided by coverage goes on until it is stopped.
pub(crate) fn cases() -> usize {
    rounds(256, 100_000) as usize
}

/// One change of a text. Places are taken modulo its length.
#[derive(Debug, Clone, Copy, TypeGenerator)]
pub(crate) enum Alteration {
    /// Another byte in place of one.
    Replace(u16, u8),
    /// One more byte.
    Insert(u16, u8),
    /// One byte less.
    Remove(u16),
    /// Only what is before this place.
    Cut(u16),
    /// A byte once more.
    Repeat(u16),
}

impl Alteration {
    /// Alters a text.
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

/// A text with some alterations.
pub(crate) fn altered(good: &str, alterations: &[Alteration]) -> Vec<u8> {
    let mut text = good.as_bytes().to_vec();
    for alteration in alterations {
        alteration.apply(&mut text);
    }
    text
}
