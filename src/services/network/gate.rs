//! The decision on each connection of one sandbox, what a refused program's author reads, and the newest connections of
//! each owner, in bounded memory.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Access, ConnectionReporter, Inner, Program, holds};
use crate::{
    domain::{
        ConversationKey, Language, Principal,
        address::{destination, is_public},
        network::{Decision, Host, NetworkUse, Policy, Refusal, RequestLine, SandboxSecret, Target},
    },
    ports::network::{Gate, Pace},
};

/// How long addresses of the server's own hosts are used before their names are looked up again.
const FRESH: Duration = Duration::from_mins(1);
/// Connections that are kept of one owner, and owners.
const OF_OWNER_MAX: usize = 500;
const OWNERS_MAX: usize = 1000;

/// Decides for one sandbox.
pub(super) struct SandboxGate {
    pub(super) network: Arc<Inner>,
    pub(super) access: Access,
    pub(super) conversation: ConversationKey,
    pub(super) language: Language,
    pub(super) reporter: Arc<ConnectionReporter>,
    pub(super) secrets: Vec<SandboxSecret>,
}

impl SandboxGate {
    /// The policies that allow a host.
    fn allowing(&self, target: &Target) -> impl Iterator<Item = Arc<Policy>> {
        let is_allowing = move |policy: &Arc<Policy>| policy.is_for(&self.language) && policy.allows(target);
        self.network.policies_of(&self.access, &self.conversation.owner).filter(is_allowing)
    }

    /// Whether the sandbox has a secret for a host that only other policies allow now.
    fn has_lost_secret(&self, target: &Target) -> bool {
        let secrets: Vec<_> = self.secrets.iter().filter(|secret| secret.is_for(target)).collect();
        if secrets.is_empty() {
            return false;
        }
        let policies: Vec<_> = self.allowing(target).collect();
        let is_given = |secret: &SandboxSecret| policies.iter().any(|policy| secret.is_given_by(policy, target));
        !policies.is_empty() && !secrets.into_iter().all(is_given)
    }

    /// A request passes where one policy lets it. Otherwise the first one's reason is given, and of a rate the shortest
    /// time.
    fn admitted(&self, target: &Target, request: Option<&RequestLine<'_>>) -> Result<(), Refusal> {
        let mut refused = None;
        for policy in self.allowing(target) {
            match request.map(|request| policy.check(target, request)) {
                Some(Err(refusal)) => {
                    refused.get_or_insert(refusal);
                    continue;
                }
                // It would not see the requests in a tunnel.
                None if policy.has_request_rules() => continue,
                _ => {}
            }
            let take = |rate| self.network.request_rates.take(&policy.name, rate, &self.conversation.owner);
            match policy.requests_per_minute.map_or(Ok(()), take) {
                Ok(()) => return Ok(()),
                Err(wait_s) => {
                    let is_longer = matches!(refused, Some(Refusal::TooFast { wait_s: known, .. }) if known <= wait_s);
                    if !is_longer {
                        refused =
                            Some(Refusal::TooFast { target: target.clone(), policy: policy.name.clone(), wait_s });
                    }
                }
            }
        }
        Err(refused.unwrap_or_else(|| Refusal::NotAllowed(target.clone())))
    }

    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let policies: Vec<_> = self.allowing(target).collect();
        if policies.is_empty() {
            return Err(Refusal::NotAllowed(target.clone()));
        }
        // The only look-up: what is checked here is what is connected to.
        let found = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let share = self.network.look_ups.of(&self.conversation.owner);
                let _until_answered = share.acquire().await;
                self.network.parts.resolver.resolve(name).await
            }
        };
        if found.is_empty() {
            return Err(Refusal::NotFound(target.clone()));
        }
        for address in &found {
            self.check(target, *address, &policies).await?;
        }
        Ok(found.into_iter().map(|address| SocketAddr::new(address, target.port)).collect())
    }

    /// One address that is not allowed refuses them all: the owner of a name chooses every address that it leads to.
    async fn check(&self, target: &Target, address: IpAddr, policies: &[Arc<Policy>]) -> Result<(), Refusal> {
        if policies.iter().any(|policy| policy.names_address(address, target.port)) {
            return Ok(());
        }
        if !is_public(address) {
            return Err(Refusal::NotPublic(target.clone(), address));
        }
        if self.network.is_own(&target.host, address).await { Err(Refusal::OwnAddress(target.clone())) } else { Ok(()) }
    }

    /// The sentence about a refusal in the output of the program.
    fn sentence(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::NotAllowed(target) => format!("[network: {refusal}. {}]\n", self.advice(target)),
            refusal => format!("[network: {refusal}.]\n"),
        }
    }

    /// What a policy needs to allow a host. Policies that the token does not have are not named: they may be of other
    /// owners.
    fn advice(&self, target: &Target) -> String {
        if self.access.own.is_some() {
            return format!("The operator can add \"{target}\" to `hosts` below [packages] in sandbox.toml.");
        }
        let granted = self.network.parts.tokens.network_of(&self.conversation.owner);
        let policies = if self.access.are_of_token { self.network.policies.all() } else { Vec::new() };
        let held = policies.iter().filter(|policy| policy.allows(target) && holds(policy, granted.as_deref()));
        if let Some(policy) = held.max_by_key(|policy| policy.is_for(&self.language)) {
            let (name, language) = (&policy.name, &self.language);
            return if policy.is_for(language) {
                format!("The policy {name} does: let `network` of the request name it, or restart the session.")
            } else {
                format!("The policy {name} does for other languages: the operator can add \"{language}\" to its list.")
            };
        }
        let (every_token, whose) = match granted {
            _ if !self.access.are_of_token => ("", ""),
            None => (" and every_token = true", ""),
            Some(_) => ("", " of a policy that the token has"),
        };
        format!(
            "The operator can name it: hosts = [\"{target}\"]{every_token} below [network.<name>]{whose} in \
             sandbox.toml, or on the admin page."
        )
    }
}

