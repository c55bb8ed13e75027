//! JSON from outside, walked once before anything is made of it: serde would take the last of two equal keys, and a tree of
//! small values takes many times the memory of its text. Keeps nothing.

use std::{cell::Cell, collections::HashSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};

/// Keys under which `serde_json` reads a text as the value it holds, past every count.
const PRIVATE: &str = "$serde_json::private::";
const RESERVED: &str = "a key that begins with `$serde_json::private::`, which is not taken";

/// Whether a text is one JSON value of at most so many values (keys count too), without a key twice in one object and
/// without a key that its reader takes for an order to itself.
///
/// # Errors
/// What is wrong, with its place.
pub fn check(body: &[u8], values_max: usize) -> Result<(), serde_json::Error> {
    let left = Cell::new(values_max);
    let mut reader = serde_json::Deserializer::from_slice(body);
    Walk(&left).deserialize(&mut reader).and_then(|()| reader.end())
}

/// Our own words out of serde's sentence, which has the place behind them.
pub fn reason(error: &serde_json::Error) -> String {
    let sentence = error.to_string();
    sentence.rsplit_once(" at line ").map_or(sentence.clone(), |(reason, _)| reason.to_owned())
}

/// Walks one value; counts down what may still come.
#[derive(Clone, Copy)]
struct Walk<'a>(&'a Cell<usize>);

impl Walk<'_> {
    fn count<E: serde::de::Error>(self) -> Result<(), E> {
        let left = self.0.get().checked_sub(1).ok_or_else(|| E::custom("too many values"))?;
        self.0.set(left);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            self.count()?;
            if key.starts_with(PRIVATE) {
                return Err(A::Error::custom(RESERVED));
            }
            if !seen.insert(key) {
                return Err(A::Error::custom("the same key twice in one object"));
            }
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_text_inside_of_a_text_is_not_read() {
        let inside = r#"{"a":[0,0,0,0,0,0,0,0],"a":1}"#;
        let body = json!({ "$serde_json::private::RawValue": inside }).to_string();
        let read: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(read, json!({"a": 1}), "the crate would take the text for what it holds");
        assert_eq!(check(body.as_bytes(), 100).map_err(|error| reason(&error)), Err(RESERVED.to_owned()));
        let deeper = json!([{ "b": { "$serde_json::private::Number": "1" } }]).to_string();
        assert!(check(deeper.as_bytes(), 100).is_err());
    }
}
