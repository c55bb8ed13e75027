//! JSON from outside, read in one pass that bounds it: serde would take the last of two equal keys, and a tree of small
//! values takes many times the memory of its text.

use std::{cell::Cell, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value, error::Category};

/// Keys under which `serde_json` reads a text as the value it holds, past every count.
const PRIVATE: &str = "$serde_json::private::";
const RESERVED: &str = "a key that begins with `$serde_json::private::`, which is not accepted";

/// Reads one JSON value of at most `values_max` values (keys count too), without a key twice in one object and without
/// a key that `serde_json` itself interprets.
///
/// # Errors
/// What is wrong, with its position.
pub fn read(body: &[u8], values_max: usize) -> Result<Value, serde_json::Error> {
    walk(body, values_max, usize::MAX)
}

/// Checks as [`read`] does and keeps the scalars of the outer object; objects and lists in it are left empty.
///
/// # Errors
/// As [`read`].
pub fn outline(body: &[u8], values_max: usize) -> Result<Value, serde_json::Error> {
    walk(body, values_max, 1)
}

fn walk(body: &[u8], values_max: usize, levels: usize) -> Result<Value, serde_json::Error> {
    let left = Cell::new(values_max);
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Walk { left: &left, levels: Some(levels) }.deserialize(&mut reader)?;
    reader.end().map(|()| value)
}

/// What is wrong with a body, for its sender.
pub fn complaint(error: &serde_json::Error) -> String {
    let position = format!("line {}, column {}", error.line(), error.column());
    match error.classify() {
        Category::Data => format!("The body holds {} ({position}).", reason(error)),
        Category::Eof => "The body is not JSON: it ends too early.".to_owned(),
        Category::Syntax | Category::Io => format!("The body is not JSON: see {position}."),
    }
}

/// The message without the position that serde appends.
fn reason(error: &serde_json::Error) -> String {
    let sentence = error.to_string();
    sentence.rsplit_once(" at line ").map_or(sentence.clone(), |(reason, _)| reason.to_owned())
}

/// Reads one value and counts down how many may still come.
#[derive(Clone, Copy)]
struct Walk<'a> {
    left: &'a Cell<usize>,
    /// How many levels of containers are kept below this value; `None` when not even a scalar is.
    levels: Option<usize>,
}

impl Walk<'_> {
    fn count<E: Error>(self) -> Result<(), E> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| E::custom("too many values"))?;
        self.left.set(left);
        Ok(())
    }

    fn inside(self) -> Self {
        Self { levels: self.levels.and_then(|levels| levels.checked_sub(1)), ..self }
    }

    fn keep(self, value: impl FnOnce() -> Value) -> Value {
        self.levels.map_or(Value::Null, |_| value())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(self.keep(|| text.into()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let (mut all, inside) = (Vec::new(), self.inside());
        while let Some(value) = seq.next_element_seed(inside)? {
            if inside.levels.is_some() {
                all.push(value);
            }
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (mut members, inside) = (Map::new(), self.inside());
        while let Some(key) = map.next_key::<String>()? {
            self.count()?;
            if key.starts_with(PRIVATE) {
                return Err(A::Error::custom(RESERVED));
            }
            if members.contains_key(&key) {
                return Err(A::Error::custom("the same key twice in one object"));
            }
            let value = map.next_value_seed(inside)?;
            members.insert(key, value);
        }
        if inside.levels.is_none() {
            members.clear();
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn private_keys_are_refused() {
        let inside = r#"{"a":[0,0,0,0,0,0,0,0],"a":1}"#;
        let body = json!({ "$serde_json::private::RawValue": inside }).to_string();
        let parsed: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(parsed, json!({"a": 1}), "the crate would take the text for what it holds");
        assert_eq!(read(body.as_bytes(), 100).map_err(|error| reason(&error)), Err(RESERVED.to_owned()));
        let deeper = json!([{ "b": { "$serde_json::private::Number": "1" } }]).to_string();
        assert!(outline(deeper.as_bytes(), 100).is_err());
    }

    #[test]
    fn outline_keeps_the_scalars_of_the_outer_object() {
        let body = br#"{"a":1,"b":"x","c":{"d":[1]},"e":[1,2],"f":null}"#;
        assert_eq!(outline(body, 100).expect("JSON"), json!({"a": 1, "b": "x", "c": {}, "e": [], "f": null}));
        assert!(outline(br#"{"c":{"d":1,"d":2}}"#, 100).is_err() && outline(b"[1,2,3]", 3).is_err());
    }
}
