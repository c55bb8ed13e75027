//! The records of connections: reports to the watchers of a run or a cell, and the newest of each owner, in bounded
//! memory.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
};

use parking_lot::Mutex;

use super::Sink;
use crate::{
    domain::{
        EventKind, Principal,
        network::{Decision, NetworkUse, Refusal},
        tools::ApprovalId,
    },
    services::waits::Waits,
};

/// Connections of one run or cell that are events, as many calls of tools and as many questions about them, and
/// sentences about refusals in its output.
pub(super) const EVENTS_MAX: usize = 200;
pub(super) const SENTENCES_MAX: usize = 10;
/// Connections that are kept of one owner, and owners.
const OF_OWNER_MAX: usize = 500;
const OWNERS_MAX: usize = 1000;

/// Where the connections of one sandbox are reported.
#[derive(Default)]
pub(in crate::services) struct ConnectionReporter {
    listener: Mutex<Listener>,
    /// Questions to a person that its program waits for.
    pub(in crate::services) waits: Waits,
}

#[derive(Default)]
struct Listener {
    sink: Option<Sink>,
    connections: usize,
    tool_calls: usize,
    questions: HashSet<ApprovalId>,
    /// Calls that rules let pass, by what counts them.
    calls: HashMap<String, u32>,
    /// Each once.
    refusals: Vec<String>,
}

impl ConnectionReporter {
    /// From now on connections are reported here.
    pub(in crate::services) fn to(&self, sink: Sink) {
        *self.listener.lock() = Listener { sink: Some(sink), ..Listener::default() };
    }

    /// Ends that; a sentence for each host that was refused since, and one about connections that are no events.
    pub(in crate::services) fn end(&self) -> Vec<String> {
        let Listener { mut refusals, connections, .. } = std::mem::take(&mut *self.listener.lock());
        if let more @ 1.. = connections.saturating_sub(EVENTS_MAX) {
            refusals.push(format!("[network: {more} more connections are not listed.]\n"));
        }
        refusals
    }

    /// The same without an end: what is counted is counted on.
    pub(in crate::services) fn take_refusals(&self) -> Vec<String> {
        std::mem::take(&mut self.listener.lock().refusals)
    }

    /// A refusal becomes that sentence.
    pub(super) fn report(&self, used: &NetworkUse, sentence: impl FnOnce(&Refusal) -> String) {
        let mut listener = self.listener.lock();
        let is_full = listener.refusals.len() >= SENTENCES_MAX;
        // Clients keep connections that they may not need again, and make others.
        let refusal = used.refusal.as_ref().filter(|refusal| !is_full && !matches!(refusal, Refusal::Idle(_)));
        if let Some(sentence) = refusal.map(sentence).filter(|sentence| !listener.refusals.contains(sentence)) {
            listener.refusals.push(sentence);
        }
        listener.event(EventKind::Network(Box::new(used.clone())));
    }

    /// Reports another event.
    pub(in crate::services) fn event(&self, event: EventKind) {
        self.listener.lock().event(event);
    }

    /// Counts one call in this run or cell, unless there were so many already.
    pub(in crate::services) fn count(&self, what: &str, max: u32) -> bool {
        let mut listener = self.listener.lock();
        let count = listener.calls.entry(what.to_owned()).or_default();
        let fits = *count < max;
        *count += u32::from(fits);
        fits
    }

    /// Takes back one call that [`Self::count`] counted and that is refused after all.
    pub(in crate::services) fn take_back(&self, what: &str) {
        // Where the next run has begun meanwhile, nothing is counted.
        if let Some(count) = self.listener.lock().calls.get_mut(what) {
            *count = count.saturating_sub(1);
        }
    }
}

impl Listener {
    fn event(&mut self, event: EventKind) {
        let Some(sink) = &self.sink else { return };
        let count = match &event {
            EventKind::Network(_) => &mut self.connections,
            EventKind::Tool(_) => &mut self.tool_calls,
            // Each once, since it has the arguments: a program may give up a call and make it again.
            EventKind::Approval(question) => {
                if self.questions.len() < EVENTS_MAX && self.questions.insert(question.id) {
                    sink(event);
                }
                return;
            }
            _ => return sink(event),
        };
        *count += 1;
        if *count <= EVENTS_MAX {
            sink(event);
        }
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
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::domain::tools::{Approval, CallEnd, ProposedCall, ToolUse};

    #[test]
    fn connections_that_are_no_events_are_counted_in_a_sentence_and_calls_of_tools_displace_none() {
        let (reporter, events) = (ConnectionReporter::default(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&events);
        reporter.to(Box::new(move |event| seen.lock().push(event)));
        let call = ToolUse {
            server: "a".to_owned(),
            tool: "b".to_owned(),
            end: CallEnd::Answered,
            why: None,
            arguments_sha256: String::new(),
            arguments_bytes: 0,
            took: Duration::ZERO,
        };
        for _ in 0..300 {
            reporter.event(EventKind::Tool(Box::new(call.clone())));
            reporter.report(&NetworkUse::of("a.example:443".to_owned(), None), |_| String::new());
        }
        assert_eq!(reporter.end(), ["[network: 100 more connections are not listed.]\n"]);
        let is_connection = |event: &&EventKind| matches!(event, EventKind::Network(_));
        let events = events.lock();
        assert_eq!((events.len(), events.iter().filter(is_connection).count()), (2 * EVENTS_MAX, EVENTS_MAX));
        reporter.to(Box::new(|_| {}));
        assert!(reporter.end().is_empty(), "it was about the run before");
    }

    #[test]
    fn a_question_is_an_event_once_however_often_its_program_makes_the_call() {
        let (reporter, events) = (ConnectionReporter::default(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&events);
        reporter.to(Box::new(move |event| {
            if let EventKind::Approval(question) = event {
                seen.lock().push(question.id);
            }
        }));
        let question = |id| Approval {
            id,
            call: ProposedCall {
                conversation: "c".parse().expect("a key"),
                server: "a".to_owned(),
                tool: "b".to_owned(),
                definition: String::new(),
                arguments: "{}".to_owned(),
            },
            asked_unix_ms: 0,
            answered: None,
            answered_by: None,
            expires_unix_ms: 0,
        };
        let ids: Vec<_> = (0..=EVENTS_MAX).map(|_| ApprovalId::new()).collect();
        for id in ids.iter().flat_map(|id| [id, id]) {
            reporter.event(EventKind::Approval(Box::new(question(*id))));
        }
        assert_eq!(*events.lock(), ids[..EVENTS_MAX]);
    }

    #[test]
    fn calls_are_counted_until_the_end_of_the_cell_also_when_its_refusals_are_taken() {
        let reporter = ConnectionReporter::default();
        reporter.to(Box::new(|_| {}));
        assert!(reporter.count("calls", 2) && reporter.count("calls", 2));
        assert!(reporter.take_refusals().is_empty() && !reporter.count("calls", 2));
        assert!(reporter.end().is_empty() && reporter.count("calls", 2));
    }
}
