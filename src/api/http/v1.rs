//! `/v1`: the same operations as the tools, as plain JSON over HTTP. A handler decides nothing: it reads its request,
//! makes one call of a service and maps the answer. Errors are problems (RFC 9457), see [`super::error`].
//!
//! The router must be mounted behind a middleware that puts a `Principal` into the request's extensions.

mod admin;
mod call;
mod conversations;
mod installed;
mod reach;
mod runs;
mod sessions;

use axum::{Router, routing::get};
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::{call::describe_names, runs::page_max};
use super::ApiParts;

fn described() -> OpenApiRouter<ApiParts> {
    OpenApiRouter::new()
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::input))
        .routes(routes!(runs::watch))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::close))
        .routes(routes!(sessions::run_cell))
        .routes(routes!(sessions::interrupt))
        .routes(routes!(sessions::restart))
        .routes(routes!(sessions::complete))
        .routes(routes!(sessions::inspect))
        .routes(routes!(sessions::browse))
        .routes(routes!(installed::check))
        .routes(routes!(installed::list))
        .routes(routes!(installed::module))
        .routes(routes!(conversations::list))
        .routes(routes!(conversations::remove))
        .routes(routes!(conversations::list_files))
        .routes(routes!(conversations::rename))
        .routes(routes!(admin::create_token, admin::list_tokens))
        .routes(routes!(admin::revoke_token))
        .routes(routes!(admin::history))
        .routes(routes!(admin::usage))
        .routes(routes!(admin::owners))
        .routes(routes!(admin::overview))
        .routes(routes!(admin::connections))
        .routes(routes!(admin::end_connection))
        .routes(routes!(admin::allow_subject))
        .routes(routes!(admin::activity))
        .routes(routes!(admin::doctor))
        .routes(routes!(admin::runs))
        .routes(routes!(admin::cancel))
        .routes(routes!(admin::end_session))
        .routes(routes!(reach::policies))
        .routes(routes!(reach::all_decisions))
        .routes(routes!(reach::put_policy, reach::remove_policy))
        .routes(routes!(admin::conversations))
        .routes(routes!(admin::remove_conversation))
        .routes(routes!(reach::decisions))
        .routes(routes!(conversations::install))
        .routes(routes!(installed::list_skills))
        .routes(routes!(installed::get_skill, installed::put_skill, installed::remove_skill))
        .routes(routes!(reach::servers))
        .routes(routes!(reach::search))
        .routes(routes!(reach::source))
        .routes(routes!(reach::approvals))
        .routes(routes!(reach::approval, reach::answer, reach::withdraw))
        .routes(routes!(reach::all_servers))
        .routes(routes!(reach::put_server, reach::remove_server))
        .routes(routes!(conversations::read_archive, conversations::write_archive))
        .routes(routes!(conversations::link_archive))
}

/// The routes.
pub fn router(parts: ApiParts) -> Router {
    let (router, _) = described().split_for_parts();
    // Below `files` everything is a path, slashes too, which the language of the document cannot say.
    let file = get(conversations::read).put(conversations::write).delete(conversations::remove_file);
    let router = router.route("/v1/conversations/{conversationId}/files/{*path}", file);
    router.route("/v1/skills/{name}/files/{*path}", get(installed::skill_file)).with_state(parts)
}

/// What the routes are, for the document.
pub fn document() -> OpenApi {
    let files = described().routes(routes!(conversations::read, conversations::write, conversations::remove_file));
    files.routes(routes!(installed::skill_file)).into_openapi()
}
