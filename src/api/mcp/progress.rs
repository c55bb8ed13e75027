//! Progress notifications, for a client that requests them: the output of its run, and a sign of life of a silent run,
//! so that the client's own timeout starts again.
//!
//! The first line is sent at once; output that follows closely is sent together. Output is read from the run's log when
//! the client has taken the notification before: a slow client costs the run nothing and gets the newest output.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use http::request::Parts;
use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Client, caller::Context, shown::last_drawings};
use crate::domain::{Event, EventKind, StreamKind};

/// The time between two notifications of a silent program. Short enough for a client that waits 10 s.
const SILENCE: Duration = Duration::from_secs(5);
/// The least time between two notifications of one call.
const GAP: Duration = Duration::from_millis(100);
/// How long an answer waits for a message that has begun.
pub(super) const SEND_MAX: Duration = Duration::from_secs(1);
/// How much output one notification holds, in bytes: the newest.
const OUTPUT_BYTES_MAX: usize = 4096;

/// The progress of one call that waits for a run.
pub(super) struct Progress {
    /// The client, if it requested progress.
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    begun: Instant,
    notified: Option<Instant>,
    events: BoxStream<'static, Event>,
    news: UnsentOutput,
}

/// What was printed since the last notification; of lines of standard error the last drawings, as in an answer.
#[derive(Default)]
struct UnsentOutput {
    text: String,
    /// Where its end begins that is standard error as it was printed.
    undrawn: Option<usize>,
    /// There was more before it.
    cut: bool,
}

/// Whether a request's client takes its answer and no other message, also where it names a session.
pub(super) fn takes_one_answer(context: &Context) -> bool {
    let client = context.extensions.get::<Parts>().and_then(|head| head.extensions.get::<Client>());
    client.is_some_and(|client| client.one_answer)
}

impl Progress {
    /// Of the call that waits for the run with these events.
    pub(super) fn of(context: &Context, events: BoxStream<'static, Event>) -> Self {
        let token = context.meta.get_progress_token().filter(|_| !takes_one_answer(context));
        let to = token.map(|token| (context.peer.clone(), token));
        Self { to, begun: Instant::now(), notified: None, events, news: UnsentOutput::default() }
    }

    /// Sends notifications until `over`. One that has begun is sent first, for at most [`SEND_MAX`]: rmcp would send it
    /// after the answer, where the client no longer waits for it.
    pub(super) async fn until<T>(mut self, over: impl Future<Output = T>) -> T {
        let mut over = pin!(over);
        loop {
            tokio::select! {
                biased;
                end = &mut over => return end,
                () = self.due() => {}
            }
            let mut sent = pin!(self.send());
            tokio::select! {
                biased;
                () = &mut sent => {}
                end = &mut over => {
                    // A client that does not read, or has closed its end of stdio, takes none.
                    let _ = timeout(SEND_MAX, sent).await;
                    return end;
                }
            }
        }
    }

    /// Reads events until a notification is due; never returns when none was requested. Cancel safe.
    async fn due(&mut self) {
        if self.to.is_none() {
            return std::future::pending().await;
        }
        loop {
            let due = sleep_until(self.next());
            tokio::select! {
                biased;
                () = due => return,
                Some(event) = self.events.next() => self.news.add(&event),
            }
        }
    }

    /// Sends what is due.
    async fn send(&mut self) {
        let Some((peer, token)) = self.to.clone() else { return };
        self.notified = Some(Instant::now());
        let elapsed = self.begun.elapsed();
        let message = self.news.take().unwrap_or_else(|| format!("under way for {} s", elapsed.as_secs()));
        let param = ProgressNotificationParam::new(token, elapsed.as_secs_f64()).with_message(message);
        if peer.notify_progress(param).await.is_err() {
            self.to = None;
        }
    }

    fn next(&self) -> Instant {
        match (self.news.is_empty(), self.notified) {
            (true, notified) => notified.unwrap_or(self.begun) + SILENCE,
            (false, Some(notified)) => notified + GAP,
            (false, None) => self.begun,
        }
    }
}

