//! One call of a tool: whether it is allowed, the call, and its records. `answers` makes what a program gets of it.

use std::{num::NonZeroU32, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use super::{
    Inner,
    answers::Answered,
    approvals::Reply,
    server::{Defined, ServerHandle},
};
use crate::{
    domain::{
        EventKind, Failure, text,
        tools::{Action, CallEnd, ProposedCall, RuleText, ToolUse, canonical, without_rule},
    },
    ports::{
        observer::ToolFacts,
        tools::{ProgressSink, UpstreamError},
    },
    services::{
        network::{Limiters, Program},
        shared_parts::SharedParts,
    },
};

/// How much of a name that a program wrote is reported, in characters.
const NAME_CHARS_MAX: usize = 128;
/// What counts all calls of a run or cell.
const ALL: &str = "*";

/// A call as a program requests it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestedCall {
    server: String,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// Why a call was not answered: how it ended, a word for the program, and a sentence for its author.
#[derive(Debug)]
pub(super) struct CallFailure {
    pub(super) end: CallEnd,
    pub(super) code: &'static str,
    pub(super) why: String,
}

impl CallFailure {
    fn refused(code: &'static str, why: String) -> Self {
        Self { end: CallEnd::Refused, code, why }
    }

    fn denied(why: String) -> Self {
        Self { end: CallEnd::Denied, code: "tool_denied", why }
    }
}

impl From<UpstreamError> for CallFailure {
    fn from(error: UpstreamError) -> Self {
        let (end, code) = match error {
            UpstreamError::Refused(_) => (CallEnd::Failed, "tool_failed"),
            _ => (CallEnd::Unavailable, "tool_unavailable"),
        };
        Self { end, code, why: error.to_string() }
    }
}

impl From<Failure> for CallFailure {
    fn from(failure: Failure) -> Self {
        Self { end: CallEnd::Unavailable, code: failure.code.as_str(), why: failure.message }
    }
}

/// A call that is decided on.
struct PendingCall<'a> {
    program: &'a Program,
    server: &'a str,
    tool: &'a str,
    arguments: &'a Arc<Value>,
    /// The canonical text of the arguments.
    text: &'a str,
}

/// Reports a call when it is over, also when its future is dropped.
struct CallReport<'a> {
    inner: &'a Inner,
    program: &'a Program,
    used: ToolUse,
    begun: Instant,
}

impl Drop for CallReport<'_> {
    fn drop(&mut self) {
        self.used.took = self.begun.elapsed();
        let Program { conversation, language, reporter } = self.program;
        let SharedParts { sandboxes, observer, .. } = &self.inner.parts.shared;
        let at_unix_s = sandboxes.clock.unix_s();
        observer.tool_called(&ToolFacts { at_unix_s, conversation, language, used: &self.used });
        reporter.event(EventKind::Tool(Box::new(self.used.clone())));
    }
}

impl Inner {
    /// Makes a call, where it may be made. It is sent once. The permit is held until the answer is written.
    ///
    /// # Errors
    /// Why it was not answered.
    pub(super) async fn call(
        &self,
        program: &Program,
        requested: RequestedCall,
        progress: ProgressSink,
    ) -> Result<(Answered, OwnedSemaphorePermit), CallFailure> {
        let RequestedCall { server, tool, arguments } = requested;
        let arguments = Arc::new(Value::Object(arguments));
        let text = canonical(&arguments);
        let short = |name: &str| name.chars().take(NAME_CHARS_MAX).collect();
        let mut report = CallReport {
            inner: self,
            program,
            used: ToolUse {
                server: short(&server),
                tool: short(&tool),
                // Until it is known.
                end: CallEnd::Cancelled,
                why: None,
                arguments_sha256: text::sha256(text.as_bytes()),
                arguments_bytes: text.len() as u64,
                took: std::time::Duration::ZERO,
            },
            begun: Instant::now(),
        };
        let called = async {
            let pending = PendingCall { program, server: &server, tool: &tool, arguments: &arguments, text: &text };
            let (live, defined) = self.permitted(&pending, &mut report.used.tool).await?;
            let Value::Object(arguments) = Arc::unwrap_or_clone(arguments) else {
                unreachable!("it was made of an object")
            };
            let name = &defined.tool.name;
            let (answer, room) = live.call(&program.conversation.owner, name, arguments, progress).await?;
            self.answered(program, name, answer).await.map(|answered| (answered, room))
        };
        let called = called.await;
        (report.used.end, report.used.why) = match &called {
            Ok(_) => (CallEnd::Answered, None),
            Err(CallFailure { end, why, .. }) => (*end, Some(why.clone())),
        };
        called
    }

