//! Members that are texts with a rule of their own, which is their type's `FromStr`.

use crate::{
    domain::{
        id::{ConversationId, Language, RunId},
        owner::Principal,
    },
    ports::history::{EndWord, Notable},
    services::admin::{SizeCursor, Span},
};

/// Makes types readable; their schema is that of any text.
macro_rules! text {
    (schema $name:ty) => {
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                String::schema_name()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                String::json_schema(generator)
            }
        }
    };
    ($($name:ty),+) => {
        $(
            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
                    String::deserialize(reader)?.parse().map_err(serde::de::Error::custom)
                }
            }

            $crate::api::schema::texts::text!(schema $name);
        )+
    };
}
pub(crate) use text;

text!(schema Language);
text!(ConversationId, RunId, Principal, EndWord, Notable, SizeCursor, Span);
