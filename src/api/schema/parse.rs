//! Members of a request into its struct. What is wrong is named by its path, in a sentence that says what to do.
//!
//! serde reads the struct and `serde_path_to_error` finds the path; the deserializer below supplies the error type,
//! since `serde_json`'s own holds a text only. An unknown name is reported before a missing one: it is usually its
//! misspelling.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error, Expected, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Map, Value};

use super::json_schema;
use crate::{
    domain::{ConversationId, Environment, Failure, Language, Limits, Principal, RunId, error::Operation},
    ports::history::{EndWord, Notable},
    services::admin::{SizeCursor, Span},
};

/// How much of an unknown name is repeated in an answer, in characters, and of a path, in which names of a client's own
/// can stand, as those of variables.
const NAME_CHARS_MAX: usize = 40;
const PATH_CHARS_MAX: usize = 120;

/// Above this size, in bytes, work that is proportional to a body leaves the async threads.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// Where members come from, which decides what is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Arguments or a body. Unknown members are refused.
    Json,
    /// A query: as [`Source::Json`], but every value is a text.
    Query,
    /// A body whose unknown members are ignored.
    Lenient,
}

/// What is wrong with a member, or within it. Each surface has its own sentences about it.
#[derive(Debug, thiserror::Error)]
#[error("a member is wrong")]
pub enum Invalid {
    Unknown { name: String, known: &'static [&'static str] },
    Missing { name: &'static str },
    Type { found: &'static str, expected: &'static str, optional: bool },
    Rule { why: String },
}

/// Arguments of an operation.
///
/// # Errors
/// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
pub fn parse<T: DeserializeOwned + JsonSchema>(members: Map<String, Value>, source: Source) -> Result<T, Failure> {
    read(members, source).map_err(|(path, wrong)| match wrong {
        Invalid::Unknown { name, known } => Failure::argument(&path, unknown(&name, known)),
        Invalid::Missing { .. } => missing::<T>(&path),
        Invalid::Type { found, expected, .. } => Failure::argument(&path, format!("it is {found}: give {expected}")),
        Invalid::Rule { why } => Failure::argument(&path, why),
    })
}

/// As [`parse`], with the path of what is wrong, for surfaces with sentences of their own.
///
/// # Errors
/// The path and what is wrong there.
pub fn read<T: DeserializeOwned>(members: Map<String, Value>, source: Source) -> Result<T, (String, Invalid)> {
    let members = Json { value: Value::Object(members), source, optional: false };
    serde_path_to_error::deserialize(members).map_err(|error| {
        let path = Some(error.path().to_string()).filter(|path| path != ".").unwrap_or_default();
        let path: String = path.escape_debug().take(PATH_CHARS_MAX).collect();
        let wrong = error.into_inner();
        let name = match &wrong {
            Invalid::Unknown { name, .. } => name.escape_debug().take(NAME_CHARS_MAX).collect(),
            Invalid::Missing { name } => (*name).to_owned(),
            Invalid::Type { .. } | Invalid::Rule { .. } => return (path, wrong),
        };
        (if path.is_empty() { name } else { format!("{path}.{name}") }, wrong)
    })
}

/// Runs work that takes time in proportion to `bytes`: on a blocking thread when they are many.
///
/// # Panics
/// When `work` does.
pub async fn by_size<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= INLINE_BYTES_MAX {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// How many items of a list are wanted.
///
/// # Errors
/// [`crate::domain::error::Code::InvalidArgument`] unless it is from 1 to `max`.
pub fn item_limit(wanted: Option<u64>, default: u64, max: u64) -> Result<usize, Failure> {
    let limit = wanted.unwrap_or(default);
    let fits = usize::try_from(limit).ok().filter(|_| (1..=max).contains(&limit));
    fits.ok_or_else(|| Failure::argument("limit", format!("it must be a whole number from 1 to {max}")))
}

fn missing<T: JsonSchema>(path: &str) -> Failure {
    let schema = json_schema::of::<T>(false);
    let about = schema["properties"][path]["description"].as_str().unwrap_or_default().replace('@', "");
    let about = about.split_once(". ").map_or(about.trim_end_matches('.'), |(first, _)| first);
    let about = if about.is_empty() { String::new() } else { format!(". {about}.") };
    let failure = Failure::argument(path, format!("it is missing: give it{about}"));
    match path {
        "language" => failure.see(Operation::ListRunners),
        _ => failure,
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let near = known.iter().find(|known| {
        let (name, known) = (plain(name), plain(known));
        name == known || (name.len() > 2 && (known.starts_with(&name) || name.starts_with(&known)))
    });
    match (near, known) {
        (Some(near), _) => format!("there is no such argument: write `{near}`"),
        (None, []) => "there is no such argument: this operation takes none".to_owned(),
        (None, known) => format!("there is no such argument: the arguments are {}", known.join(", ")),
    }
}

/// A number such as 5.0: JSON Schema counts it as an integer. Not one that floating point may have rounded.
fn whole(value: &Value) -> Option<u64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(number))?;
    format!("{number:.0}").parse().ok()
}

