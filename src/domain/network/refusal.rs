//! The record of a connection, and the reasons of a refusal.

use std::{net::IpAddr, time::Duration};

use super::Target;
use crate::domain::words::named;

/// One connection that a program made or wanted, when it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUse {
    /// As `host:port`; as the program wrote it where that is neither.
    pub target: String,
    /// Why it was refused or failed; `None` for one that was made.
    pub refusal: Option<Refusal>,
    /// To the host, in bytes.
    pub sent_bytes: u64,
    /// From the host, in bytes.
    pub received_bytes: u64,
    pub took: Duration,
}

impl NetworkUse {
    /// One over which nothing has passed: refused, or just made.
    pub fn of(target: String, refusal: Option<Refusal>) -> Self {
        Self { target, refusal, sent_bytes: 0, received_bytes: 0, took: Duration::ZERO }
    }
}

named! {
    /// Why there is no connection.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum Refusal {
        #[error("no policy allows {0}")]
        NotAllowed(Target) = "not_allowed",
        #[error("{0} has the address {1}, which is not of the internet; the policy must name that address")]
        NotPublic(Target, IpAddr) = "not_public",
        #[error("{0} is this server itself")]
        OwnAddress(Target) = "own_address",
        #[error("{0} has no address")]
        NotFound(Target) = "not_found",
        #[error("{0} does not answer")]
        Unreachable(Target) = "unreachable",
        #[error("the TLS connection to {0} asks for another host")]
        OtherServerName(Target) = "other_server_name",
        #[error("{0} takes TLS alone")]
        NoTls(Target) = "no_tls",
        #[error("the request names another host than {0}")]
        OtherHost(Target) = "other_host",
        #[error("what the program sent is neither a request of HTTP nor of SOCKS 5")]
        Malformed = "malformed",
        #[error("too many connections are open")]
        TooMany = "too_many",
        #[error("`methods` of the policy {policy} lacks {method}, so {target} is not asked")]
        Method { target: Target, policy: String, method: String } = "method",
        #[error("`paths` of the policy {policy} lacks {path}, so {target} is not asked")]
        Path { target: Target, policy: String, path: String } = "path",
        #[error("the path of the request to {0} could be taken for another one")]
        AmbiguousPath(Target) = "ambiguous_path",
        #[error("`requests_per_minute` of the policy {policy} is used up for {target}, for {wait_s} s more")]
        TooFast { target: Target, policy: String, wait_s: u64 } = "too_fast",
        #[error("{0} is not asked with {1}, whose answer repeats the request")]
        Repeats(Target, String) = "repeats",
        #[error("a connection to {0} cannot change its protocol, because the server opens its TLS")]
        Upgrade(Target) = "upgrade",
        #[error("{0} has a certificate that this server does not trust")]
        Untrusted(Target) = "untrusted",
        #[error("{0} answers compressed or in parts, which cannot be searched for secrets")]
        Unsearchable(Target) = "unsearchable",
        #[error("the sandbox broke the rules of its channels, which ended all of its connections; restart the session")]
        ChannelsBroken = "channels_broken",
        #[error("the connection to {0} carried nothing for too long")]
        Idle(Target) = "idle",
        #[error("the policy for {0} changed in a way that needs a new sandbox: restart the session")]
        PolicyChanged(Target) = "policy_changed",
    }
}

impl Refusal {
    /// Whether the policy forbids it; otherwise it failed.
    pub fn is_forbidden(&self) -> bool {
        !matches!(
            self,
            Self::NotFound(_)
                | Self::Unreachable(_)
                | Self::TooMany
                | Self::TooFast { .. }
                | Self::Untrusted(_)
                | Self::Unsearchable(_)
                | Self::ChannelsBroken
                | Self::Idle(_)
        )
    }
}
