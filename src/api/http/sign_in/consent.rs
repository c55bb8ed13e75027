//! The pages that a person sees. They have no scripts, pictures or external resources; texts of a client are escaped.

use axum::{
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

use crate::services::sign_in::{Consent, Refusal, redirect_host};

const STYLE: &str = include_str!("consent.css");

/// A page in which a person allows or refuses.
pub(super) fn page(
    asked: &Consent,
    (query, seal): (&str, &str),
    provider: Option<&str>,
    refusal: Option<Refusal>,
) -> Response {
    let name = escaped(&asked.client.name);
    let target = target(&asked.redirect);
    // The owner of that host vouches for the name, and for the address of the answer.
    let published = match asked.client.id.strip_prefix("https://").and_then(|rest| rest.split('/').next()) {
        Some(host) => format!(" <strong>{}</strong> publishes what it says of itself.", escaped(host)),
        None => String::new(),
    };
    let problem = refusal.map_or(String::new(), |refusal| {
        format!(
            "<p class=\"problem\" role=\"alert\" id=\"problem\">Not allowed: {}.</p>",
            escaped(&refusal.to_string())
        )
    });
    let form = format!(
        "<form method=\"post\" action=\"/authorize\">\
         <input type=\"hidden\" name=\"request\" value=\"{}\"><input type=\"hidden\" name=\"seal\" value=\"{}\">",
        escaped(query),
        escaped(seal),
    );
    let label = if provider.is_some() { "Or your token of this server" } else { "Your token of this server" };
    // A form of its own, so that Enter in the field of the other is "Allow".
    let provider = provider.map_or(String::new(), |host| {
        format!(
            "{form}<div class=\"buttons\"><button name=\"decision\" value=\"provider\" data-testid=\"provider\">\
             Allow, and sign in at {}</button></div></form>",
            escaped(host)
        )
    });
    let described = if refusal.is_some() { " aria-invalid=\"true\" aria-describedby=\"problem\"" } else { "" };
    let body = format!(
        "<h1>Connect “{name}”?</h1>\
         <p>{name} asks to use this sandbox server for you. That is the name it gives itself; the answer goes to \
         {target}.{published} Go on only if you have just begun this there.</p>\
         <p>It will be able to do this, as far as you may:</p><ul>\
         <li>run programs in sandboxes, and see their output</li>\
         <li>read, write and delete the files of your conversations</li></ul>{problem}{provider}{form}\
         <label for=\"token\">{label}</label>\
         <input id=\"token\" name=\"token\" type=\"password\" autocomplete=\"current-password\" spellcheck=\"false\" \
         autofocus data-testid=\"token\"{described}>\
         <p class=\"hint\">It is MCP_API_TOKEN, or a token that the operator made for you. The client does not get it. \
         When it is revoked, this connection ends.</p>\
         <div class=\"buttons\"><button name=\"decision\" value=\"allow\" data-testid=\"allow\">Allow</button>\
         <button name=\"decision\" value=\"refuse\" class=\"quiet\" data-testid=\"refuse\">Refuse</button>\
         </div></form>",
    );
    let status = match refusal {
        None => StatusCode::OK,
        Some(Refusal::TooMany) => StatusCode::TOO_MANY_REQUESTS,
        Some(_) => StatusCode::FORBIDDEN,
    };
    answer(status, "Connect a client", &body)
}

/// The page of a request that is answered to no client.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Unavailable | Self::ProviderAway => StatusCode::SERVICE_UNAVAILABLE,
            Self::NotAllowed | Self::Unidentified => StatusCode::FORBIDDEN,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::BAD_REQUEST,
        };
        let body = format!(
            "<h1>This cannot go on</h1><p>The request of the client was not accepted: {}.</p><p>Close this page and \
             begin again in the client.</p>",
            escaped(&self.to_string()),
        );
        answer(status, "Not connected", &body)
    }
}

/// The same for one whose client has an address. The browser goes there, with the error, when its person follows the
/// link.
pub(super) fn refused(client: &str, redirect: &str, link: &str, refusal: Refusal) -> Response {
    let body = format!(
        "<h1>This cannot go on</h1><p>The request of “{}” was not accepted: {}.</p><p>The answer is for {}. If you \
         have just begun this there, <a href=\"{}\">go back with this answer</a>; else close this page.</p>",
        escaped(client),
        escaped(&refusal.to_string()),
        target(redirect),
        escaped(link),
    );
    answer(StatusCode::BAD_REQUEST, "Not connected", &body)
}

/// Where an answer goes.
fn target(redirect: &str) -> String {
    match redirect_host(redirect) {
        Some(host) => format!("a service at <strong>{}</strong>", escaped(&host)),
        None => "a program on <strong>this computer</strong>".to_owned(),
    }
}

/// A form that this browser was not given, or not lately.
pub(super) fn expired() -> Response {
    let body = "<h1>This page is too old</h1><p>The form was not given to this browser, or more than ten minutes ago. \
                Begin again in the client.</p>";
    answer(StatusCode::FORBIDDEN, "Not connected", body)
}

fn answer(status: StatusCode, title: &str, body: &str) -> Response {
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><meta name=\"robots\" content=\"noindex\"><title>{title} – Code sandbox</title>\
         <style>{STYLE}</style></head><body><main>{body}</main></body></html>",
    );
    // Without `form-action`: browsers apply it to where the answer to a form leads, which is the client's address and
    // whatever that leads to. The page has no script, and nothing a client said is markup.
    let style = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!("default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; frame-ancestors 'none'");
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::X_FRAME_OPTIONS, "DENY"),
        // With `no-referrer` browsers say of a form that it comes from `null`.
        (header::REFERRER_POLICY, "same-origin"),
        // Clients that open a window for this page wait for a message from it.
        (HeaderName::from_static("cross-origin-opener-policy"), "unsafe-none"),
    ];
    (status, headers, page).into_response()
}

fn escaped(text: &str) -> String {
    // The ampersand first: the others bring one.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}