/// Seconds, with a fraction, as a time limit and nothing else.
///
/// # Errors
/// [`crate::domain::error::Code::InvalidArgument`] unless it is more than 0.
pub fn time_limit(argument: &str, seconds: f64) -> Result<Limits, Failure> {
    let wall = Duration::try_from_secs_f64(seconds).map_or(None, |wall| Some(wall.as_millis()).filter(|ms| *ms > 0));
    let wall_ms = match wall {
        Some(wall_ms) => u64::try_from(wall_ms).unwrap_or(u64::MAX),
        // More seconds than a duration can hold.
        None if seconds > 1.0 => u64::MAX,
        None => return Err(Failure::argument(argument, "it must be more than 0 seconds")),
    };
    Ok(Limits { wall_ms, ..Limits::UNBOUNDED })
}

/// Makes types readable that are texts with a rule of their own, which is their `FromStr`. Their schema is that of any
/// text; of a type that is read already it is that of another one.
macro_rules! text {
    (schema $name:ty = $like:ty) => {
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                <$like>::schema_name()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <$like>::json_schema(generator)
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

            $crate::api::schema::parse::text!(schema $name = String);
        )+
    };
}
pub(super) use text;

text!(schema Language = String);
text!(schema Environment = BTreeMap<String, String>);
text!(ConversationId, RunId, Principal, EndWord, Notable, SizeCursor, Span);

/// A value with typed errors. Null counts as absent.
struct Json {
    value: Value,
    source: Source,
    optional: bool,
}

impl Json {
    fn wrong(&self, expected: &'static str) -> Invalid {
        let found = match &self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        Invalid::Type { found, expected, optional: self.optional }
    }

    /// A text of a query as the value that it stands for.
    fn parsed<T: FromStr>(&self) -> Option<T> {
        self.value.as_str().filter(|_| self.source == Source::Query).and_then(|text| text.parse().ok())
    }
}

