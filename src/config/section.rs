//! The macro that makes a section of settings: a struct, its defaults, its ranges and its documentation, from one text.

/// Makes a struct whose fields are the keys of one section. The doc comment of a field is also its line in
/// `.env.example` and README. A range after the default is checked when the settings are loaded.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident($section:literal) {
            $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr $(=> $range:expr)?,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                #[serde(deserialize_with = "parsed", serialize_with = "shown")]
                pub $key: $type,
            )+
        }

        impl $name {
            const SETTINGS: &'static [$crate::config::Setting] = &[
                $($crate::config::Setting {
                    section: $section,
                    key: stringify!($key),
                    default: "",
                    doc: concat!($($doc),+).trim_ascii(),
                },)+
            ];

            fn check_ranges(&self) -> Result<(), $crate::config::ConfigError> {
                $($($crate::config::check::range($section, stringify!($key), &self.$key, &$range)?;)?)+
                Ok(())
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }
    };
}

pub(crate) use section;
