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

/// As `words!`, for an enum whose variants carry something: the word of each. No variant is made of a word alone.
macro_rules! named {
    (
        $(#[$($about:tt)+])*
        pub enum $name:ident {
            $(
                $(#[$($of:tt)+])*
                $variant:ident
                $(($($held:ty),+))?
                $({ $($(#[$($on:tt)+])* $field:ident: $type:ty),+ $(,)? })?
                = $text:literal,
            )+
        }
    ) => {
        $(#[$($about)+])*
        pub enum $name {
            $($(#[$($of)+])* $variant $(($($held),+))? $({ $($(#[$($on)+])* $field: $type,)+ })?,)+
        }

        impl $name {
            /// In the order of the variants.
            pub const WORDS: [&'static str; [$($text),+].len()] = [$($text),+];

            /// The word on the wire.
            pub fn word(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $text,)+
                }
            }
        }
    };
}
pub(crate) use {named, words};
