//! The API's description: made from the routes of `/v1` and `/api/v2`, served, printed by the command line, checked in.

use axum::{Router, http::header, routing::get};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Content, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, Response, ResponseBuilder,
        path::Operation,
        schema::{Schema, SchemaType, Type},
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
        tag::TagBuilder,
    },
};

use super::{
    error::{PistonRefusal, Problem},
    piston, v1,
};
use crate::api::schema::run::RunEvent;

const SCHEME: &str = "token";
const TAGS: [(&str, &str); 5] = [
    ("runs", "Programs that run, ran or wait."),
    ("runners", "The languages that can be run."),
    ("conversations", "The owners of files."),
    ("files", "What programs find in /data, and what they leave there."),
    ("piston", "The interface of Piston, version 2, for programs that were written for it."),
];

/// The whole document.
pub fn document() -> OpenApi {
    let mut document = OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Code Sandbox")
                .version("1")
                .description(Some(
                    "Runs programs in fresh containers without network. The same operations as the MCP tools at /mcp.",
                ))
                .build(),
        )
        .tags(Some(TAGS.map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build())))
        .security(Some([SecurityRequirement::new::<_, [&str; 0], &str>(SCHEME, [])]))
        .build();
    document.merge(v1::document());
    document.merge(piston::document());
    let components = document.components.get_or_insert_default();
    let mut schemas = vec![
        (Problem::name().into_owned(), Problem::schema()),
        (PistonRefusal::name().into_owned(), PistonRefusal::schema()),
        (RunEvent::name().into_owned(), RunEvent::schema()),
    ];
    Problem::schemas(&mut schemas);
    RunEvent::schemas(&mut schemas);
    components.schemas.extend(schemas);
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("MCP_API_TOKEN")).build();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme));
    for (path, item) in &mut document.paths.paths {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
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

/// An argument of a path, a query or a header is there or not; a null is only known to bodies.
fn absent_is_not_null(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && let Some(RefOr::T(Schema::Object(object))) = &mut parameter.schema
            && let SchemaType::Array(types) = &object.schema_type
            && let Some(kind) = types.iter().find(|kind| **kind != Type::Null)
        {
            object.schema_type = SchemaType::Type(kind.clone());
        }
    }
    // A file without bytes is a file, and so is input; HTTP does not tell an empty body from none.
    if matches!(operation.operation_id.as_deref(), Some("writeFile" | "sendInput"))
        && let Some(RefOr::T(body)) = &mut operation.request_body
    {
        body.required = None;
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
    responses.insert("401".to_owned(), response("No token, or another one.").into());
    responses.insert("default".to_owned(), response(about).into());
}

/// `/openapi.json`.
pub fn router() -> Router {
    let text: &'static str = Box::leak(text().into_boxed_str());
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-cache")];
    Router::new().route("/openapi.json", get(move || async move { (headers, text) }))
}
