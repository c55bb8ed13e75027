//! Enums whose variants are words on the wire, in the log and in the database.

/// Makes such an enum: its variants in their order, the word of each, and the variant of a word.
macro_rules! words {
    (
        $(#[$($about:tt)+])*
        pub enum $name:ident: $word:ident {
            $($(#[$($of:tt)+])* $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[$($about)+])*
        pub enum $name {
            $($(#[$($of)+])* $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            pub fn $word(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// `None` for a word that is none.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.$word() == text)
            }
        }
    };
}
pub(crate) use words;