impl IntoDeserializer<'_, Invalid> for Json {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Json {
    type Error = Invalid;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        let source = self.source;
        let inside = move |value| Json { value, source, optional: false };
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(flag),
            Value::Number(number) => number.deserialize_any(visitor).map_err(Invalid::custom),
            Value::String(text) => visitor.visit_string(text),
            Value::Array(all) => visitor.visit_seq(SeqDeserializer::new(all.into_iter().map(inside))),
            Value::Object(members) => {
                let members = members.into_iter().map(|(name, value)| (name, inside(value)));
                visitor.visit_map(MapDeserializer::new(members))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(Self { optional: true, ..self }),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        let flag = self.value.as_bool().or_else(|| self.parsed());
        visitor.visit_bool(flag.ok_or_else(|| self.wrong("true or false"))?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        // `u64::from_str` takes a plus sign too.
        let digits = self.value.as_str().is_none_or(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let number = self.value.as_u64().or_else(|| whole(&self.value)).or_else(|| self.parsed().filter(|_| digits));
        visitor.visit_u64(number.ok_or_else(|| self.wrong("a whole number from 0 up"))?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        let number = self.value.as_f64().or_else(|| self.parsed()).filter(|number| number.is_finite());
        visitor.visit_f64(number.ok_or_else(|| self.wrong("a number"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        match self.value {
            Value::String(text) => visitor.visit_string(text),
            _ => Err(self.wrong("a string")),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        if self.value.is_array() { self.deserialize_any(visitor) } else { Err(self.wrong("an array")) }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Invalid> {
        if self.value.is_object() { self.deserialize_any(visitor) } else { Err(self.wrong("an object")) }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Invalid> {
        let Value::Object(mut members) = self.value else { return Err(self.wrong("an object")) };
        let stranger = members.keys().find(|name| !known.contains(&name.as_str()));
        if let Some(name) = stranger.filter(|_| self.source != Source::Lenient) {
            return Err(Invalid::Unknown { name: name.clone(), known });
        }
        members.retain(|_, value| !value.is_null());
        Self { value: Value::Object(members), ..self }.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Invalid> {
        match self.value {
            Value::String(text) => visitor.visit_enum(text.into_deserializer()),
            _ => Err(self.wrong("a string")),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 char bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct identifier ignored_any
    }
}

impl Error for Invalid {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Rule { why: why.to_string() }
    }

    /// Repeats no text: it may be long, or a secret.
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = if matches!(found, Unexpected::Str(_)) { Unexpected::Other("string") } else { found };
        Self::custom(format_args!("invalid type: {found}, expected {expected}"))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::Missing { name }
    }

    fn unknown_variant(_: &str, known: &'static [&'static str]) -> Self {
        let known: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
        Self::Rule { why: format!("it is neither {}: give one of them", known.join(" nor ")) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{arguments::RunCode, network::PolicyBody, tools},
        *,
    };

    #[test]
    fn time_limits_have_fractions_and_are_more_than_nothing() {
        let wall_ms = |seconds| time_limit("timeout", seconds).map(|limits| limits.wall_ms);
        for (seconds, want) in [(2.5, 2500), (1.0, 1000), (0.001, 1), (1e300, u64::MAX), (1e17, u64::MAX)] {
            assert_eq!(wall_ms(seconds).ok(), Some(want), "{seconds}");
        }
        for wrong in [0.0, -1.0, 0.000_1, f64::NAN, f64::NEG_INFINITY] {
            assert!(wall_ms(wrong).expect_err("refused").message.contains("timeout"), "{wrong}");
        }
    }

    #[test]
    fn refusal_repeats_no_value_and_little_of_a_name() {
        let refused = |env: Value| {
            let members = Map::from_iter([("env".to_owned(), env)]);
            let failure = parse::<RunCode>(members, Source::Json).expect_err("refused");
            assert!(failure.message.len() < 400 && !failure.message.contains("hidden"), "{:.900}", failure.message);
            assert!(failure.argument.is_some_and(|name| name.len() < 400));
            failure.message
        };
        let secret = json!("KEY=hidden".repeat(10_000));
        assert_eq!(refused(secret.clone()), "env: it is a string: give an object");
        assert_eq!(refused(json!([secret])), "env: it is an array: give an object");
        assert_eq!(refused(json!({"KEY": [secret]})), "env.KEY: it is an array: give a string");
        let name = refused(json!({"\u{1b}".repeat(10_000): 1}));
        assert!(name.starts_with("env.\\u{1b}") && name.ends_with("it is a number: give a string"), "{name}");
        let ports = Map::from_iter([("ports".to_owned(), json!([secret]))]);
        let why = parse::<PolicyBody>(ports, Source::Json).expect_err("refused").message;
        assert_eq!(why, "ports[0]: invalid type: string, expected u16");
    }

    #[test]
    fn missing_member_is_named_by_its_path_also_where_it_is_not_described() {
        let why = parse::<tools::GetToolSource>(Map::new(), Source::Json).expect_err("refused").message;
        assert_eq!(why, "server: it is missing: give it");
        let rule = Map::from_iter([("server".to_owned(), json!({"rules": [{}]}))]);
        let why = parse::<tools::ToolServerBody>(rule, Source::Json).expect_err("refused").message;
        assert_eq!(why, "server.rules[0].tool: it is missing: give it");
    }

    #[tokio::test]
    async fn large_work_leaves_the_async_thread() {
        let here = std::thread::current().id();
        assert_eq!(by_size(INLINE_BYTES_MAX, || std::thread::current().id()).await, here);
        assert_ne!(by_size(INLINE_BYTES_MAX + 1, || std::thread::current().id()).await, here);
    }
}
