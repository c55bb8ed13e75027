//! The parts of sign-in, made from the settings.

use std::{sync::Arc, time::Duration};

use super::{StartError, engine::set};
use crate::{
    adapters::{self, database::Database},
    api::http::{body::Bodies, sign_in::SignInParts},
    config::Config,
    domain::{clock::SystemClock, text::items},
    ports::{observer::Observer, web::Web},
    services::{
        issuer::{Issuer, IssuerOptions},
        sign_in::{OpenIdOptions, SignIn, SignInOptions},
        tokens::Tokens,
    },
};

/// The mode in which this server issues tokens itself.
const EMBEDDED: &str = "embedded";

/// `None` where it is off, and where there is no database.
///
/// # Errors
/// When TLS cannot be set up.
pub(super) fn parts(
    config: &Config,
    database: Option<&Database>,
    tokens: &Arc<Tokens>,
    observer: &Arc<dyn Observer>,
    bodies: Bodies,
) -> Result<Option<SignInParts>, StartError> {
    let Some(database) = database.filter(|_| config.sign_in.mode != "off") else { return Ok(None) };
    let web: Arc<dyn Web> = Arc::new(adapters::web::Web::new()?);
    tokens.limit_subjects(config.sign_in.subject_limits());
    Ok(Some(SignInParts {
        base: config.public_base_url.origin().into(),
        embedded: embedded(config, database, tokens, observer, &web)?,
        issuer: issuer(config, &web, tokens),
        access: cloudflare(config, &web, tokens),
        bodies,
    }))
}

fn embedded(
    config: &Config,
    database: &Database,
    tokens: &Arc<Tokens>,
    observer: &Arc<dyn Observer>,
    web: &Arc<dyn Web>,
) -> Result<Option<Arc<SignIn>>, StartError> {
    let key = config.file_secrets().next().filter(|_| config.sign_in.mode == EMBEDDED);
    let Some(key) = key else { return Ok(None) };
    let options = SignInOptions {
        issuer: config.public_base_url.origin(),
        access: Duration::from_secs(config.sign_in.access_s),
        refresh: Duration::from_secs(config.sign_in.refresh_s),
        key,
        documents: config.sign_in.client_documents,
        openid: openid(config)?,
    };
    let (store, clock) = (Arc::new(database.clone()), Arc::new(SystemClock));
    let sign_in = SignIn::new(store, Arc::clone(tokens), clock, Arc::clone(observer), Arc::clone(web), options);
    Ok(Some(Arc::new(sign_in)))
}

fn openid(config: &Config) -> Result<Option<OpenIdOptions>, StartError> {
    let set = &config.sign_in;
    if set.openid_issuer.is_empty() {
        return Ok(None);
    }
    let secret = match set.openid_client_secret_file.as_str() {
        "" => set.openid_client_secret.is_set().then(|| set.openid_client_secret.expose().clone()),
        path => {
            let read = std::fs::read_to_string(path);
            let text = read.map_err(|source| StartError::SecretFile { path: path.to_owned(), source })?;
            Some(text.trim().into())
        }
    };
    Ok(Some(OpenIdOptions {
        issuer: set.openid_issuer.clone(),
        client: set.openid_client_id.clone(),
        secret,
        scopes: set.openid_scopes.split_whitespace().map(str::to_owned).collect(),
        allowed: items(&set.openid_allowed).map(str::to_owned).collect(),
        owner_claim: set.owner_claim.clone(),
    }))
}

fn issuer(config: &Config, web: &Arc<dyn Web>, tokens: &Arc<Tokens>) -> Option<Arc<Issuer>> {
    let sign_in = &config.sign_in;
    let keys = (!sign_in.issuer_keys.is_empty()).then(|| sign_in.issuer_keys.clone());
    let audiences = match sign_in.audience.as_str() {
        // As clients write it, and as the operator may have entered it at the issuer.
        "" => vec![format!("{}/mcp", config.public_base_url.origin()), format!("{}/mcp", config.public_base_url)],
        list => list.split(',').map(|one| one.trim().to_owned()).collect(),
    };
    trusted(config, (web, tokens), &sign_in.issuer, keys, audiences)
}

/// Cloudflare Access signs what passes it, for an application.
fn cloudflare(config: &Config, web: &Arc<dyn Web>, tokens: &Arc<Tokens>) -> Option<Arc<Issuer>> {
    let team = config.sign_in.cloudflare_team.trim_end_matches('/');
    let keys = Some(format!("{team}/cdn-cgi/access/certs"));
    trusted(config, (web, tokens), team, keys, vec![config.sign_in.cloudflare_audience.clone()])
}

/// An issuer whose tokens are accepted. `None` where the settings name none, or this server issues its own.
fn trusted(
    config: &Config,
    (web, tokens): (&Arc<dyn Web>, &Arc<Tokens>),
    name: &str,
    keys: Option<String>,
    audiences: Vec<String>,
) -> Option<Arc<Issuer>> {
    let sign_in = &config.sign_in;
    let options = IssuerOptions {
        name: name.to_owned(),
        keys,
        audiences,
        owner_claim: sign_in.owner_claim.clone(),
        default_scopes: sign_in.default_scopes(),
        admin_scope: set(&sign_in.admin_scope),
    };
    let is_used = !name.is_empty() && sign_in.mode != EMBEDDED;
    is_used.then(|| Arc::new(Issuer::new(options, Arc::clone(web), Arc::clone(tokens))))
}