#[async_trait]
impl Gate for SandboxGate {
    async fn decide(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let decided = self.addresses(target).await;
        decided.inspect_err(|refusal| self.closed(NetworkUse::of(target.to_string(), Some(refusal.clone()))))
    }

    fn opens(&self, target: &Target) -> bool {
        let mut allowing = self.allowing(target).peekable();
        let has_rules = allowing.peek().is_some() && allowing.all(|policy| policy.has_request_rules());
        has_rules || self.secrets.iter().any(|secret| secret.is_for(target))
    }

    fn admit(&self, target: &Target, request: Option<&RequestLine<'_>>) -> Result<(), Refusal> {
        let admitted = if self.has_lost_secret(target) {
            // Without it a request means another thing, and an answer may hold what was stored with it before.
            Err(Refusal::PolicyChanged(target.clone()))
        } else {
            self.admitted(target, request)
        };
        admitted.inspect_err(|refusal| self.closed(NetworkUse::of(target.to_string(), Some(refusal.clone()))))
    }

    fn secrets(&self, target: &Target) -> Vec<SandboxSecret> {
        self.secrets.iter().filter(|secret| secret.is_for(target)).cloned().collect()
    }

    fn pace(&self, target: &Target) -> Option<Pace> {
        let policies: Vec<_> = self.allowing(target).collect();
        let is_limited = policies.iter().all(|policy| policy.bytes_per_minute.is_some());
        let policy = policies.iter().filter(|_| is_limited).max_by_key(|policy| policy.bytes_per_minute)?;
        Some(self.network.byte_rates.pace(&policy.name, policy.bytes_per_minute?, &self.conversation.owner))
    }

