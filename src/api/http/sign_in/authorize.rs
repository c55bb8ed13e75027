//! `/authorize`: checks a request, shows the consent page, and sends the browser back with a code or an error.
//!
//! Anyone may register a client with any address, so a browser is sent there only after its person has decided on the
//! page (RFC 9700, 4.11.2).
//!
//! The server stores nothing of a request that waits for consent. The form holds it, with a seal over the request, its
//! expiry and a cookie, so the form is valid for no other browser or request. A browser that is sent to an OpenID
//! Connect provider takes the request along in `state`, sealed in the same way.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use secrecy::{ExposeSecret as _, SecretString};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use super::{BODY_BYTES_MAX, ClientAddress, Form, NO_STORE, ServerParts, consent};
use crate::{
    domain::text,
    services::sign_in::{self, Consent, Refusal, SignIn},
};

/// How long a page waits for its person.
const PAGE_S: i64 = 600;
/// What a seal is for.
const CONSENT: &str = "consent";
const PROVIDER: &str = "provider";
const ONCE: [&str; 7] =
    ["client_id", "redirect_uri", "response_type", "state", "scope", "code_challenge", "code_challenge_method"];

/// A request that was understood as far as its answer's address.
struct AuthorizeRequest {
    /// What its client calls itself.
    client: String,
    redirect: String,
    state: Option<String>,
    consent: Result<Consent, Refusal>,
}

pub(super) async fn show(State(sign_in): State<Arc<SignIn>>, request: Request) -> Result<Response, Refusal> {
    let (from, headers) = (ClientAddress::of(&request), request.headers());
    let query = request.uri().query().unwrap_or_default();
    let asked = read(&sign_in, query, from).await?;
    match &asked.consent {
        Ok(consent) => Ok(page(&sign_in, consent, query, headers, None)),
        Err(refusal) => {
            let link = asked.location(&sign_in, &Err(*refusal));
            Ok(consent::refused(&asked.client, &asked.redirect, &link, *refusal))
        }
    }
}

pub(super) async fn decide(State(parts): State<ServerParts>, request: Request) -> Result<Response, Refusal> {
    let (sign_in, from) = (parts.sign_in, ClientAddress::of(&request));
    let (head, body) = request.into_parts();
    let unread = |_| Refusal::InvalidRequest("the form could not be read");
    let form = Form::receive(&parts.bodies, &head.headers, body).await.map_err(unread)?;
    let query = form.text("request");
    if !is_same_origin(&sign_in, &head.headers) || !has_valid_seal(&sign_in, &head.headers, &form, &query) {
        return Ok(consent::expired());
    }
    let asked = read(&sign_in, &query, from).await?;
    let answer = match &asked.consent {
        Ok(_) if form.get("decision") == Some("provider") => {
            return redirect_to_provider(&sign_in, &query, &head.headers, from).await;
        }
        Ok(_) if form.get("decision") != Some("allow") => Err(Refusal::AccessDenied),
        Ok(consent) => match sign_in.consent(consent, &form.text("token"), from).await {
            Err(refusal @ (Refusal::WrongToken | Refusal::TooMany)) => {
                return Ok(page(&sign_in, consent, &query, &head.headers, Some(refusal)));
            }
            Err(Refusal::Unavailable) => return Err(Refusal::Unavailable),
            answer => answer,
        },
        Err(refusal) => Err(*refusal),
    };
    asked.redirect(&sign_in, &answer)
}

/// An error here is shown to the person: where it could be sent is not known to be the client's.
async fn read(sign_in: &SignIn, query: &str, from: IpAddr) -> Result<AuthorizeRequest, Refusal> {
    if query.len() > BODY_BYTES_MAX / 8 {
        return Err(Refusal::InvalidRequest("the request is too long"));
    }
    let form = Form::read(query.as_bytes());
    if form.repeats(&["client_id", "redirect_uri"]) {
        return Err(Refusal::InvalidRequest("a parameter is there twice"));
    }
    let client = sign_in.client(form.get("client_id").unwrap_or_default(), from).await?;
    let (name, redirect) = (client.name.clone(), sign_in.redirect(&client, form.get("redirect_uri"))?);
    let request = sign_in::Request {
        response_type: form.text("response_type"),
        challenge: form.text("code_challenge"),
        challenge_method: form.text("code_challenge_method"),
        resources: form.all("resource"),
    };
    let consent = if form.repeats(&ONCE) {
        Err(Refusal::InvalidRequest("a parameter is there twice"))
    } else {
        sign_in.check(client, redirect.clone(), &request)
    };
    Ok(AuthorizeRequest { client: name, redirect, state: form.get("state").map(str::to_owned), consent })
}