impl UnsentOutput {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && !self.cut
    }

    fn add(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Output(stream, bytes) => {
                match stream {
                    StreamKind::Stdout => self.draw(),
                    StreamKind::Stderr => self.undrawn = self.undrawn.or(Some(self.text.len())),
                }
                self.text.push_str(&String::from_utf8_lossy(bytes));
            }
            EventKind::Cut { .. } => self.cut = true,
            _ => {}
        }
        // Seldom, so that a program that prints much is not copied for each piece.
        if self.text.len() > 2 * OUTPUT_BYTES_MAX {
            self.trim();
        }
    }

    /// Leaves of standard error at the end the last drawing of each line.
    fn draw(&mut self) {
        if let Some(begin) = self.undrawn.take() {
            let drawn = last_drawings(&self.text[begin..]);
            self.text.replace_range(begin.., &drawn);
        }
    }

    fn trim(&mut self) {
        let start = self.text.ceil_char_boundary(self.text.len().saturating_sub(OUTPUT_BYTES_MAX));
        self.text.drain(..start);
        self.undrawn = self.undrawn.map(|begin| begin.saturating_sub(start));
        self.cut |= start > 0;
    }

    /// The newest of it, if there is any.
    fn take(&mut self) -> Option<String> {
        self.draw();
        if self.is_empty() {
            return None;
        }
        self.trim();
        let Self { text, cut, .. } = std::mem::take(self);
        Some(if cut { format!("[… some output is left out here; the result has it …]\n{text}") } else { text })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        io,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use bytes::Bytes;
    use futures_util::stream;
    use rmcp::{
        ServerHandler,
        model::{ClientJsonRpcMessage, NumberOrString, ServerJsonRpcMessage},
        service::serve_directly,
        transport::Transport,
    };
    use tokio::time::sleep;

    use super::*;

    /// A client that takes each message so slowly.
    struct Slow {
        takes: Duration,
        taken: Arc<AtomicUsize>,
    }

    impl Transport<RoleServer> for Slow {
        type Error = io::Error;

        fn send(&mut self, _: ServerJsonRpcMessage) -> impl Future<Output = io::Result<()>> + Send + 'static {
            let (pause, taken) = (self.takes, Arc::clone(&self.taken));
            async move {
                sleep(pause).await;
                taken.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }

        fn receive(&mut self) -> impl Future<Output = Option<ClientJsonRpcMessage>> + Send {
            pending()
        }

        fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
            ready(Ok(()))
        }
    }

    struct Nothing;

    impl ServerHandler for Nothing {}

    fn printed_to(stream: StreamKind, text: &str) -> Event {
        let kind = EventKind::Output(stream, Bytes::from(text.to_owned()));
        Event { number: 1, at: Duration::ZERO, kind }
    }

    fn printed(text: &str) -> Event {
        printed_to(StreamKind::Stdout, text)
    }

    #[test]
    fn news_keeps_little_output_whole_and_the_end_of_much() {
        let mut news = UnsentOutput::default();
        assert_eq!(news.take(), None);
        news.add(&printed("a\n"));
        news.add(&printed("b\n"));
        assert_eq!(news.take().as_deref(), Some("a\nb\n"));
        assert_eq!(news.take(), None);
        for n in 0..5000 {
            news.add(&printed(&format!("€{n}\n")));
            assert!(news.text.len() <= 2 * OUTPUT_BYTES_MAX);
        }
        let message = news.take().expect("something");
        assert!(message.starts_with("[…") && message.ends_with("€4999\n"), "{message}");
        assert!((OUTPUT_BYTES_MAX - 8..OUTPUT_BYTES_MAX + 80).contains(&message.len()), "{}", message.len());
    }

    #[test]
    fn news_have_the_last_drawings_of_standard_error_alone() {
        let mut news = UnsentOutput::default();
        let drawn = |text: &str| printed_to(StreamKind::Stderr, text);
        for event in [printed("a\rb\n"), drawn("\r10%"), drawn("\r50%\r"), drawn("90%\r\n"), drawn("c\r")] {
            news.add(&event);
        }
        news.add(&printed("\rd\n"));
        news.add(&drawn("1%\r2%"));
        assert_eq!(news.take().as_deref(), Some("a\rb\n90%\r\nc\rd\n2%"));
        news.add(&drawn("\r"));
        assert_eq!(news.take(), None, "an empty drawing");
        for n in 0..5000 {
            news.add(&drawn(&format!("€ {n} %\r")));
            assert!(news.text.len() <= 2 * OUTPUT_BYTES_MAX);
        }
        let message = news.take().expect("something");
        assert!(message.starts_with("[…") && message.ends_with("\n€ 4999 %"), "{message}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_a_notification_that_has_begun_but_not_for_long() {
        for (takes, sent) in [(SEND_MAX / 2, 1), (Duration::from_hours(1), 0)] {
            let taken = Arc::<AtomicUsize>::default();
            let client = Slow { takes, taken: Arc::clone(&taken) };
            let service = serve_directly::<RoleServer, _, _, _, _>(Nothing, client, None);
            let to = Some((service.peer().clone(), ProgressToken(NumberOrString::Number(1))));
            let events = stream::iter([printed("a\n")]).chain(stream::pending()).boxed();
            let (begun, news) = (Instant::now(), UnsentOutput::default());
            let progress = Progress { to, begun, notified: None, events, news };
            timeout(2 * SEND_MAX, progress.until(sleep(GAP))).await.expect("an end");
            assert_eq!(taken.load(Ordering::Relaxed), sent);
        }
    }
}
