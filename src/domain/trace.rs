//! Where in a trace something happens (W3C Trace Context). Of what a caller says only the ids and the sampling flag are
//! taken; its vendors' texts are not.
//!
//! Ids are made from ours: a request that nobody traces has its own id as that of its trace, so whoever knows the one from
//! the log or an answer finds the other.

use uuid::Uuid;

use super::id::{RequestId, RunId};

/// A span's place: its trace, itself, what it is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    sampled: bool,
}

impl TraceContext {
    /// Reads the header `traceparent`; nothing where it breaks a rule, as the standard has it.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = hex(version)?;
        // Later versions may say more; this one may not.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, span, [flags]) = (hex(trace)?, hex(span)?, hex(flags)?);
        let valid = trace != [0; 16] && span != [0; 8];
        valid.then_some(Self { trace, span, parent: None, sampled: flags & 1 == 1 })
    }

    /// A request's own place, within what its caller says.
    pub fn of_request(request: RequestId, caller: Option<Self>) -> Self {
        Self::from_id(request.to_bytes(), caller)
    }

    /// A run's own place, within the request that began it.
    pub fn of_run(run: RunId, within: Option<Self>) -> Self {
        Self::from_id(run.to_bytes(), within)
    }

    /// The beginning of a trace.
    pub fn root() -> Self {
        Self::from_id(Uuid::new_v4().into_bytes(), None)
    }

    /// Something new within this.
    #[must_use]
    pub fn child(&self) -> Self {
        Self::from_id(Uuid::new_v4().into_bytes(), Some(*self))
    }

    fn from_id(id: [u8; 16], within: Option<Self>) -> Self {
        let mut span = [0; 8];
        span.copy_from_slice(&id[8..]);
        Self {
            trace: within.map_or(id, |within| within.trace),
            span,
            parent: within.map(|within| within.span),
            sampled: within.is_none_or(|within| within.sampled),
        }
    }

    /// The trace's id.
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace
    }

    /// The span's own id.
    pub fn span_id(&self) -> [u8; 8] {
        self.span
    }

    /// The id of what it is part of.
    pub fn parent_id(&self) -> Option<[u8; 8]> {
        self.parent
    }

    /// Whether the trace is recorded: a caller may have chosen that it is not.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }
}

/// Exactly so many bytes as lower case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fuzz_support::{altered, cases};

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_callers_trace_goes_on() {
        let caller = TraceContext::parse(CALLER).expect("the standard's example");
        let request = TraceContext::of_request(RequestId::new(), Some(caller));
        let run = TraceContext::of_run(RunId::new(), Some(request));
        assert_eq!(run.trace_id(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        assert_eq!(request.parent_id(), Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()));
        assert_eq!(run.parent_id(), Some(request.span_id()));
        assert_ne!(run.span_id(), request.span_id());
        assert!(run.is_sampled());
    }

    #[test]
    fn a_trace_of_ours_has_the_requests_id() {
        let id = RequestId::new();
        let request = TraceContext::of_request(id, None);
        assert_eq!(id.to_string(), format!("req-{:032x}", u128::from_be_bytes(request.trace_id())));
        assert_eq!((request.parent_id(), request.is_sampled()), (None, true));
        let (one, other) = (request.child(), request.child());
        assert_eq!((one.trace_id(), one.parent_id()), (request.trace_id(), Some(request.span_id())));
        assert_ne!(one.span_id(), other.span_id());
    }

    #[test]
    fn a_caller_that_does_not_record_is_followed() {
        let caller = TraceContext::parse(&CALLER.replace("-01", "-00")).expect("a context");
        assert!(!TraceContext::of_run(RunId::new(), Some(caller)).child().is_sampled());
    }

    #[test]
    fn what_breaks_a_rule_is_nobodys_trace() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
        assert!(TraceContext::parse(&(CALLER.replace("00-4", "01-4") + "-more")).is_some());
    }

    /// What is read is what the header says; the rest of it is of no meaning.
    fn is_read_as_it_is_said(header: &[u8]) {
        let header = String::from_utf8_lossy(header);
        let Some(context) = TraceContext::parse(&header) else { return };
        let said = u128::from_be_bytes(context.trace_id());
        let span = u64::from_be_bytes(context.span_id());
        assert!(said != 0 && span != 0 && !header.starts_with("ff"), "{header}");
        assert_eq!(header.get(2..53), Some(format!("-{said:032x}-{span:016x}-").as_str()));
        let flags = u8::from_str_radix(&header[53..55], 16).expect("two digits");
        assert_eq!(context.is_sampled(), flags % 2 == 1, "{header}");
        assert!(header.len() == 55 || (header[55..].starts_with('-') && !header.starts_with("00")), "{header}");
    }

    #[test]
    fn fuzz_headers() {
        bolero::check!().with_iterations(cases()).for_each(|header: &[u8]| is_read_as_it_is_said(header));
    }

    #[test]
    fn fuzz_altered_headers() {
        let alterations = bolero::produce::<Vec<_>>().with().len(0..4_usize);
        bolero::check!()
            .with_iterations(cases())
            .with_generator(alterations)
            .for_each(|alterations| is_read_as_it_is_said(&altered(CALLER, alterations)));
    }
}