fn page(sign_in: &SignIn, asked: &Consent, query: &str, headers: &HeaderMap, refusal: Option<Refusal>) -> Response {
    let browser = cookie(sign_in, headers).unwrap_or_else(|| Uuid::new_v4().simple().to_string());
    let seal = seal(sign_in, CONSENT, &browser, query);
    let mut response = consent::page(asked, (query, &seal), sign_in.provider(), refusal);
    let (name, secure) = cookie_name(sign_in);
    let cookie = format!("{name}={browser}; Path=/; Max-Age={PAGE_S}; HttpOnly; SameSite=Lax{secure}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

impl AuthorizeRequest {
    /// Sends the browser to the client. 303, so that no browser repeats the form.
    fn redirect(&self, sign_in: &SignIn, answer: &Result<SecretString, Refusal>) -> Result<Response, Refusal> {
        let wrong = "the redirect address is not one that the client registered";
        see_other(self.location(sign_in, answer), wrong)
    }

    /// The client's address with its answer, which has `iss` against mix-ups (RFC 9207).
    fn location(&self, sign_in: &SignIn, answer: &Result<SecretString, Refusal>) -> String {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        match answer {
            Ok(code) => pairs.append_pair("code", code.expose_secret()),
            Err(refusal) => {
                pairs.append_pair("error", refusal.word()).append_pair("error_description", &refusal.to_string())
            }
        };
        if let Some(state) = &self.state {
            pairs.append_pair("state", state);
        }
        let pairs = pairs.append_pair("iss", sign_in.issuer()).finish();
        let join = if self.redirect.contains('?') { '&' } else { '?' };
        format!("{}{join}{pairs}", self.redirect)
    }
}

fn see_other(location: String, wrong: &'static str) -> Result<Response, Refusal> {
    let location = HeaderValue::try_from(location).map_err(|_| Refusal::InvalidRequest(wrong))?;
    Ok((StatusCode::SEE_OTHER, [NO_STORE], [(header::LOCATION, location)]).into_response())
}

/// Sends the browser to the provider.
async fn redirect_to_provider(
    sign_in: &SignIn,
    query: &str,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<Response, Refusal> {
    let Some(browser) = cookie(sign_in, headers) else { return Ok(consent::expired()) };
    // Two requests of one browser have different states.
    let once = Uuid::new_v4().simple();
    let sealed = format!("{once}.{query}");
    let state = format!("{}.{}", seal(sign_in, PROVIDER, &browser, &sealed), BASE64_URL_SAFE_NO_PAD.encode(sealed));
    see_other(sign_in.to_provider(&state, &browser, from).await?, "the request is too long")
}

/// The provider's answer.
pub(super) async fn provider_callback(
    State(sign_in): State<Arc<SignIn>>,
    request: Request,
) -> Result<Response, Refusal> {
    let from = ClientAddress::of(&request);
    let form = Form::read(request.uri().query().unwrap_or_default().as_bytes());
    let state = form.text("state");
    let Some(browser) = cookie(&sign_in, request.headers()) else { return Ok(consent::expired()) };
    let Some(query) = unsealed(&sign_in, &state, &browser) else { return Ok(consent::expired()) };
    let asked = read(&sign_in, &query, from).await?;
    let (Ok(consent), Some(code)) = (&asked.consent, form.get("code")) else {
        return asked.redirect(&sign_in, &Err(Refusal::AccessDenied));
    };
    let owner = sign_in.from_provider(code, form.get("iss"), (&state, &browser), from).await?;
    asked.redirect(&sign_in, &Ok(sign_in.consent_as(consent, owner).await?))
}

/// The request in a state, if it was given to this browser, lately.
fn unsealed(sign_in: &SignIn, state: &str, browser: &str) -> Option<String> {
    let (seal, sealed) = state.rsplit_once('.')?;
    let sealed = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(sealed).ok()?).ok()?;
    check_seal(sign_in, PROVIDER, browser, seal, &sealed)?;
    sealed.split_once('.').map(|(_, query)| query.to_owned())
}

/// Whether a form comes from the server's own page, as far as the browser says where it comes from.
fn is_same_origin(sign_in: &SignIn, headers: &HeaderMap) -> bool {
    let says = |name: &str, wanted: &str| headers.get(name).is_none_or(|value| value.as_bytes() == wanted.as_bytes());
    says("origin", sign_in.issuer()) && says("sec-fetch-site", "same-origin")
}

/// Whether a form was given to this browser, lately.
fn has_valid_seal(sign_in: &SignIn, headers: &HeaderMap, form: &Form, query: &str) -> bool {
    let given = cookie(sign_in, headers).zip(form.get("seal"));
    given.is_some_and(|(browser, seal)| check_seal(sign_in, CONSENT, &browser, seal, query).is_some())
}

/// A text is good for one purpose, one browser and the time that a page waits: its end, and what proves that.
fn seal(sign_in: &SignIn, what: &str, browser: &str, text: &str) -> String {
    let ends = sign_in.now() / 1000 + PAGE_S;
    format!("{ends}.{}", BASE64_URL_SAFE_NO_PAD.encode(mac(sign_in, what, browser, ends, text)))
}

/// Nothing for a seal that is not of this text, or has ended.
fn check_seal(sign_in: &SignIn, what: &str, browser: &str, seal: &str, text: &str) -> Option<()> {
    let (ends, sent) = seal.split_once('.')?;
    let ends = ends.parse::<i64>().ok().filter(|ends| sign_in.now() / 1000 <= *ends)?;
    let sent = BASE64_URL_SAFE_NO_PAD.decode(sent).ok()?;
    let is_same = mac(sign_in, what, browser, ends, text)[..].ct_eq(&sent);
    bool::from(is_same).then_some(())
}

fn mac(sign_in: &SignIn, what: &str, browser: &str, ends: i64, text: &str) -> [u8; 32] {
    // The keys of links are made from the same secret, with another text.
    text::mac(sign_in.key(), &[format!("{what}\0{browser}\0{ends}\0{text}").as_bytes()])
}

/// The value that names a browser. A `__Host-` cookie cannot be set by another host or without TLS.
fn cookie(sign_in: &SignIn, headers: &HeaderMap) -> Option<String> {
    let (name, _) = cookie_name(sign_in);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut values = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let value = values.find(|(key, _)| *key == name)?.1;
    (value.len() == 32 && value.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| value.to_owned())
}

fn cookie_name(sign_in: &SignIn) -> (&'static str, &'static str) {
    if sign_in.issuer().starts_with("https://") { ("__Host-sign-in", "; Secure") } else { ("sign-in", "") }
}
