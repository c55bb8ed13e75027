//! The position of a span in a trace (W3C Trace Context). The ids and the sampling flag of the caller's `traceparent`
//! are used; `tracestate` is ignored.
//!
//! Ids derive from the server's ids: a request without a caller's trace uses its request id as trace id, so the trace
//! can be found from the log or from an error answer.

use uuid::Uuid;

use super::{
    id::{RequestId, RunId},
    text::unhex,
};

/// The ids of a span, its trace and its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub parent_id: Option<[u8; 8]>,
    /// Whether the trace is recorded; the caller decides.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Parses the header `traceparent`; `None` when it is invalid, which the standard treats as absent.
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = hex(version)?;
        // Later versions may append fields; version 0 may not.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace_id, span_id, [flags]) = (hex(trace)?, hex(span)?, hex(flags)?);
        let valid = trace_id != [0; 16] && span_id != [0; 8];
        valid.then_some(Self { trace_id, span_id, parent_id: None, is_sampled: flags & 1 == 1 })
    }

    /// The span of a request, a child of its caller's.
    pub fn of_request(request: RequestId, caller: Option<Self>) -> Self {
        Self::from_id(request.to_bytes(), caller)
    }

    /// The span of a run, a child of the request that began it.
    pub fn of_run(run: RunId, within: Option<Self>) -> Self {
        Self::from_id(run.to_bytes(), within)
    }

    /// The first span of a new trace.
    pub fn root() -> Self {
        Self::from_id(Uuid::new_v4().into_bytes(), None)
    }

    /// A new span, a child of this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self::from_id(Uuid::new_v4().into_bytes(), Some(*self))
    }

    fn from_id(id: [u8; 16], within: Option<Self>) -> Self {
        let mut span_id = [0; 8];
        span_id.copy_from_slice(&id[8..]);
        Self {
            trace_id: within.map_or(id, |within| within.trace_id),
            span_id,
            parent_id: within.map(|within| within.span_id),
            is_sampled: within.is_none_or(|within| within.is_sampled),
        }
    }
}

/// Decodes exactly `N` bytes of lower case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = !text.bytes().any(|digit| digit.is_ascii_uppercase());
    unhex(text).filter(|_| lower)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fuzz_support::{cases, mutated};

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn request_and_run_continue_the_callers_trace() {
        let caller = TraceContext::parse(CALLER).expect("the standard's example");
        let request = TraceContext::of_request(RequestId::new(), Some(caller));
        let run = TraceContext::of_run(RunId::new(), Some(request));
        assert_eq!(run.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
        assert_eq!(request.parent_id, Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()));
        assert_eq!(run.parent_id, Some(request.span_id));
        assert_ne!(run.span_id, request.span_id);
        assert!(run.is_sampled);
    }

    #[test]
    fn trace_id_is_the_request_id_without_a_caller() {
        let id = RequestId::new();
        let request = TraceContext::of_request(id, None);
        assert_eq!(id.to_string(), format!("req-{:032x}", u128::from_be_bytes(request.trace_id)));
        assert_eq!((request.parent_id, request.is_sampled), (None, true));
        let (one, other) = (request.child(), request.child());
        assert_eq!((one.trace_id, one.parent_id), (request.trace_id, Some(request.span_id)));
        assert_ne!(one.span_id, other.span_id);
    }

    #[test]
    fn unsampled_caller_makes_unsampled_children() {
        let caller = TraceContext::parse(&CALLER.replace("-01", "-00")).expect("a context");
        assert!(!TraceContext::of_run(RunId::new(), Some(caller)).child().is_sampled);
    }

    #[test]
    fn parse_refuses_invalid_headers() {
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

    /// A parsed context has the ids and the flag of the header.
    fn parses_to_the_headers_ids(header: &[u8]) {
        let header = String::from_utf8_lossy(header);
        let Some(context) = TraceContext::parse(&header) else { return };
        let trace = u128::from_be_bytes(context.trace_id);
        let span = u64::from_be_bytes(context.span_id);
        assert!(trace != 0 && span != 0 && !header.starts_with("ff"), "{header}");
        assert_eq!(header.get(2..53), Some(format!("-{trace:032x}-{span:016x}-").as_str()));
        let flags = u8::from_str_radix(&header[53..55], 16).expect("two digits");
        assert_eq!(context.is_sampled, flags % 2 == 1, "{header}");
        assert!(header.len() == 55 || (header[55..].starts_with('-') && !header.starts_with("00")), "{header}");
    }

    #[test]
    fn fuzz_headers() {
        bolero::check!().with_iterations(cases()).for_each(|header: &[u8]| parses_to_the_headers_ids(header));
    }

    #[test]
    fn fuzz_altered_headers() {
        let alterations = bolero::produce::<Vec<_>>().with().len(0..4_usize);
        bolero::check!()
            .with_iterations(cases())
            .with_generator(alterations)
            .for_each(|alterations| parses_to_the_headers_ids(&mutated(CALLER, alterations)));
    }
}
