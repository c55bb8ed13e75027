//! The decision on each connection of one sandbox, and what is told of it.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use super::{Access, Decision, Inner, Sink};
use crate::{
    domain::{
        address::is_public,
        id::Language,
        network::{Host, NetworkUse, Policy, Refusal, Target},
        owner::ConversationKey,
    },
    ports::{network::Gate, observer::NetworkFacts},
};

/// Events of one run or cell, and sentences about refusals in its output.
const EVENTS_MAX: usize = 200;
const SENTENCES_MAX: usize = 10;

/// Where the connections of one sandbox are told.
#[derive(Default)]
pub(in crate::services) struct Told(Mutex<Listener>);

#[derive(Default)]
struct Listener {
    sink: Option<Sink>,
    events: usize,
    /// Each once.
    refusals: Vec<String>,
}

impl Told {
    /// From now on connections are told here.
    pub(in crate::services) fn to(&self, sink: Sink) {
        *self.listener() = Listener { sink: Some(sink), ..Listener::default() };
    }

    /// Ends that; a sentence for each host that was refused since.
    pub(in crate::services) fn end(&self) -> Vec<String> {
        std::mem::take(&mut *self.listener()).refusals
    }

    fn tell(&self, used: &NetworkUse) {
        let mut listener = self.listener();
        if let Some(refusal) = &used.refusal {
            let sentence = sentence(refusal);
            if listener.refusals.len() < SENTENCES_MAX && !listener.refusals.contains(&sentence) {
                listener.refusals.push(sentence);
            }
        }
        listener.events += 1;
        if let Some(sink) = listener.sink.as_ref().filter(|_| listener.events <= EVENTS_MAX) {
            sink(used.clone());
        }
    }

    fn listener(&self) -> std::sync::MutexGuard<'_, Listener> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the refused program's author can do about it.
fn sentence(refusal: &Refusal) -> String {
    match refusal {
        Refusal::NotAllowed(target) => format!(
            "[network: no policy allows {target}. The operator can name it: hosts = [\"{target}\"] below \
             [network.<name>] in sandbox.toml.]\n"
        ),
        refusal => format!("[network: {refusal}.]\n"),
    }
}

/// Decides for one sandbox.
pub(super) struct SandboxGate {
    pub(super) network: Arc<Inner>,
    pub(super) access: Access,
    pub(super) conversation: ConversationKey,
    pub(super) language: Language,
    pub(super) told: Arc<Told>,
}

impl SandboxGate {
    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let policies: Vec<&Policy> =
            self.access.0.iter().map(Arc::as_ref).filter(|policy| policy.allows(target)).collect();
        if policies.is_empty() {
            return Err(Refusal::NotAllowed(target.clone()));
        }
        // The only look-up: what is checked here is what is connected to.
        let found = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.network.parts.resolver.resolve(name).await,
        };
        if found.is_empty() {
            return Err(Refusal::NotFound(target.clone()));
        }
        for address in &found {
            self.check(target, *address, &policies)?;
        }
        Ok(found.into_iter().map(|address| SocketAddr::new(address, target.port)).collect())
    }

    /// One address that is not allowed refuses them all: a name that leads to several is one answer of its owner.
    fn check(&self, target: &Target, address: IpAddr, policies: &[&Policy]) -> Result<(), Refusal> {
        if policies.iter().any(|policy| policy.names_address(address)) {
            return Ok(());
        }
        if !is_public(address) {
            return Err(Refusal::NotPublic(target.clone(), address));
        }
        if self.network.parts.resolver.is_own(address) {
            return Err(Refusal::OwnAddress(target.clone()));
        }
        Ok(())
    }
}

#[async_trait]
impl Gate for SandboxGate {
    async fn decide(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal> {
        let decided = self.addresses(target).await;
        decided.inspect_err(|refusal| {
            self.over(NetworkUse {
                target: target.to_string(),
                refusal: Some(refusal.clone()),
                sent_bytes: 0,
                received_bytes: 0,
                took: Duration::ZERO,
            });
        })
    }

    fn over(&self, used: NetworkUse) {
        let at_unix_ms = self.network.parts.clock.unix_ms();
        self.network.parts.observer.connected(&NetworkFacts {
            at_unix_s: at_unix_ms.div_euclid(1000),
            conversation: &self.conversation,
            language: &self.language,
            used: &used,
        });
        self.told.tell(&used);
        let (conversation, language) = (self.conversation.clone(), self.language.clone());
        self.network.decisions.add(Decision { at_unix_ms, conversation, language, used });
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
