//! JSON Schemas of arguments and results, made from the structs by schemars.
//!
//! Those of arguments are portable (one type a value, no references, no `null`): clients hand them on to model APIs
//! that know only a part of the language.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::ErrorBody;

/// A JSON Schema, which is an object.
pub type Schema = Map<String, Value>;

/// The schema of arguments.
pub fn input<T: JsonSchema>() -> Schema {
    let mut schema = of::<T>(false);
    schema.entry("properties").or_insert_with(|| json!({}));
    schema.remove("description");
    schema
}

/// The schema of a result: `T`, or an error of ours.
///
/// Some clients validate the structured content of errors against it too (the TypeScript SDK up to 1.x), so the error's
/// form is part of it: either all of what `T` requires is there, or `error` is.
pub fn output<T: JsonSchema>() -> Schema {
    let mut schema = of::<T>(true);
    let required = schema.remove("required").unwrap_or_else(|| json!([]));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("error".to_owned(), Value::Object(of::<ErrorBody>(true)));
    }
    schema.insert("anyOf".to_owned(), json!([{"required": required}, {"required": ["error"]}]));
    schema
}

/// The schema of a struct as it is serialized or deserialized.
pub(super) fn of<T: JsonSchema>(serialized: bool) -> Schema {
    let settings = SchemaSettings::draft2020_12();
    let settings = if serialized { settings.for_serialize() } else { settings.for_deserialize() };
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    match schema {
        Value::Object(schema) => schema,
        _ => Schema::new(),
    }
}

/// Removes what is of no use to a client: names of Rust types, formats that no validator knows, line ends of the
/// source, and the `null` of a member that may be absent.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, value| match key.as_str() {
                "title" | "format" => !value.is_string(),
                "default" => !value.is_null(),
                _ => true,
            });
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|kind| kind != "null");
                if let [only] = &types[..] {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(words)) = map.get_mut("enum") {
                words.retain(|word| !word.is_null());
            }
            if let Some(Value::Array(mut kinds)) = map.remove("anyOf") {
                kinds.retain(|kind| kind["type"] != "null");
                match &mut kinds[..] {
                    [Value::Object(only)] => {
                        for (key, value) in std::mem::take(only) {
                            map.entry(key).or_insert(value);
                        }
                    }
                    _ => drop(map.insert("anyOf".to_owned(), Value::Array(kinds))),
                }
            }
            map.values_mut().for_each(simplify);
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Deleted, run::RunReport},
        *,
    };

    #[test]
    fn output_is_the_result_or_an_error() {
        let schema = output::<Deleted>();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["anyOf"], json!([{"required": ["deleted"]}, {"required": ["error"]}]));
        assert_eq!(schema["properties"]["error"]["required"], json!(["code", "message", "requestId"]));
        let run = Value::Object(output::<RunReport>());
        assert!(!run.to_string().contains("$ref") && !run.to_string().contains("uint"), "{run}");
        let required = &run["properties"]["outcome"]["required"];
        assert_eq!(*required, json!(["ended", "sentence"]));
        assert_eq!(run["properties"]["outcome"]["properties"]["ended"]["enum"][7], "cancelled");
    }
}
