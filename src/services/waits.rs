//! Time that does not count for a program: while it waits for a person.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// All waits of one program together.
pub(super) const WAITS_MAX: Duration = Duration::from_hours(1);

/// The waits of one program.
#[derive(Debug, Default)]
pub(super) struct Waits(watch::Sender<State>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// How many waits there are now, and since when there is one.
    open: u32,
    since: Option<Instant>,
    /// All earlier time with a wait.
    total: Duration,
}

/// One wait, until it is dropped.
pub(super) struct Wait<'a>(&'a Waits);

impl Waits {
    pub(super) fn begin(&self) -> Wait<'_> {
        self.0.send_modify(|state| {
            state.open += 1;
            state.since.get_or_insert_with(Instant::now);
        });
        Wait(self)
    }

    /// Returns at this moment, later by the time of the waits, of which [`WAITS_MAX`] counts.
    pub(super) async fn after(&self, deadline: Instant) {
        let mut changes = self.0.subscribe();
        loop {
            let State { open, total, .. } = *changes.borrow_and_update();
            tokio::select! {
                () = sleep_until(deadline + total.min(WAITS_MAX)), if open == 0 => return,
                () = sleep_until(deadline + WAITS_MAX) => return,
                // Its sender lives in `self`.
                _ = changes.changed() => {}
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| {
            state.open -= 1;
            if state.open == 0 {
                state.total += state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_move_a_deadline() {
        let waits = Waits::default();
        let begun = Instant::now();
        let waiting = async {
            sleep(Duration::from_secs(1)).await;
            let first = waits.begin();
            sleep(Duration::from_secs(5)).await;
            let second = waits.begin();
            drop(first);
            sleep(Duration::from_secs(5)).await;
            drop(second);
        };
        tokio::join!(waits.after(begun + Duration::from_secs(3)), waiting);
        assert_eq!(begun.elapsed(), Duration::from_secs(13));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_are_bounded() {
        let (waits, begun) = (Waits::default(), Instant::now());
        let _endless = waits.begin();
        waits.after(begun + Duration::from_secs(3)).await;
        assert_eq!(begun.elapsed(), WAITS_MAX + Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_wait_a_deadline_stays() {
        let begun = Instant::now();
        Waits::default().after(begun + Duration::from_secs(3)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
    }
}
