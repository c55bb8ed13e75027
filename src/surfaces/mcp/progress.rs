//! Tells a client that asked for it that its run is still under way, so that the client's own time limit starts anew.

use std::time::Duration;

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::RequestContext,
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Short enough for a client that waits 10 s, long enough that most runs end without a word: a plain JSON answer becomes
/// a stream at the first one.
const PERIOD: Duration = Duration::from_secs(5);

/// The progress of one run.
pub(super) struct Progress {
    /// Whom to tell, when somebody asked.
    to: Option<(Peer<RoleServer>, ProgressToken)>,
    begun: Instant,
    ticks: Interval,
}

impl Progress {
    /// Of the run that this request begins.
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        let begun = Instant::now();
        let mut ticks = interval_at(begun + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let to = context.meta.get_progress_token().map(|token| (context.peer.clone(), token));
        Self { to, begun, ticks }
    }

    /// Waits for the next time and tells; never returns when nobody asked. Safe to drop at any time.
    pub(super) async fn tell(&mut self) {
        let Some((peer, token)) = &self.to else { return std::future::pending().await };
        self.ticks.tick().await;
        let elapsed = self.begun.elapsed();
        let told = ProgressNotificationParam::new(token.clone(), elapsed.as_secs_f64())
            .with_message(format!("under way for {} s", elapsed.as_secs()));
        if peer.notify_progress(told).await.is_err() {
            self.to = None;
        }
    }
}
