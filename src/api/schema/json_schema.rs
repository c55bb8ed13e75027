//! JSON Schemas of arguments and results, for clients and documents.
//!
//! Input schemas are written out: they must be portable (one type a value, no references, no `null`), since clients hand
//! them on to model APIs that know only a part of the language. Output schemas come from the structs.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{ErrorBody, arguments::WAIT_S_MAX};
use crate::domain::id::{CONVERSATION_ID_CHARS_MAX, LANGUAGE_CHARS_MAX};

/// A JSON Schema, which is an object.
pub type Schema = Map<String, Value>;

/// What the input schemas tell of this server.
#[derive(Debug, Clone, Copy)]
pub struct InputFacts<'a> {
    /// The languages known now.
    pub languages: &'a [String],
    /// The longest program, in bytes.
    pub code_bytes_max: u64,
    /// How much one call reads, in bytes.
    pub read_bytes_max: u64,
    /// How much one call writes, in bytes.
    pub write_bytes_max: u64,
    /// How long a call waits for its run where it does not say, in seconds.
    pub wait_s_default: u64,
}

/// Arguments of `run_code`.
pub fn run_code(facts: &InputFacts<'_>) -> Schema {
    let known = if facts.languages.is_empty() {
        "Call list_runners for the names.".to_owned()
    } else {
        format!("Installed now: {}. list_runners tells more about each.", facts.languages.join(", "))
    };
    let properties = json!({
        "conversationId": conversation(),
        "language": {
            "type": "string", "minLength": 1, "maxLength": LANGUAGE_CHARS_MAX,
            "description": format!("The language of the program. {known}"),
        },
        "code": {
            "type": "string", "minLength": 1, "maxLength": facts.code_bytes_max,
            "description": "The whole program, as in a file. Each run is a fresh process: define and import what it \
                            needs again, and keep data in files in /data.",
        },
        "waitSeconds": wait(facts, "How many seconds to wait for the program's end. One that takes longer goes on: the \
                                    result then has its state, its output so far and its runId for get_run. 0 returns at \
                                    once."),
        "detach": {
            "type": "boolean",
            "description": "true: the run goes on when this call is broken off, and get_run fetches it. false: it is then \
                            cancelled. Leave it out for the server's own choice.",
        },
    });
    object(properties, &["conversationId", "language", "code"])
}

/// Arguments of `get_run`.
pub fn get_run(facts: &InputFacts<'_>) -> Schema {
    let properties = json!({
        "runId": run_id(),
        "afterEvent": {
            "type": "integer", "minimum": 0, "default": 0,
            "description": "While the program runs, show only what it printed after this event: the newestEvent of the \
                            result before. When it has ended, the result is whole in any case.",
        },
        "waitSeconds": wait(facts, "How many seconds to wait for the program's end; 0 returns at once."),
    });
    object(properties, &["runId"])
}

/// Arguments of `cancel_run`.
pub fn cancel_run() -> Schema {
    object(json!({"runId": run_id()}), &["runId"])
}

/// Arguments of `list_runners`.
pub fn list_runners() -> Schema {
    object(json!({}), &[])
}

/// Arguments of `list_files`.
pub fn list_files() -> Schema {
    object(json!({"conversationId": conversation()}), &["conversationId"])
}

/// Arguments of `read_file`.
pub fn read_file(facts: &InputFacts<'_>) -> Schema {
    let properties = json!({
        "conversationId": conversation(),
        "path": path("Path of the file relative to /data, such as out/report.csv."),
        "pathEncoded": path_encoded(),
        "offset": {
            "type": "integer", "minimum": 0, "default": 0,
            "description": format!("First byte to read. One call reads up to {} bytes; the result's nextOffset says where \
                                    to go on.", facts.read_bytes_max),
        },
    });
    object(properties, &["conversationId"])
}

/// Arguments of `write_file`.
pub fn write_file(facts: &InputFacts<'_>) -> Schema {
    let properties = json!({
        "conversationId": conversation(),
        "path": path("Path of the file relative to /data, such as input/table.csv. Missing folders are made."),
        "content": {
            "type": "string",
            "description": format!("The whole content, up to {} bytes. It replaces the file.", facts.write_bytes_max),
        },
        "encoding": {
            "type": "string", "enum": ["utf-8", "base64"], "default": "utf-8",
            "description": "How content is written: utf-8 for text, base64 for any bytes.",
        },
    });
    object(properties, &["conversationId", "path", "content"])
}

