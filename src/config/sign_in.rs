//! The settings of sign-in, and their rules.

use super::{BaseUrl, Config, ConfigError, Secret, ensure, list_of, section};
use crate::domain::{Scope, TokenLimits};

section! {
    /// Sign-in of remote clients such as claude.ai, which cannot be given a token (docs/connectors.md).
    pub struct SignIn("sign_in") {
        /// off; embedded: the server is its own OAuth authorization server, and people enter a token on its page or
        /// sign in at an OpenID Connect provider; or issuer: tokens (JWTs) of another issuer are accepted. Needs a
        /// PUBLIC_BASE_URL with https, or of this machine.
        mode: String = "off".to_owned(),
        /// How long an access token of the embedded server lives, in seconds. A client renews it by itself.
        access_s: u64 = 3600 => 600..=86_400,
        /// How long an unused client of the embedded server stays signed in, in seconds.
        refresh_s: u64 = 30 * 86_400 => 3600..=366 * 86_400,
        /// Mode embedded: a client may give the address of a document about itself as its id (client ID metadata
        /// document), which the server fetches. Switch this off where the server cannot reach the internet: clients
        /// then register themselves. true or false.
        client_documents: bool = true,
        /// Mode issuer: the issuer whose JWTs are accepted, exactly as their `iss`.
        issuer: String = String::new(),
        /// Mode issuer: the address of the issuer's keys (JWKS). Empty: taken from its metadata.
        issuer_keys: String = String::new(),
        /// Mode issuer: accepted audiences, comma separated; `aud` must contain one of them. Empty: PUBLIC_BASE_URL
        /// with /mcp.
        audience: String = String::new(),
        /// The claim that names the owner, in the tokens of an issuer and of an OpenID Connect provider.
        owner_claim: String = "sub".to_owned(),
        /// Mode issuer: the scopes of a token that names neither run nor files: run, files or both, comma separated.
        default_scopes: String = "run,files".to_owned(),
        /// Mode issuer: the issuer's scope that stands for admin. Empty: no token of the issuer has admin.
        admin_scope: String = String::new(),
        /// Of each subject of an issuer and person of a provider: programs and cells that may wait or run at once. 0:
        /// no limit.
        subject_runs_at_once: u32 = 0 => 0..=1_000_000,
        /// Of each subject of an issuer and person of a provider: programs and cells that may begin within a minute. 0:
        /// no limit.
        subject_runs_per_minute: u32 = 0 => 0..=1_000_000,
        /// Of each subject of an issuer and person of a provider: processor time of programs and cells within 24 hours,
        /// in seconds. 0: no limit.
        subject_cpu_s_per_day: u64 = 0 => 0..=1 << 40,
        /// Of each subject of an issuer and person of a provider: what programs and cells print within 24 hours, in
        /// bytes. 0: no limit.
        subject_bytes_per_day: u64 = 0 => 0..=1 << 60,
        /// Mode issuer: the team of Cloudflare Access, such as https://team.cloudflareaccess.com, whose header
        /// Cf-Access-Jwt-Assertion is accepted in place of a token. Empty: the header is ignored.
        cloudflare_team: String = String::new(),
        /// Mode issuer: the Application Audience (AUD) Tag of the application in Cloudflare Access.
        cloudflare_audience: String = String::new(),
        /// Mode embedded: an OpenID Connect provider at which people without a token may sign in. The redirect URI to
        /// register there is PUBLIC_BASE_URL with /authorize/callback. Empty: none.
        openid_issuer: String = String::new(),
        /// This server's client id at the provider.
        openid_client_id: String = String::new(),
        /// This server's secret at the provider. Empty: a public client.
        openid_client_secret: Secret = Secret::default(),
        /// A file that holds the secret, in place of the setting.
        openid_client_secret_file: String = String::new(),
        /// Scopes that are requested in addition to openid, separated by spaces.
        openid_scopes: String = "email".to_owned(),
        /// Which people may sign in, comma separated: e-mail addresses, domains such as @example.com, or subjects. An
        /// address counts only if the provider has verified it. A subject that contains an @ is written with sub:
        /// before it. * stands for every person of the provider.
        openid_allowed: String = String::new(),
    }
}

fn is_server(text: &str) -> bool {
    let is_address = text.parse::<BaseUrl>().is_ok();
    is_address && (text.starts_with("https://") || is_loopback(text))
}

