//! The API's description: made from the routes of `/v1` and `/api/v2`, served, printed by the command line, checked in.

use axum::{Router, http::header, routing::get};
use utoipa::{
    OpenApi as _,
    openapi::{
        Content, OpenApi, Ref, RefOr, Response, ResponseBuilder,
        path::Operation,
        schema::{Schema, SchemaType, Type},
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

use super::{
    error::{PistonRefusal, Problem, status},
    piston, v1,
};
use crate::{
    api::schema::{NotableWord, event::RunEvent},
    domain::{Code, Ended, Figures, Limits, Outcome},
    ports::history::EndWord,
};

/// The document without its operations.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Code Sandbox",
        version = "1",
        description = "Runs programs in fresh containers. The same operations as the MCP tools at /mcp.",
        contact(name = "The operator of this server"),
        license(name = "MIT", identifier = "MIT"),
    ),
    servers((url = "/", description = "This server.")),
    security(("token" = [])),
    // What no operation names as its body: refusals, the JSON inside an event's data, a word of a query.
    components(schemas(Problem, PistonRefusal, RunEvent, NotableWord)),
    tags(
        (name = "runs", description = "Programs that run, ran or wait."),
        (name = "sessions", description = "Sandboxes that keep an interpreter between the cells of a conversation."),
        (name = "runners", description = "The languages that can be run."),
        (name = "conversations", description = "Sets of files that are kept from one run or session to the next."),
        (name = "files", description = "What programs find in /data, and what they leave there."),
        (name = "skills", description = "Folders of instructions and scripts, which programs find in /skills."),
        (name = "tools", description = "Tools of MCP servers, which programs call, and questions about their calls."),
        (name = "tokens", description = "Access tokens: their owner, and what they may do."),
        (name = "network", description = "What your programs connected to."),
        (name = "history", description = "What all owners ran and used."),
        (name = "connections", description = "The clients that are signed in."),
        (name = "admin", description = "What operators see of all owners, and what they can end."),
        (name = "piston", description = "The interface of Piston, version 2, for programs that were written for it."),
    ),
)]
struct Described;

/// Schemas with members that may be null. In all others an optional member is there or not.
const WITH_NULLS: [&str; 11] = [
    "CheckedProgram",
    "CreateToken",
    "ExecuteFile",
    "PistonExecute",
    "PistonRefusal",
    "PistonStage",
    "PolicyBody",
    "RuleText",
    "ServerText",
    "TokenLimitsBody",
    "ToolServerBody",
];

/// The beginning of the document of errors.
const CODES: &str = "\
# Errors and outcomes

<!-- Made from the code: `UPDATE=1 cargo test --test it docs` rewrites it. -->

A program that fails is a result, not an error. An error is the server's or the request's. It has a code that does not
change, a sentence that says what to do, and the id of the request, which is in the server's log. The sentence may
change: programs decide by the code.

## Codes

The status is that of `/v1`. An MCP tool answers with `isError` and the sentence.

| code | status | meaning | what to do |
| --- | --- | --- | --- |
";

const OUTCOMES: &str = "
## Outcomes

How a program ended, with the sentence at the default limits.

| word | sentence |
| --- | --- |
";

const OTHERS: &str = "
A run without an outcome has one of two more words in the [history](history.md). Metrics have the first, too.

| word | meaning |
| --- | --- |
";

/// The whole document.
pub fn document() -> OpenApi {
    let mut document = Described::openapi();
    document.merge(v1::document());
    document.merge(piston::document());
    let components = document.components.get_or_insert_default();
    for (name, schema) in &mut components.schemas {
        if let RefOr::T(Schema::Object(object)) = schema
            && !WITH_NULLS.contains(&name.as_str())
        {
            object.properties.values_mut().for_each(never_null);
        }
    }
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("MCP_API_TOKEN, or a token of `/v1/tokens`"))
        .build();
    components.add_security_scheme("token", SecurityScheme::Http(scheme));
    for (path, item) in &mut document.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            v1::describe_names(path, operation);
            refusals(path, operation);
            absent_is_not_null(operation);
        }
    }
    document
}

/// The document as it is served and checked in.
pub fn text() -> String {
    let mut text = document().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Every machine code and every outcome, as a document for people.
pub fn errors() -> String {
    let mut text = CODES.to_owned();
    for code in Code::ALL {
        let (meaning, remedy) = code.about();
        text.extend([format!("| `{code}` | {} | {meaning} | {remedy} |\n", status(*code).as_u16())]);
    }
    text += OUTCOMES;
    for ended in Ended::EXAMPLES {
        let figures = Figures { stderr_bytes: 1, ..Figures::default() };
        let outcome = Outcome { ended, oom_killed: false, limits: Limits::default(), figures };
        text.extend([format!("| `{}` | {} |\n", ended.word(), outcome.sentence())]);
    }
    text += OTHERS;
    text.extend(EndWord::OTHERS.map(|(word, meaning)| format!("| `{word}` | {meaning} |\n")));
    text
}

/// An argument of a path, a query or a header is there or not; a null is only known to bodies.
fn absent_is_not_null(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter {
            parameter.schema.iter_mut().for_each(never_null);
        }
    }
    // A file without bytes is a file, and so is input; HTTP does not distinguish an empty body from none. A session has
    // defaults for all that its body may say.
    if matches!(operation.operation_id.as_deref(), Some("writeFile" | "sendInput" | "createSession"))
        && let Some(RefOr::T(body)) = &mut operation.request_body
    {
        body.required = None;
    }
}

/// What may be absent is written as an `Option`, of which the schema has a null.
fn never_null(schema: &mut RefOr<Schema>) {
    let null = SchemaType::Type(Type::Null);
    let is_null = |item: &RefOr<Schema>| matches!(item, RefOr::T(Schema::Object(object)) if object.schema_type == null);
    let kinds = match schema {
        RefOr::T(Schema::Object(object)) => &mut object.schema_type,
        RefOr::T(Schema::Array(array)) => &mut array.schema_type,
        RefOr::T(Schema::OneOf(either)) => {
            if either.items.iter().any(is_null)
                && let Some(kind) = either.items.iter().find(|item| !is_null(item)).cloned()
            {
                *schema = kind;
            }
            return;
        }
        _ => return,
    };
    if let SchemaType::Array(types) = kinds
        && let Some(kind) = types.iter().find(|kind| **kind != Type::Null).cloned()
    {
        *kinds = SchemaType::Type(kind);
    }
}

/// What every operation may answer beside its own.
fn refusals(path: &str, operation: &mut Operation) {
    let (media, schema, about) = if path.starts_with("/v1") {
        ("application/problem+json", "Problem", "A problem (RFC 9457): `code` says which, `detail` what to do.")
    } else {
        ("application/json", "PistonRefusal", "Refused: `message` says why.")
    };
    let content = || Content::new(Some(RefOr::Ref(Ref::from_schema_name(schema))));
    let response =
        |about: &str| -> Response { ResponseBuilder::new().description(about).content(media, content()).build() };
    let responses = &mut operation.responses.responses;
    responses.insert("401".to_owned(), response("The token is missing or not valid.").into());
    responses.insert("default".to_owned(), response(about).into());
}

/// `/openapi.json`.
pub fn router() -> Router {
    let text: &'static str = Box::leak(text().into_boxed_str());
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    Router::new().route("/openapi.json", get(move || async move { (headers, text) }))
}