/// Arguments of `delete_file`.
pub fn delete_file() -> Schema {
    let properties = json!({
        "conversationId": conversation(),
        "path": path("Path of the file relative to /data, such as out/report.csv."),
        "pathEncoded": path_encoded(),
    });
    object(properties, &["conversationId"])
}

fn conversation() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": CONVERSATION_ID_CHARS_MAX,
        "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$",
        "description": "Names the conversation whose files are /data. Choose one name (letters, digits, . _ -) and give \
                        the same in every call, so that files are found again; another name sees other files.",
    })
}

fn run_id() -> Value {
    json!({
        "type": "string", "pattern": "^run-[0-9a-f]{32}$",
        "description": "The runId of a result of run_code or get_run.",
    })
}

fn wait(facts: &InputFacts<'_>, description: &str) -> Value {
    json!({
        "type": "integer", "minimum": 0, "maximum": WAIT_S_MAX, "default": facts.wait_s_default,
        "description": description,
    })
}

fn path(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn path_encoded() -> Value {
    json!({
        "type": "string",
        "description": "Instead of path: the pathEncoded of a listed file whose name cannot be written as plain text.",
    })
}

fn object(properties: Value, required: &[&str]) -> Schema {
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties);
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

/// The schema of a result: `T`, or an error of ours.
///
/// Some clients hold the structured content of errors against it too (the TypeScript SDK up to 1.x), so the error's form
/// is part of it: either all of what `T` requires is there, or `error` is.
pub fn output<T: JsonSchema>() -> Schema {
    let mut schema = of::<T>();
    let required = schema.remove("required").unwrap_or_else(|| json!([]));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert("error".to_owned(), Value::Object(of::<ErrorBody>()));
    }
    schema.insert("anyOf".to_owned(), json!([{"required": required}, {"required": ["error"]}]));
    schema
}

fn of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    plain(&mut schema);
    match schema {
        Value::Object(schema) => schema,
        _ => Schema::new(),
    }
}

/// Takes away what tells a client nothing: Rust's names of types, and formats that no validator knows.
fn plain(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.retain(|key, value| !(matches!(key.as_str(), "title" | "format") && value.is_string()));
            map.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{super::arguments, *};

    fn inputs() -> [(Schema, &'static [&'static str]); 8] {
        let facts = InputFacts {
            languages: &["python".to_owned()],
            code_bytes_max: 10,
            read_bytes_max: 20,
            write_bytes_max: 30,
            wait_s_default: 40,
        };
        [
            (run_code(&facts), arguments::RUN_CODE),
            (get_run(&facts), arguments::known_run::GET_RUN),
            (cancel_run(), arguments::known_run::CANCEL_RUN),
            (list_runners(), arguments::LIST_RUNNERS),
            (list_files(), arguments::LIST_FILES),
            (read_file(&facts), arguments::READ_FILE),
            (write_file(&facts), arguments::WRITE_FILE),
            (delete_file(), arguments::DELETE_FILE),
        ]
    }

    #[test]
    fn the_schemas_and_the_parser_know_the_same_arguments() {
        for (schema, known) in inputs() {
            let mut described: Vec<_> = schema["properties"].as_object().expect("properties").keys().collect();
            let mut known = known.to_vec();
            described.sort();
            known.sort_unstable();
            assert_eq!(described, known);
        }
    }

    #[test]
    fn input_schemas_are_portable() {
        for (schema, _) in inputs() {
            let text = Value::Object(schema).to_string();
            for word in ["$ref", "$defs", "anyOf", "oneOf", "null", "\"type\":["] {
                assert!(!text.contains(word), "{word} in {text}");
            }
        }
    }

    #[test]
    fn an_output_is_the_result_or_an_error() {
        let schema = output::<super::super::Deleted>();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["anyOf"], json!([{"required": ["deleted"]}, {"required": ["error"]}]));
        assert_eq!(schema["properties"]["error"]["required"], json!(["code", "message", "requestId"]));
        let run = Value::Object(output::<super::super::report::RunReport>());
        assert!(!run.to_string().contains("$ref") && !run.to_string().contains("uint"), "{run}");
        let required = &run["properties"]["outcome"]["required"];
        assert_eq!(*required, json!(["ended", "sentence"]));
        assert_eq!(run["properties"]["outcome"]["properties"]["ended"]["enum"][7], "cancelled");
    }
}