fn is_loopback(text: &str) -> bool {
    let uri = text.parse::<http::Uri>().ok();
    uri.is_some_and(|uri| matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]")))
}

impl SignIn {
    /// How much a subject of the issuer may do.
    pub fn subject_limits(&self) -> TokenLimits {
        TokenLimits {
            runs_per_minute: Some(self.subject_runs_per_minute).filter(|limit| *limit > 0),
            runs_at_once: Some(self.subject_runs_at_once).filter(|limit| *limit > 0),
            cpu_s_per_day: Some(self.subject_cpu_s_per_day).filter(|limit| *limit > 0),
            bytes_per_day: Some(self.subject_bytes_per_day).filter(|limit| *limit > 0),
        }
    }

    /// What a token of the issuer may do that names no scope.
    pub fn default_scopes(&self) -> Vec<Scope> {
        let named = |scope: &Scope| self.default_scopes.split(',').any(|word| word.trim() == scope.as_str());
        [Scope::Run, Scope::Files].into_iter().filter(named).collect()
    }
}

impl Config {
    pub(super) fn check_sign_in(&self) -> Result<(), ConfigError> {
        let sign_in = &self.sign_in;
        let why = "SANDBOX_SIGN_IN__MODE must be `off`, `embedded` or `issuer`.";
        ensure(matches!(sign_in.mode.as_str(), "off" | "embedded" | "issuer"), why)?;
        let url = self.public_base_url.uri();
        let is_safe = url.scheme_str() == Some("https") || is_loopback(&self.public_base_url.to_string());
        let fits = is_safe && matches!(url.path(), "" | "/");
        let why = "SANDBOX_SIGN_IN__MODE needs a PUBLIC_BASE_URL that begins with https:// (or is of this machine) \
                   and has no path: tokens must not travel in the clear.";
        ensure(sign_in.mode == "off" || fits, why)?;
        // A connection without a refresh token has nothing left to go on with, and is removed.
        let why = "SANDBOX_SIGN_IN__REFRESH_S must be at least SANDBOX_SIGN_IN__ACCESS_S: a connection ends with its \
                   refresh token.";
        ensure(sign_in.refresh_s >= sign_in.access_s, why)?;
        self.check_issuer()
    }

    fn check_issuer(&self) -> Result<(), ConfigError> {
        let sign_in = &self.sign_in;
        let of_issuer = [
            ("ISSUER", &sign_in.issuer),
            ("ISSUER_KEYS", &sign_in.issuer_keys),
            ("CLOUDFLARE_TEAM", &sign_in.cloudflare_team),
            ("OPENID_ISSUER", &sign_in.openid_issuer),
        ];
        for (name, address) in of_issuer {
            let why = "must be an address that begins with https:// (or is of this machine).";
            ensure(address.is_empty() || is_server(address), format!("SANDBOX_SIGN_IN__{name} {why}"))?;
        }
        let is_set = !sign_in.issuer.is_empty() || !sign_in.cloudflare_team.is_empty();
        let why = "SANDBOX_SIGN_IN__MODE=issuer needs SANDBOX_SIGN_IN__ISSUER or SANDBOX_SIGN_IN__CLOUDFLARE_TEAM.";
        ensure(sign_in.mode != "issuer" || is_set, why)?;
        let why = "SANDBOX_SIGN_IN__CLOUDFLARE_TEAM and SANDBOX_SIGN_IN__CLOUDFLARE_AUDIENCE are set together.";
        ensure(sign_in.cloudflare_team.is_empty() == sign_in.cloudflare_audience.is_empty(), why)?;
        let is_complete = !sign_in.openid_client_id.is_empty() && !sign_in.openid_allowed.trim().is_empty();
        let why = "SANDBOX_SIGN_IN__OPENID_ISSUER needs SANDBOX_SIGN_IN__OPENID_CLIENT_ID and \
                   SANDBOX_SIGN_IN__OPENID_ALLOWED, which says who may sign in.";
        ensure(sign_in.openid_issuer.is_empty() || is_complete, why)?;
        list_of("SANDBOX_SIGN_IN__DEFAULT_SCOPES", &sign_in.default_scopes, &["run", "files"])?;
        ensure(!sign_in.owner_claim.is_empty(), "SANDBOX_SIGN_IN__OWNER_CLAIM must name a claim.")
    }
}
