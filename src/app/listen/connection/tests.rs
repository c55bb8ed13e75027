//! Limits of one connection, on a paused clock.

use std::net::Ipv4Addr;

use super::*;
use crate::config::Server;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn slots() -> Arc<ConnectionSlots> {
    ConnectionSlots::new(Server { connections_max: 8, ..Server::default() })
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_answers_are_not_read_is_no_probe() {
    let all = slots();
    let probe = all.open(HERE).await.expect("a slot");
    drop(probe.begin(&Class::Probe).await);
    probe.has_written(&Poll::Pending);
    assert!(probe.next_limit().is_ok(), "it may be about to read");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(probe.next_limit(), Err("its client does not read"));
    drop(probe);
    // Behind another answer that is not read.
    let unread = all.open(HERE).await.expect("a slot");
    drop(unread.begin(&Class::Guest).await);
    unread.has_written(&Poll::Pending);
    sleep(RATE_WINDOW).await;
    assert!(unread.next_limit().is_ok(), "others have slots");
    let again = unread.begin(&Class::Probe).await;
    let turns: Vec<_> = std::iter::from_fn(|| all.turn(&Class::Guest, HERE)).collect();
    assert_eq!((again.is_answered(), turns.len()), (true, 2), "it has a turn of its address");
    drop((again, turns));
    let mut others = Vec::new();
    while others.len() < 6 {
        others.push(all.open(HERE).await.expect("a slot"));
    }
    assert!(all.are_scarce() && unread.next_limit().is_ok());
    sleep(RATE_WINDOW).await;
    assert_eq!(unread.next_limit(), Err("its client reads slowly while slots are scarce"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_closes_after_so_many_requests() {
    let open = slots().open(HERE).await.expect("a slot");
    for sent in 1..=REQUESTS_MAX {
        drop(open.begin(&Class::Probe).await);
        assert_eq!(open.closes(), sent == REQUESTS_MAX, "{sent}");
        open.has_flushed();
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_closes_at_its_age() {
    let open = slots().open(HERE).await.expect("a slot");
    for closes in [false, true] {
        sleep(AGE_MAX / 2).await;
        drop(open.begin(&Class::Probe).await);
        assert_eq!(open.closes(), closes, "{:?}", open.opened.elapsed());
        open.has_flushed();
    }
}

/// The documented defaults: `SANDBOX_SERVER__WRITE_STALL_MS`, `SANDBOX_SERVER__IDLE_MS`.
#[tokio::test(start_paused = true)]
async fn a_connection_of_a_server_without_settings_ends_after_30_s_unread_and_120_s_idle() {
    const MOMENT: Duration = Duration::from_secs(1);
    let all = ConnectionSlots::new(Server::default());
    let (unread, idle) = (all.open(HERE).await.expect("a slot"), all.open(HERE).await.expect("a slot"));
    let answering = unread.begin(&Class::Guest).await;
    unread.has_written(&Poll::Pending);
    drop(idle.begin(&Class::Guest).await);
    idle.has_flushed();
    sleep(Duration::from_secs(29)).await;
    assert!(unread.next_limit().is_ok());
    // A byte that it reads is progress.
    unread.has_written(&Poll::Ready(Ok(1)));
    unread.has_written(&Poll::Pending);
    sleep(Duration::from_secs(29)).await;
    assert!(unread.next_limit().is_ok());
    sleep(MOMENT).await;
    assert_eq!(unread.next_limit(), Err("its client does not read"));
    drop(answering);
    sleep(Duration::from_mins(1)).await;
    assert!(idle.next_limit().is_ok());
    sleep(MOMENT).await;
    assert_eq!(idle.next_limit(), Err("it was idle"));
}
