//! `/v1`: the same operations as the tools, as plain JSON over HTTP. A handler decides nothing: it reads its request,
//! makes one call of a service and maps the answer. Errors are problems (RFC 9457), see [`super::error`].
//!
//! The router must be mounted behind a middleware that puts a `Principal` into the request's extensions.

mod admin;
mod call;
mod conversations;
mod events;
mod files;
mod history;
mod names;
mod network;
mod runners;
mod runs;
mod sessions;
mod skills;
mod tokens;
mod tools;

use axum::{Router, routing::get};
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::runs::page_max;
use super::ApiParts;

fn described() -> OpenApiRouter<ApiParts> {
    OpenApiRouter::new()
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::cancel))
        .routes(routes!(events::input))
        .routes(routes!(events::watch))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::close))
        .routes(routes!(sessions::run_cell))
        .routes(routes!(sessions::interrupt))
        .routes(routes!(sessions::restart))
        .routes(routes!(sessions::complete))
        .routes(routes!(sessions::inspect))
        .routes(routes!(sessions::browse))
        .routes(routes!(runners::check))
        .routes(routes!(runners::list))
        .routes(routes!(runners::module))
        .routes(routes!(conversations::list))
        .routes(routes!(conversations::remove))
        .routes(routes!(files::list))
        .routes(routes!(files::rename))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
        .routes(routes!(history::list))
        .routes(routes!(history::usage))
        .routes(routes!(admin::owners))
        .routes(routes!(admin::overview))
        .routes(routes!(admin::activity))
        .routes(routes!(admin::doctor))
        .routes(routes!(admin::runs))
        .routes(routes!(admin::cancel))
        .routes(routes!(admin::end_session))
        .routes(routes!(network::policies))
        .routes(routes!(network::all_decisions))
        .routes(routes!(network::put_policy, network::remove_policy))
        .routes(routes!(admin::conversations))
        .routes(routes!(admin::remove_conversation))
        .routes(routes!(network::decisions))
        .routes(routes!(conversations::install))
        .routes(routes!(skills::list))
        .routes(routes!(skills::get, skills::put, skills::remove))
        .routes(routes!(tools::servers))
        .routes(routes!(tools::search))
        .routes(routes!(tools::source))
        .routes(routes!(tools::approvals))
        .routes(routes!(tools::approval, tools::answer, tools::revoke))
        .routes(routes!(tools::list))
        .routes(routes!(tools::put, tools::remove))
        .routes(routes!(files::read_archive, files::write_archive))
        .routes(routes!(files::link_archive))
}

/// The routes.
pub fn router(parts: ApiParts) -> Router {
    let (router, _) = described().split_for_parts();
    // Below `files` everything is a path, slashes too, which the language of the document cannot say.
    let file = get(files::read).put(files::write).delete(files::remove);
    let router = router.route("/v1/conversations/{conversationId}/files/{*path}", file);
    router.route("/v1/skills/{name}/files/{*path}", get(skills::file)).with_state(parts)
}

/// What the routes are, for the document.
pub fn document() -> OpenApi {
    let files = described().routes(routes!(files::read, files::write, files::remove));
    files.routes(routes!(skills::file)).into_openapi()
}
