//! JSON from outside, walked once before anything is made of it: serde would take the last of two equal keys, and a tree of
//! small values takes many times the memory of its text. Keeps nothing.

use std::{cell::Cell, collections::HashSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor},
};

/// Whether a text is one JSON value without a key twice in one object, of at most so many values (keys count too).
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
            if !seen.insert(key) {
                return Err(A::Error::custom("the same key twice in one object"));
            }
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::nouns::long::rounds;

    const ROOM: usize = 1000;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(rounds(256, 100_000)))]

        /// Whatever passes is JSON, and what is no JSON does not pass.
        #[test]
        fn fuzz_bodies(body in prop_oneof![any::<Vec<u8>>(), r#"[\[\]{}",:0-9a\\u \-.e]{0,60}"#.prop_map(String::into_bytes)]) {
            let read = serde_json::from_slice::<Value>(&body);
            match check(&body, ROOM) {
                Ok(()) => prop_assert!(read.is_ok()),
                Err(error) => prop_assert!(read.is_err() || reason(&error).contains("the same key twice"), "{error}"),
            }
        }
    }
}
