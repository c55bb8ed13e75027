//! Jupyter's API under `/jupyter`, for existing clients: kernels are sessions, contents are the files of a
//! conversation. Paths, names and forms are those of Jupyter Server's documentation.
//!
//! Below `/jupyter/c/{conversationId}` everything is in that conversation. Elsewhere each kernel has a conversation of
//! its own, and contents are those of [`CONTENTS`]. The token may come in Jupyter's ways: see [`super::access`].

mod call;
mod channels;
mod contents;
mod kernels;
mod model;
mod sessions;
mod wire;

use axum::{
    Router,
    routing::{get, post},
};

use super::ApiParts;

/// Where the surface is.
pub const ROOT: &str = "/jupyter";
/// The conversation of contents, unless the path names one.
const CONTENTS: &str = "jupyter";

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let api = Router::new()
        .route("/api", get(kernels::version))
        .route("/api/status", get(kernels::status))
        .route("/api/kernelspecs", get(kernels::specs))
        .route("/api/kernelspecs/{name}", get(kernels::spec))
        .route("/api/kernels", get(kernels::list).post(kernels::start))
        .route("/api/kernels/{id}", get(kernels::get).delete(kernels::close))
        .route("/api/kernels/{id}/interrupt", post(kernels::interrupt))
        .route("/api/kernels/{id}/restart", post(kernels::restart))
        .route("/api/kernels/{id}/channels", get(channels::connect))
        .route("/api/sessions", get(sessions::list).post(sessions::create))
        .route("/api/sessions/{id}", get(sessions::get).patch(sessions::change).delete(sessions::remove))
        .route("/api/contents", get(contents::read).post(contents::create))
        .route(
            "/api/contents/{*path}",
            get(contents::read)
                .post(contents::create)
                .put(contents::write)
                .patch(contents::rename)
                .delete(contents::remove),
        )
        .with_state(parts);
    Router::new().nest(ROOT, api.clone()).nest("/jupyter/c/{conversation}", api)
}
