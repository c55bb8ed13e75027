//! What a sandbox gets for hosts whose TLS the server opens: placeholders of secrets, a certificate authority that it
//! trusts, and the variables that name both.

use std::{collections::HashSet, sync::Arc};

use tracing::error;

use crate::{
    domain::network::{Policy, SandboxSecret, Secret},
    ports::network::{Authority, Carrier},
};

/// Where process 1 of a sandbox writes the authority's certificate alone, and after those that its image trusts
/// (`runners/README.md`).
const AUTHORITY: &str = "/tmp/.sandbox-tls/authority.pem";
const BUNDLE: &str = "/tmp/.sandbox-tls/bundle.pem";
/// Of OpenSSL, curl, git, requests, pip, Deno, npm and the AWS SDKs.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "DENO_CERT",
    "npm_config_cafile",
    "AWS_CA_BUNDLE",
];

/// What one sandbox has for opened hosts; nothing where there are none.
#[derive(Default)]
pub(super) struct Opened {
    pub(super) secrets: Vec<SandboxSecret>,
    pub(super) authority: Option<Arc<Authority>>,
}

impl Opened {
    pub(super) fn new(policies: &[Arc<Policy>], secrets: &[Arc<Secret>], carrier: &dyn Carrier) -> Self {
        let policies: Vec<&Policy> = policies.iter().map(Arc::as_ref).collect();
        let secrets: Vec<_> = secrets.iter().filter_map(|secret| secret.for_sandbox(&policies)).collect();
        let ruled = policies.iter().filter(|policy| policy.has_rules()).flat_map(|policy| policy.roots());
        let hosts: HashSet<_> = secrets.iter().flat_map(SandboxSecret::hosts).cloned().chain(ruled).collect();
        if hosts.is_empty() {
            return Self::default();
        }
        let authority = carrier.authority(&hosts.into_iter().collect::<Vec<_>>());
        if authority.is_none() {
            error!("no certificate authority was made for a sandbox: its opened hosts are refused");
        }
        Self { secrets, authority: authority.map(Arc::new) }
    }

    /// Of its programs.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let secrets = self.secrets.iter().map(SandboxSecret::variable);
        let bundle = BUNDLE_VARIABLES.map(|name| (name, BUNDLE));
        let trusting = bundle.into_iter().chain([("NODE_EXTRA_CA_CERTS", AUTHORITY)]);
        secrets.chain(trusting.filter(|_| self.authority.is_some())).map(owned).collect()
    }
}