    /// The tool, where the call may be made now. After each question everything is looked up again: the server may be
    /// gone, the rules and the tool may be others. The call is `reported` under the name that a question about it has.
    async fn permitted(
        &self,
        pending: &PendingCall<'_>,
        reported: &mut String,
    ) -> Result<(Arc<ServerHandle>, Arc<Defined>), CallFailure> {
        let &PendingCall { program, server, text, .. } = pending;
        if !program.reporter.count(ALL, self.calls_per_run_max) {
            let why = format!("More than {} calls of tools in one run or cell.", self.calls_per_run_max);
            return Err(CallFailure::refused("tool_limit", why));
        }
        let mut is_counted = false;
        loop {
            let (live, defined, rule) = self.find_tool(pending).await?;
            let rule = rule.map(|at| (at, &live.server.rules[at]));
            let action = rule.map_or_else(|| without_rule(&defined.tool), |(_, rule)| rule.text.action);
            let name = &defined.tool.name;
            reported.clone_from(name);
            let shown = name.escape_debug();
            if action == Action::Deny {
                return Err(CallFailure::denied(format!("A rule of {server} denies this call of {shown}.")));
            }
            if let (Some((at, rule)), false) = (rule, is_counted) {
                count(&self.rates, pending, at, &rule.text)?;
                is_counted = true;
            }
            if action == Action::Allow {
                return Ok((live, defined));
            }
            let call = ProposedCall {
                conversation: program.conversation.clone(),
                server: server.to_owned(),
                tool: name.clone(),
                definition: defined.hash.clone(),
                arguments: text.to_owned(),
            };
            if self.parts.approvals.is_granted(&call).await? {
                return Ok((live, defined));
            }
            let _wait = program.reporter.waits.begin();
            let tell = |question| program.reporter.event(EventKind::Approval(Box::new(question)));
            if let Reply::Denied(why) = self.parts.approvals.ask(call, tell).await? {
                return Err(CallFailure::denied(format!("{shown} was not called: {why}.")));
            }
        }
    }

    /// The tool, for which the arguments are valid, and the number of the rule for the call.
    async fn find_tool(
        &self,
        pending: &PendingCall<'_>,
    ) -> Result<(Arc<ServerHandle>, Arc<Defined>, Option<usize>), CallFailure> {
        let &PendingCall { program, server, tool, arguments, text } = pending;
        let owner = &program.conversation.owner;
        let live = self.server(owner, server)?;
        let definitions = live.definitions().await?;
        let Some(defined) = definitions.find(tool) else {
            let why = format!("{server} has no tool `{}`; search for one.", text::shown(tool));
            return Err(CallFailure::refused("not_found", why));
        };
        let is_quick = defined.is_quick(&live.server.rules, text.len());
        let (of, checked, arguments, who) =
            (Arc::clone(&live.server), Arc::clone(defined), Arc::clone(arguments), owner.clone());
        let judge = move || -> Result<_, CallFailure> {
            checked.check(&arguments).map_err(|why| {
                let why = format!("The arguments of {} are not valid: {why}", checked.tool.name.escape_debug());
                CallFailure::refused("invalid_arguments", why)
            })?;
            Ok(of.rules.iter().position(|rule| rule.matches(who.name(), &checked.tool, &arguments)))
        };
        let rule = if is_quick { judge() } else { self.work.run(owner, judge).await? };
        rule.map(|rule| (live, Arc::clone(defined), rule))
    }
}

/// Counts a call for the rule of this number, which lets it pass. One that is refused counts for neither limit.
fn count(rates: &Limiters, pending: &PendingCall<'_>, number: usize, rule: &RuleText) -> Result<(), CallFailure> {
    let &PendingCall { program, server, .. } = pending;
    let name = format!("{server} {number}");
    if let Some(max) = rule.per_run
        && !program.reporter.count(&name, max)
    {
        let why = format!("A rule of {server} lets {max} such calls pass in one run or cell.");
        return Err(CallFailure::refused("tool_limit", why));
    }
    if let Some(max) = rule.per_minute.and_then(NonZeroU32::new)
        && rates.take(&name, max, &program.conversation.owner).is_err()
    {
        program.reporter.take_back(&name);
        let why = format!("A rule of {server} lets {max} such calls pass in a minute: wait, or make fewer.");
        return Err(CallFailure::refused("tool_limit", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::{ConversationKey, Principal};

    /// A run of the default owner.
    fn run() -> Program {
        let conversation = ConversationKey::new(Principal::default(), "c".parse().expect("an id"));
        Program { conversation, language: "python".parse().expect("a language"), reporter: Arc::default() }
    }

    /// Why a call of this run does not pass under a rule of the server `up`.
    fn refused(rates: &Limiters, program: &Program, rule: &RuleText) -> Option<String> {
        let pending = PendingCall { program, server: "up", tool: "echo", arguments: &Arc::default(), text: "{}" };
        count(rates, &pending, 0, rule).err().map(|refusal| refusal.why)
    }

    #[test]
    fn a_call_that_is_refused_counts_for_no_limit() {
        let rule = |per_run: u32, per_minute: u32| -> RuleText {
            let text = json!({"tool": "*", "action": "allow", "per_run": per_run, "per_minute": per_minute});
            serde_json::from_value(text).expect("a rule")
        };
        let (of_run, of_minute) = ("in one run or cell", "in a minute");
        let is_for = |why: Option<String>, limit: &str| why.is_some_and(|why| why.contains(limit));

        let (rates, program) = (Limiters::default(), run());
        assert_eq!(refused(&rates, &program, &rule(2, 1)), None);
        for _ in 0..3 {
            assert!(is_for(refused(&rates, &program, &rule(2, 1)), of_minute), "the run has one left");
        }
        // The same rule with another rate: what the run has left is used.
        assert_eq!(refused(&rates, &program, &rule(2, 5)), None);
        assert!(is_for(refused(&rates, &program, &rule(2, 5)), of_run));

        let rates = Limiters::default();
        let first = run();
        assert_eq!(refused(&rates, &first, &rule(1, 2)), None);
        for _ in 0..3 {
            assert!(is_for(refused(&rates, &first, &rule(1, 2)), of_run));
        }
        assert_eq!(refused(&rates, &run(), &rule(1, 2)), None, "the minute has one left for another run");
    }
}
