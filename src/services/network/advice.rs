//! What a host needs that no policy of a sandbox allows, for the author of the refused program.

use super::{SandboxGate, holds};
use crate::domain::network::{Refusal, Target};

impl SandboxGate {
    /// The sentence about a refusal in the output of the program.
    pub(super) fn sentence(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::NotAllowed(target) => format!("[network: {refusal}. {}]\n", self.needed(target)),
            refusal => format!("[network: {refusal}.]\n"),
        }
    }

    /// Policies that the token does not have are not named: they may be of other owners.
    fn needed(&self, target: &Target) -> String {
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
             sandbox.toml, or on /admin."
        )
    }
}
