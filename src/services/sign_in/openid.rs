//! People who sign in at an OpenID Connect provider in place of entering a token. The provider's answer is bound to the
//! browser and the request by the state, which the surface seals; the nonce and the verifier of PKCE are derived from
//! both, so nothing is kept between the two requests.

use std::{net::IpAddr, pin::Pin, sync::Arc};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use openidconnect::{
    AdditionalClaims, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointMaybeSet, EndpointNotSet,
    EndpointSet, HttpRequest, HttpResponse, IssuerUrl, Nonce, OAuth2TokenResponse as _, PkceCodeChallenge,
    PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope as Wanted, TokenResponse as _, UserInfoClaims,
    UserInfoError,
    core::{
        CoreAuthenticationFlow, CoreClient, CoreGenderClaim, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm,
        CoreProviderMetadata,
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::{info, warn};

use super::{Consent, Refusal, SignIn, grants::OFFERED};
use crate::{
    domain::{Grant, Principal, text::mac},
    ports::web::{NamedBy, WebError},
    services::tokens::NewToken,
};

#[derive(Debug, Clone)]
pub struct OpenIdOptions {
    pub issuer: String,
    pub client: String,
    pub secret: Option<SecretString>,
    /// Beside `openid`.
    pub scopes: Vec<String>,
    /// E-mail addresses, `@` with a domain, and subjects: those with `@` behind `sub:`; `*` for every person of the
    /// provider.
    pub allowed: Vec<String>,
    /// The claim that names the owner.
    pub owner_claim: String,
}

type Answer = Pin<Box<dyn Future<Output = Result<HttpResponse, WebError>> + Send>>;
/// As the metadata of a provider makes one.
type ProviderClient =
    CoreClient<EndpointSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointMaybeSet, EndpointMaybeSet>;
type UserInfoRequest<'a> = openidconnect::UserInfoRequest<'a, CoreJweContentEncryptionAlgorithm, CoreJsonWebKey>;

/// Claims that the standard does not name.
#[derive(Debug, Serialize, Deserialize)]
struct OtherClaims(Map<String, Value>);

impl AdditionalClaims for OtherClaims {}

impl OpenIdOptions {
    /// Whether a claim is missing that decides. Providers may give claims at the endpoint `UserInfo` only (OpenID
    /// Connect Core, 5.4).
    fn is_missing_claims(&self, claims: &Map<String, Value>) -> bool {
        let asks_for_email = self.allowed.iter().any(|entry| subject(entry).is_none());
        let has_email = claims.contains_key("email") && claims.contains_key("email_verified");
        self.named(claims).is_none() || (asks_for_email && !has_email && !self.is_allowed(claims))
    }

    /// What names the owner. An address that the person only claims to have would lead to another person's owner.
    fn named<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a str> {
        let claim = &self.owner_claim;
        text(claims, claim).filter(|_| claim != "email" || is_verified(claims))
    }

    fn is_allowed(&self, claims: &Map<String, Value>) -> bool {
        let text = |name: &str| text(claims, name);
        // One that the person only claims to have would open the server to anyone.
        let email = text("email").filter(|_| is_verified(claims));
        let domain = email.and_then(|email| email.rsplit_once('@')).map(|(_, domain)| domain);
        self.allowed.iter().any(|entry| match (subject(entry), entry.strip_prefix('@')) {
            _ if entry == "*" => true,
            (Some(wanted), _) => text("sub") == Some(wanted),
            (None, Some(wanted)) => domain.is_some_and(|domain| domain.eq_ignore_ascii_case(wanted)),
            (None, None) => email.is_some_and(|email| email.eq_ignore_ascii_case(entry)),
        })
    }
}

impl SignIn {
    /// The host of the provider, where one is set.
    pub fn provider(&self) -> Option<&str> {
        self.options.openid.as_ref()?.issuer.split('/').nth(2)
    }

    /// Where a browser is sent to sign in.
    ///
    /// # Errors
    /// [`Refusal::ProviderAway`]; [`Refusal::TooMany`], since the provider is asked each time.
    pub async fn to_provider(&self, state: &str, browser: &str, from: IpAddr) -> Result<String, Refusal> {
        let (openid, client) = self.at_provider(None, from).await?;
        let verifier = PkceCodeVerifier::new(self.derived("verifier", state, browser));
        let (state, nonce) = (state.to_owned(), self.derived("nonce", state, browser));
        let request = client
            .authorize_url(CoreAuthenticationFlow::AuthorizationCode, || CsrfToken::new(state), || Nonce::new(nonce))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .add_scopes(openid.scopes.iter().cloned().map(Wanted::new));
        Ok(request.url().0.into())
    }

    /// The owner of the person whom a code of the provider stands for. `issuer` is what its answer says of itself,
    /// against mix-ups (RFC 9207).
    ///
    /// # Errors
    /// [`Refusal::ProviderAway`], [`Refusal::NotAllowed`], [`Refusal::Unidentified`]; [`Refusal::TooMany`], since the
    /// provider is asked each time and a state may come with any number of codes.
    pub async fn from_provider(
        &self,
        code: &str,
        issuer: Option<&str>,
        (state, browser): (&str, &str),
        from: IpAddr,
    ) -> Result<Principal, Refusal> {
        let (openid, client) = self.at_provider(issuer, from).await?;
        let request =
            client.exchange_code(AuthorizationCode::new(code.to_owned())).map_err(|_| Refusal::ProviderAway)?;
        let verifier = PkceCodeVerifier::new(self.derived("verifier", state, browser));
        let answer = request.set_pkce_verifier(verifier).request_async(&self.http()).await.map_err(|error| {
            warn!(error = crate::domain::text::chain(&error), "sign-in: the provider gave no token for its code");
            if matches!(error, RequestTokenError::Request(_)) { Refusal::ProviderAway } else { Refusal::NotAllowed }
        })?;
        let token = answer.id_token().ok_or(Refusal::NotAllowed)?;
        let nonce = Nonce::new(self.derived("nonce", state, browser));
        let keys = client.id_token_verifier();
        let vouched = token.claims(&keys, &nonce).map_err(|error| {
            warn!(%error, "sign-in: the provider's token is not valid");
            Refusal::NotAllowed
        })?;
        let mut claims = payload(&token.to_string()).ok_or(Refusal::NotAllowed)?;
        if openid.is_missing_claims(&claims) {
            // Without the endpoint what the token says is all there is.
            if let Ok(request) = client.user_info(answer.access_token().clone(), Some(vouched.subject().clone())) {
                add(&mut claims, self.user_info(request).await?);
            }
        }
        let (subject, claim) = (claims.get("sub"), &openid.owner_claim);
        let Some(named) = openid.named(&claims) else {
            let why = "neither the provider's token nor its UserInfo names the owner, or the address is not verified";
            warn!(?subject, claim, "sign-in: {why}");
            return Err(Refusal::Unidentified);
        };
        if !openid.is_allowed(&claims) {
            let (has_email, email_verified) = (claims.contains_key("email"), claims.get("email_verified"));
            info!(?subject, has_email, ?email_verified, "sign-in: the provider's person may not use this server");
            return Err(Refusal::NotAllowed);
        }
        Ok(Principal::of_claim(&openid.issuer, named))
    }

    /// Makes a connection for a person of the provider, and the code that leads to it.
    ///
    /// # Errors
    /// [`Refusal::TooMany`], [`Refusal::Unavailable`].
    pub async fn consent_as(&self, consent: &Consent, owner: Principal) -> Result<SecretString, Refusal> {
        let grant = Grant { scopes: OFFERED.into(), ..Grant::default() };
        let new = NewToken { owner, name: String::new(), grant, expires_unix_ms: None, parent: None };
        self.connect(consent, new).await
    }

    /// This server as a client of the provider, which is asked each time where its endpoints are and what its keys are:
    /// people sign in seldom.
    async fn at_provider(
        &self,
        issuer: Option<&str>,
        from: IpAddr,
    ) -> Result<(&OpenIdOptions, ProviderClient), Refusal> {
        self.rates.outgoing.take(&from)?;
        let openid = self.options.openid.as_ref().ok_or(Refusal::ProviderAway)?;
        if issuer.is_some_and(|issuer| issuer != openid.issuer) {
            return Err(Refusal::NotAllowed);
        }
        let url = IssuerUrl::new(openid.issuer.clone()).map_err(|_| Refusal::ProviderAway)?;
        let metadata = CoreProviderMetadata::discover_async(url, &self.http()).await.map_err(|error| {
            warn!(error = crate::domain::text::chain(&error), "sign-in: the OpenID Connect provider was not read");
            Refusal::ProviderAway
        })?;
        let secret = openid.secret.as_ref().map(|secret| ClientSecret::new(secret.expose_secret().to_owned()));
        let callback = RedirectUrl::new(format!("{}/authorize/callback", self.issuer()));
        let client = CoreClient::from_provider_metadata(metadata, ClientId::new(openid.client.clone()), secret);
        Ok((openid, client.set_redirect_uri(callback.map_err(|_| Refusal::ProviderAway)?)))
    }

    fn http(&self) -> impl Fn(HttpRequest) -> Answer + use<> {
        let web = Arc::clone(&self.web);
        move |request| {
            let web = Arc::clone(&web);
            Box::pin(async move { web.send(NamedBy::Operator, request).await })
        }
    }

    /// The claims that `UserInfo` answers, whose subject has to be that of the request.
    async fn user_info(&self, request: UserInfoRequest<'_>) -> Result<Map<String, Value>, Refusal> {
        let http = self.http();
        let answer: Result<UserInfoClaims<OtherClaims, CoreGenderClaim>, _> = request.request_async(&http).await;
        let claims = answer.map_err(|error| {
            warn!(error = crate::domain::text::chain(&error), "sign-in: the provider's UserInfo cannot be used");
            match error {
                UserInfoError::Request(_) => Refusal::ProviderAway,
                UserInfoError::Response(status, ..) if status.is_server_error() => Refusal::ProviderAway,
                _ => Refusal::Unidentified,
            }
        })?;
        match serde_json::to_value(&claims) {
            Ok(Value::Object(claims)) => Ok(claims),
            _ => Err(Refusal::Unidentified),
        }
    }

    /// 43 characters that only this server can know of a state and a browser.
    fn derived(&self, what: &str, state: &str, browser: &str) -> String {
        let named = format!("openid\0{what}\0{browser}\0{state}");
        BASE64_URL_SAFE_NO_PAD.encode(mac(self.key(), &[named.as_bytes()]))
    }
}

/// The subject that an entry of the list names; `None` for one about an address. Some providers let people choose their
/// subject, which must not pass for an address.
fn subject(entry: &str) -> Option<&str> {
    entry.strip_prefix("sub:").or_else(|| (!entry.contains('@')).then_some(entry))
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn is_verified(claims: &Map<String, Value>) -> bool {
    claims.get("email_verified") == Some(&Value::Bool(true))
}

/// Adds what `UserInfo` says to the claims of a token, which count more. An address and whether it is verified come
/// from one of the two.
fn add(claims: &mut Map<String, Value>, mut more: Map<String, Value>) {
    const ADDRESS: [&str; 2] = ["email", "email_verified"];
    let is_whole = ADDRESS.iter().all(|name| claims.contains_key(*name));
    let unused = if is_whole || !more.contains_key("email") { &mut more } else { &mut *claims };
    for name in ADDRESS {
        unused.remove(name);
    }
    for (name, value) in more {
        claims.entry(name).or_insert(value);
    }
}

/// What a token says that was verified.
fn payload(jwt: &str) -> Option<Map<String, Value>> {
    let payload = BASE64_URL_SAFE_NO_PAD.decode(jwt.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}
