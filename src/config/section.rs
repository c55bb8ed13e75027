//! The macros that make settings, each from one text: a section (a struct, its defaults, its ranges and its
//! documentation), the names that stand alone, sections with keys of the operator's choice, and the whole of them.

/// Makes a struct whose fields are the keys of one section. The doc comment of a field is also its line in
/// `.env.example` and `docs/settings.md`. A range after the default is checked when the settings are loaded.
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
                #[serde(with = "crate::config::value")]
                pub $key: $type,
            )+
        }

        impl $name {
            pub(in crate::config) const SETTINGS: &'static [$crate::config::Setting] = &[
                $($crate::config::Setting {
                    section: $section,
                    key: stringify!($key),
                    default: "",
                    doc: concat!($($doc),+).trim_ascii(),
                },)+
            ];

            pub(in crate::config) fn check_ranges(&self) -> Result<(), $crate::config::ConfigError> {
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

/// Makes the settings whose names stand alone; the doc comment of each is its sentence, as in a section.
macro_rules! named {
    ($($(#[doc = $doc:literal])+ $key:literal = $default:literal,)+) => {
        const NAMED: [Setting; [$($key),+].len()] =
            [$(Setting { section: "", key: $key, default: $default, doc: concat!($($doc),+).trim_ascii() },)+];
    };
}

/// The key of a section whose keys the operator chooses.
pub(super) const ANY_KEY: &str = "<name>";

/// Makes the settings that stand for all keys of such sections.
macro_rules! any_keys {
    ($($(#[doc = $doc:literal])+ $name:ident = $section:literal,)+) => {$(
        pub(super) const $name: $crate::config::Setting = $crate::config::Setting {
            section: $section,
            key: $crate::config::section::ANY_KEY,
            default: "",
            doc: concat!($($doc),+).trim_ascii(),
        };
    )+};
}

/// Makes [`super::Config`] of the names that stand alone and the sections, and what goes through all sections.
macro_rules! sections {
    ($($field:ident: $type:ident,)+) => {
        /// Every setting.
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            #[serde(rename = "mcp_api_token", with = "value")]
            pub api_token: Secret,
            #[serde(with = "value")]
            file_secret: Secret,
            #[serde(rename = "sandbox_root", deserialize_with = "value::deserialize")]
            pub root: PathBuf,
            #[serde(with = "value")]
            pub public_base_url: BaseUrl,
            #[serde(rename = "mcp_http_addr", with = "value")]
            pub http_addr: BindAddr,
            pub docker_host: Option<String>,
            #[serde(with = "value")]
            database_url: Secret,
            #[serde(deserialize_with = "value::deserialize", skip_serializing)]
            tunnel_token: Secret,
            /// By name; see [`Config::shared_folders`].
            pub mounts: BTreeMap<String, String>,
            /// By name; see [`Config::network_policies`].
            pub network: BTreeMap<String, NetworkPolicy>,
            /// By name; see [`Config::secrets`].
            pub secrets: BTreeMap<String, WithSecret<SecretText>>,
            /// By name; see [`Config::tool_servers`].
            pub tools: BTreeMap<String, WithSecret<ServerText>>,
            $(pub $field: $type,)+
        }

        impl Config {
            fn check_ranges(&self) -> Result<(), ConfigError> {
                $(self.$field.check_ranges()?;)+
                Ok(())
            }
        }

        /// Every setting, in the order of documents.
        pub fn settings() -> impl Iterator<Item = Setting> {
            let sections = [$($type::SETTINGS,)+];
            NAMED.into_iter().chain(sections.into_iter().flatten().copied()).chain([MOUNTS, NETWORK, SECRETS, TOOLS])
        }
    };
}

pub(crate) use {any_keys, named, section, sections};
