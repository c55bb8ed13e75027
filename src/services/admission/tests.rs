//! The gate by itself, in tokio's own time.

use futures_util::FutureExt;

use super::*;

fn who() -> Principal {
    Principal::default()
}

fn options(slots: usize, queue_max: usize) -> AdmissionOptions {
    let wait_max = Duration::from_secs(10);
    AdmissionOptions { slots, queue_max, wait_max, conversation_max: 32, rate_a_minute: 0, rate_burst: 1 }
}

fn gate(slots: usize, queue_max: usize) -> Admission {
    Admission::new(options(slots, queue_max))
}

fn enter(gate: &Admission, conversation: &str) -> Result<Ticket, Failure> {
    gate.enter(&conversation.parse().expect("an id"))
}

#[tokio::test(start_paused = true)]
async fn a_full_house_refuses_at_once_and_a_place_comes_back() {
    let gate = gate(1, 1);
    let running = enter(&gate, "a").expect("a place").turn().await.expect("a slot");
    assert!(gate.check_capacity(&who()).is_ok());
    let waiting = enter(&gate, "b").expect("a place");
    assert_eq!(gate.check_capacity(&who()).expect_err("full").code, Code::QueueFull);
    assert_eq!(enter(&gate, "c").expect_err("full").code, Code::QueueFull);
    drop(running);
    let position = waiting.position();
    assert_eq!(position.now(), Some(1));
    let behind = enter(&gate, "c").expect("a place");
    assert_eq!(behind.position().now(), Some(2));
    drop(behind);
    let second = waiting.turn().await.expect("a slot");
    assert_eq!(position.now(), None, "its turn has come");
    assert!(enter(&gate, "c").is_ok());
    drop(second);
    assert_eq!((gate.free_slots(), gate.free_places()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_conversation_takes_turns_and_blocks_nobody_else() {
    let gate = gate(2, 8);
    let first = enter(&gate, "a").expect("a place").turn().await.expect("a slot");
    let mut second = enter(&gate, "a").expect("a place").turn().boxed();
    assert!((&mut second).now_or_never().is_none());
    let other = enter(&gate, "b").expect("a place").turn().now_or_never();
    assert!(matches!(other, Some(Ok(_))), "another conversation has the second slot");
    drop((first, other));
    assert!(second.await.is_ok());
    assert!(gate.turns.is_empty(), "no entry is left");
}

#[tokio::test(start_paused = true)]
async fn waiting_ends() {
    let gate = gate(1, 8);
    let held = enter(&gate, "a").expect("a place").turn().await.expect("a slot");
    let late = enter(&gate, "a").expect("a place").turn().await;
    assert_eq!(late.expect_err("late").code, Code::QueueTimeout);
    drop(held);
    assert!(gate.turns.is_empty());
}

/// The one with a hundred runs came first, and the others still get every other slot.
#[tokio::test(start_paused = true)]
async fn conversations_go_round_robin_however_many_runs_each_has() {
    let gate = Admission::new(AdmissionOptions { conversation_max: 100, ..options(1, 200) });
    let mut held = Some(enter(&gate, "z").expect("a place").turn().await.expect("a slot"));
    let order = Arc::new(Mutex::new(Vec::new()));
    let (told, mut next) = tokio::sync::mpsc::unbounded_channel();
    let begin = |name: &'static str| {
        let (ticket, order, told) = (enter(&gate, name).expect("a place"), Arc::clone(&order), told.clone());
        let mut turn = ticket.turn().boxed();
        assert!((&mut turn).now_or_never().is_none(), "it stands in line before the next one comes");
        tokio::spawn(async move {
            let permit = turn.await;
            order.lock().expect("the order").push(name);
            drop(told.send(permit));
        });
    };
    (0..100).for_each(|_| begin("greedy"));
    (0..2).for_each(|_| begin("b"));
    (0..2).for_each(|_| begin("c"));
    for _ in 0..7 {
        drop(held.take());
        held = next.recv().await.expect("the next").ok();
        assert!(held.is_some());
    }
    let order = order.lock().expect("the order").clone();
    assert_eq!(order, ["greedy", "b", "c", "greedy", "b", "c", "greedy"]);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_cannot_fill_the_house() {
    let gate = Admission::new(AdmissionOptions { conversation_max: 2, ..options(1, 8) });
    let (one, two) = (enter(&gate, "a").expect("a place"), enter(&gate, "a").expect("a place"));
    let refused = enter(&gate, "a").expect_err("its share is used");
    assert_eq!(refused.code, Code::QueueFull);
    assert!(refused.message.starts_with("2 programs of this conversation"), "{refused}");
    assert!(gate.check_capacity(&who()).is_ok() && enter(&gate, "b").is_ok());
    drop(one);
    let again = enter(&gate, "a").expect("a place came back");
    let permit = two.turn().await.expect("a slot");
    assert!(enter(&gate, "a").is_err(), "one that runs counts");
    drop((permit, again));
    assert_eq!((gate.free_places(), gate.shares.0.lock().expect("the map").len()), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_its_rate_leaves_no_place_taken() {
    let gate = Admission::new(AdmissionOptions { rate_a_minute: 6, rate_burst: 2, ..options(1, 8) });
    let held = (enter(&gate, "a").expect("one"), enter(&gate, "b").expect("two"));
    let refused = enter(&gate, "c").expect_err("too fast");
    assert_eq!((refused.code, refused.retry_after_s), (Code::RateLimited, Some(10)));
    assert_eq!(gate.check_capacity(&who()).expect_err("known from then on").code, Code::RateLimited);
    let somebody = "somebody".parse().expect("a principal");
    assert!(gate.check_capacity(&somebody).is_ok());
    assert!(
        gate.enter(&ConversationKey::new(somebody, "d".parse().expect("an id"))).is_ok(),
        "another token has a rate of its own"
    );
    drop(held);
    assert_eq!((gate.free_places(), gate.shares.0.lock().expect("the map").len()), (9, 0));
}

#[test]
fn slots_are_what_cores_and_memory_carry() {
    let (gib, run) = (1 << 30, 256 << 20);
    for (cpus, memory, slots) in
        [(2, 24 * gib, 4), (16, 24 * gib, 32), (16, 2 * gib, 6), (4, gib, 3), (1, 1, 1), (0, 0, 1)]
    {
        assert_eq!(slots_for(cpus, memory, run), slots, "{cpus} cores, {memory} bytes");
    }
}
