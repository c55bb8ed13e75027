//! The macro that makes a section of settings: a struct, its defaults, and its words for documents, from one text.

/// Makes a struct whose fields are the keys of one section. The doc comment of a field is also its line in
/// `.env.example` and README, so it stays on one line.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident($section:literal) {
            $(#[doc = $doc:literal] $key:ident: $type:ty = $default:expr,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(#[doc = $doc] pub $key: $type,)+
        }

        impl $name {
            /// What documents say of each key.
            pub const SETTINGS: &'static [$crate::config::Setting] = &[
                $($crate::config::Setting {
                    section: $section,
                    key: stringify!($key),
                    doc: $doc.trim_ascii(),
                },)+
            ];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }
    };
}

pub(crate) use section;
