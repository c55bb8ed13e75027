//! Network policies: which hosts the programs of an owner may reach, which requests they may make there, and which
//! secrets are put into these on the way. Pure rules; no name is resolved here.

mod host;
mod policy;
mod redactor;
mod rules;
mod secret;

pub use self::{
    host::{Decision, Host, NetworkUse, Refusal, Target},
    policy::{BYTES_PER_MINUTE_MIN, Policy, PolicyError, PolicyText},
    redactor::{Pattern, Redactor},
    rules::RequestLine,
    secret::{SandboxSecret, Secret, SecretError, SecretRule, SecretText},
};
