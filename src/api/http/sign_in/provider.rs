//! Redirects a browser to an OpenID Connect provider and back. The `state` contains the request that waits for consent,
//! sealed with its expiry and the browser's cookie: the server stores nothing meanwhile, and no other browser can bring
//! the answer.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use secrecy::ExposeSecret as _;
use uuid::Uuid;

use super::{
    NO_STORE, address,
    authorize::{self, check_seal, cookie, seal},
    consent,
    form::Form,
};
use crate::services::sign_in::{Refusal, SignIn};

const WHAT: &str = "provider";

/// Sends the browser to the provider.
pub(super) async fn leave(
    sign_in: &SignIn,
    query: &str,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<Response, Refusal> {
    let Some(browser) = cookie(sign_in, headers) else { return Ok(consent::foreign()) };
    // Two requests of one browser have different states.
    let once = Uuid::new_v4().simple();
    let sealed = format!("{once}.{query}");
    let state = format!("{}.{}", seal(sign_in, WHAT, &browser, &sealed), BASE64_URL_SAFE_NO_PAD.encode(sealed));
    let location = HeaderValue::try_from(sign_in.to_provider(&state, &browser, from).await?);
    let mut response = (StatusCode::SEE_OTHER, [NO_STORE]).into_response();
    let location = location.map_err(|_| Refusal::InvalidRequest("the request is too long"))?;
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

/// The provider's answer.
pub(super) async fn back(State(sign_in): State<Arc<SignIn>>, request: Request) -> Result<Response, Refusal> {
    let from = address(&request);
    let form = Form::read(request.uri().query().unwrap_or_default().as_bytes());
    let state = form.text("state");
    let Some(browser) = cookie(&sign_in, request.headers()) else { return Ok(consent::foreign()) };
    let Some(query) = opened(&sign_in, &state, &browser) else { return Ok(consent::foreign()) };
    let asked = authorize::read(&sign_in, &query, from).await?;
    let (Ok(consent), Some(code)) = (&asked.consent, form.get("code")) else {
        return authorize::back(&sign_in, &asked.redirect, asked.state.as_deref(), &Err(Refusal::AccessDenied));
    };
    let person = sign_in.from_provider(code, form.get("iss"), (&state, &browser), from).await?;
    let code = sign_in.consent_as(consent, person).await?;
    let code = Ok(code.expose_secret().to_owned());
    authorize::back(&sign_in, &asked.redirect, asked.state.as_deref(), &code)
}

/// The request in a state, if it was given to this browser, lately.
fn opened(sign_in: &SignIn, state: &str, browser: &str) -> Option<String> {
    let (seal, sealed) = state.rsplit_once('.')?;
    let sealed = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(sealed).ok()?).ok()?;
    check_seal(sign_in, WHAT, browser, seal, &sealed)?;
    sealed.split_once('.').map(|(_, query)| query.to_owned())
}