    fn request(&self, request: Bytes) -> BoxStream<'static, Bytes> {
        let answers = self.access.requests.then(|| self.network.requests()).flatten();
        answers.map_or_else(
            || futures_util::stream::empty().boxed(),
            |answers| answers.answer(&self.conversation, &self.language, request),
        )
    }

    fn messages(&self, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
        let calls = self.access.tools.then(|| self.network.calls()).flatten();
        let (conversation, language) = (self.conversation.clone(), self.language.clone());
        let program = Program { conversation, language, reporter: Arc::clone(&self.reporter) };
        calls.map_or_else(|| futures_util::stream::empty().boxed(), |calls| calls.answer(program, messages))
    }

    fn closed(&self, used: NetworkUse) {
        let (conversation, language) = (self.conversation.clone(), self.language.clone());
        let decision = Decision { at_unix_ms: self.network.parts.clock.unix_ms(), conversation, language, used };
        self.network.parts.observer.connected(&decision);
        self.reporter.report(&decision.used, |refusal| self.sentence(refusal));
        self.network.decisions.add(decision);
    }
}

impl Inner {
    /// Whether a connection to a host at this address would be one to the server: one of its machine's, or of the hosts
    /// of its own URLs, which lead to the addresses at which clients reach it. In a container, or behind a proxy, no
    /// interface of its machine has those.
    ///
    /// A proxy in front may serve other hosts at the same address. A policy whose `addresses` name it reaches those.
    async fn is_own(&self, host: &Host, address: IpAddr) -> bool {
        let is_of_machine = |address| self.parts.resolver.is_own(address);
        [address, destination(address)].into_iter().any(is_of_machine)
            || self.parts.own_hosts.contains(host)
            || self.own_addresses().await.contains(&destination(address))
    }

    /// The addresses of the server's own hosts. Callers at the same time that find old ones each look them up.
    async fn own_addresses(&self) -> Arc<[IpAddr]> {
        let known = self.own_addresses.lock().clone();
        let (known, is_fresh) = known.map_or((Arc::default(), false), |(at, known)| (known, at.elapsed() < FRESH));
        if is_fresh {
            return known;
        }
        let (mut addresses, mut is_whole) = (Vec::new(), true);
        for host in &self.parts.own_hosts {
            let found = match host {
                Host::Address(address) => vec![*address],
                Host::Name(name) => self.parts.resolver.resolve(name).await,
            };
            is_whole &= !found.is_empty();
            addresses.extend(found.into_iter().map(destination));
        }
        // A look-up that fails forgets nothing.
        if !is_whole {
            addresses.extend(known.iter());
        }
        addresses.sort_unstable();
        addresses.dedup();
        let addresses: Arc<[IpAddr]> = addresses.into();
        *self.own_addresses.lock() = Some((Instant::now(), Arc::clone(&addresses)));
        addresses
    }
}

/// The newest connections. None of an owner's is forgotten for another owner's, until there are too many owners.
#[derive(Debug, Default)]
pub struct Decisions(Mutex<HashMap<Principal, VecDeque<Decision>>>);

impl Decisions {
    pub(super) fn add(&self, decision: Decision) {
        let mut all = self.0.lock();
        let owner = decision.conversation.owner.clone();
        if all.len() >= OWNERS_MAX && !all.contains_key(&owner) {
            let newest = |kept: &VecDeque<Decision>| kept.back().map(|decision| decision.at_unix_ms);
            let oldest = all.iter().min_by_key(|(_, kept)| newest(kept)).map(|(owner, _)| owner.clone());
            oldest.map(|owner| all.remove(&owner));
        }
        let kept = all.entry(owner).or_default();
        kept.drain(..(kept.len() + 1).saturating_sub(OF_OWNER_MAX));
        kept.push_back(decision);
    }

    /// Those of all owners, newest first.
    pub fn newest_of_all(&self, limit: usize) -> Vec<Decision> {
        let all = self.0.lock();
        let mut newest: Vec<_> = all.values().flat_map(|kept| kept.iter().rev().take(limit)).collect();
        newest.sort_by_key(|decision| Reverse(decision.at_unix_ms));
        newest.into_iter().take(limit).cloned().collect()
    }

    /// Those of an owner, newest first.
    pub fn newest(&self, who: &Principal, limit: usize) -> Vec<Decision> {
        let all = self.0.lock();
        all.get(who).into_iter().flat_map(|kept| kept.iter().rev()).take(limit).cloned().collect()
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
