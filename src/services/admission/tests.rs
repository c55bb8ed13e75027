//! Admission alone, in tokio's paused time.

use futures_util::FutureExt;

use super::*;
use crate::domain::TokenId;

fn who() -> Principal {
    Principal::default()
}

fn options(slots: usize, queue_max: usize) -> AdmissionOptions {
    let wait_max = Duration::from_secs(10);
    let (conversation_max, bytes_max) = (32, 1 << 20);
    AdmissionOptions { slots, queue_max, wait_max, conversation_max, bytes_max, rate_a_minute: 0, rate_burst: 1 }
}

fn gate(slots: usize, queue_max: usize) -> Admission {
    Admission::new(options(slots, queue_max))
}

fn enter(gate: &Admission, conversation: &str) -> Result<Ticket, Failure> {
    enter_key(gate, &conversation.parse().expect("an id"), 0)
}

fn enter_key(gate: &Admission, key: &ConversationKey, bytes: usize) -> Result<Ticket, Failure> {
    gate.enter(key, bytes, || Ok(())).map(|(ticket, ())| ticket)
}

/// Conversations of which something is kept.
fn kept(gate: &Admission) -> usize {
    gate.conversations.held() + gate.locks.held()
}

#[tokio::test(start_paused = true)]
async fn enter_refuses_when_full_and_admits_when_capacity_is_free() {
    let gate = gate(1, 1);
    let running = enter(&gate, "a").expect("a ticket").turn().await.expect("a slot");
    assert!(gate.check_capacity(&who()).is_ok());
    let waiting = enter(&gate, "b").expect("a ticket");
    assert_eq!(gate.check_capacity(&who()).expect_err("full").code, Code::QueueFull);
    assert_eq!(enter(&gate, "c").expect_err("full").code, Code::QueueFull);
    drop(running);
    let position = waiting.position();
    assert_eq!(position.now(), Some(1));
    let behind = enter(&gate, "c").expect("a ticket");
    assert_eq!(behind.position().now(), Some(2));
    drop(behind);
    let second = waiting.turn().await.expect("a slot");
    assert_eq!(position.now(), None, "its turn has come");
    assert!(enter(&gate, "c").is_ok());
    drop(second);
    assert_eq!((gate.slots.available_permits(), gate.capacity.available_permits()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn turn_waits_for_the_same_conversation_only() {
    let gate = gate(2, 8);
    let first = enter(&gate, "a").expect("a ticket").turn().await.expect("a slot");
    let mut second = enter(&gate, "a").expect("a ticket").turn().boxed();
    assert!((&mut second).now_or_never().is_none());
    let other = enter(&gate, "b").expect("a ticket").turn().now_or_never();
    assert!(matches!(other, Some(Ok(_))), "another conversation has the second slot");
    drop((first, other));
    drop(second.await.expect("a slot"));
    assert_eq!(kept(&gate), 0, "no entry is left");
}

#[tokio::test(start_paused = true)]
async fn runs_of_a_conversation_have_their_turns_in_the_order_of_admission() {
    let gate = gate(2, 8);
    let [first, gone, last] = [(); 3].map(|()| enter(&gate, "a").expect("a place"));
    let mut last = last.turn().boxed();
    assert!((&mut last).now_or_never().is_none(), "it asks before the others do");
    let permit = first.turn().now_or_never().expect("it was first").expect("a slot");
    assert!((&mut last).now_or_never().is_none());
    drop(permit);
    assert!((&mut last).now_or_never().is_none(), "another one is before it");
    drop(gone);
    drop(last.await.expect("a slot"));
    assert_eq!((gate.slots.available_permits(), kept(&gate)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn turn_fails_after_the_longest_wait() {
    let gate = gate(1, 8);
    let held = enter(&gate, "a").expect("a ticket").turn().await.expect("a slot");
    let late = enter(&gate, "a").expect("a ticket").turn().await;
    assert_eq!(late.expect_err("late").code, Code::QueueTimeout);
    drop(held);
    assert_eq!(kept(&gate), 0);
}

/// The conversation with a hundred runs came first, and each other one still gets its turn.
#[tokio::test(start_paused = true)]
async fn slots_alternate_between_conversations() {
    let gate = Admission::new(AdmissionOptions { conversation_max: 100, ..options(1, 200) });
    let mut held = Some(enter(&gate, "z").expect("a ticket").turn().await.expect("a slot"));
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (sent, mut next) = tokio::sync::mpsc::unbounded_channel();
    let begin = |name: &'static str| {
        let (ticket, order, sent) = (enter(&gate, name).expect("a ticket"), Arc::clone(&order), sent.clone());
        let mut turn = ticket.turn().boxed();
        assert!((&mut turn).now_or_never().is_none(), "it stands in line before the next one comes");
        tokio::spawn(async move {
            let permit = turn.await;
            order.lock().push(name);
            drop(sent.send(permit));
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
    let order = order.lock().clone();
    assert_eq!(order, ["greedy", "b", "c", "greedy", "b", "c", "greedy"]);
}

#[tokio::test(start_paused = true)]
async fn enter_refuses_a_conversation_at_its_maximum() {
    let gate = Admission::new(AdmissionOptions { conversation_max: 2, ..options(1, 8) });
    let (one, two) = (enter(&gate, "a").expect("a ticket"), enter(&gate, "a").expect("a ticket"));
    let refused = enter(&gate, "a").expect_err("its share is used");
    assert_eq!(refused.code, Code::QueueFull);
    assert!(refused.message.starts_with("2 programs of this conversation"), "{refused}");
    assert!(gate.check_capacity(&who()).is_ok() && enter(&gate, "b").is_ok());
    drop(one);
    let again = enter(&gate, "a").expect("capacity came back");
    let permit = two.turn().await.expect("a slot");
    assert!(enter(&gate, "a").is_err(), "one that runs counts");
    drop((permit, again));
    assert_eq!((gate.capacity.available_permits(), kept(&gate)), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn enter_takes_no_capacity_when_refused_for_its_rate() {
    let gate = Admission::new(AdmissionOptions { rate_a_minute: 6, rate_burst: 2, ..options(1, 8) });
    let held = (enter(&gate, "a").expect("one"), enter(&gate, "b").expect("two"));
    let refused = enter(&gate, "c").expect_err("too fast");
    assert_eq!((refused.code, refused.retry_after_s), (Code::RateLimited, Some(10)));
    for same in [who(), who().by(TokenId::new())] {
        let refused = gate.check_capacity(&same).expect_err("known from then on, for each token of the owner");
        assert_eq!(refused.code, Code::RateLimited);
    }
    let other = "other".parse().expect("a principal");
    assert!(gate.check_capacity(&other).is_ok());
    assert!(
        enter_key(&gate, &ConversationKey::new(other, "d".parse().expect("an id")), 0).is_ok(),
        "another token has a rate of its own"
    );
    drop(held);
    assert_eq!((gate.capacity.available_permits(), kept(&gate)), (9, 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_refused_counts_nowhere() {
    let gate = Admission::new(AdmissionOptions { rate_a_minute: 6, rate_burst: 2, ..options(1, 1) });
    let key: ConversationKey = "a".parse().expect("an id");
    for _ in 0..5 {
        let refused = gate.enter(&key, 0, || Err::<(), _>(Failure::new(Code::RateLimited, "its token")));
        assert_eq!(refused.expect_err("its token has a limit").message, "its token");
    }
    let held = (enter(&gate, "a").expect("one"), enter(&gate, "b").expect("two"));
    let refused = gate.enter(&key, 0, || -> Result<(), Failure> { unreachable!("there is no room") });
    assert_eq!(refused.expect_err("full").code, Code::QueueFull);
    drop(held);
    assert_eq!((gate.capacity.available_permits(), kept(&gate)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn lock_if_idle_is_refused_while_a_run_holds_or_awaits_the_lock() {
    let gate = gate(1, 8);
    let key: ConversationKey = "a".parse().expect("an id");
    let lock = gate.lock_if_idle(&key).expect("idle");
    assert!(gate.lock_if_idle(&key).is_none());
    let mut run = enter(&gate, "a").expect("a ticket").turn().boxed();
    assert!((&mut run).now_or_never().is_none(), "it waits for the lock");
    drop(lock);
    assert!(gate.lock_if_idle(&key).is_none(), "the run awaits it");
    let permit = run.await.expect("a slot");
    assert!(gate.lock_if_idle(&key).is_none());
    drop(permit);
    drop(gate.lock_if_idle(&key).expect("idle again"));
    assert_eq!(kept(&gate), 0);
}

#[test]
fn slots_for_respects_cores_and_memory() {
    let (gib, run) = (1 << 30, 256 << 20);
    for (cpus, memory, slots) in
        [(2, 24 * gib, 4), (16, 24 * gib, 32), (16, 2 * gib, 6), (4, gib, 3), (1, 1, 1), (0, 0, 1)]
    {
        assert_eq!(slots_for(cpus, memory, run), slots, "{cpus} cores, {memory} bytes");
    }
}

fn enter_with(gate: &Admission, owner: &str, conversation: usize, bytes: usize) -> Result<Ticket, Failure> {
    enter_key(gate, &format!("@{owner}/c{conversation}").parse().expect("a key"), bytes)
}

fn enter_of(gate: &Admission, owner: &str, conversation: usize) -> Result<Ticket, Failure> {
    enter_with(gate, owner, conversation, 0)
}

#[tokio::test(start_paused = true)]
async fn an_owner_with_many_conversations_waits_behind_one_with_few() {
    let gate = gate(1, 100);
    let mut running = enter_of(&gate, "ann", 0).expect("a ticket").turn().await.expect("a slot");
    let mut many: Vec<_> = (1..50).map(|n| enter_of(&gate, "ann", n).expect("a ticket").turn().boxed()).collect();
    for waiting in &mut many {
        assert!(waiting.now_or_never().is_none());
    }
    let mut few = enter_of(&gate, "bob", 1).expect("a ticket").turn().boxed();
    assert!((&mut few).now_or_never().is_none());
    // One of Ann's was waiting for the slot already; the next is Bob's.
    drop(running);
    running = (&mut many[0]).await.expect("a slot");
    assert!((&mut few).now_or_never().is_none());
    assert!((&mut many[1]).now_or_never().is_none());
    drop(running);
    drop(few.now_or_never().expect("at once").expect("a slot"));
    for waiting in many.into_iter().skip(1) {
        drop(waiting.await.expect("a slot"));
    }
    assert_eq!((gate.slots.available_permits(), gate.capacity.available_permits()), (1, 101));
}

#[tokio::test(start_paused = true)]
async fn position_says_nothing_of_other_owners() {
    let gate = gate(1, 8);
    let many: Vec<_> = (0..3).map(|n| enter_of(&gate, "ann", n).expect("a ticket")).collect();
    let few: Vec<_> = (0..2).map(|n| enter_of(&gate, "bob", n).expect("a ticket")).collect();
    let now = |tickets: &[Ticket]| tickets.iter().map(|ticket| ticket.position().now()).collect::<Vec<_>>();
    assert_eq!((now(&many), now(&few)), (vec![Some(1), Some(2), Some(3)], vec![Some(1), Some(2)]));
    assert_eq!(gate.load().waiting, 5, "operators see them all");
    drop(many);
    assert_eq!(now(&few), [Some(1), Some(2)]);
}

#[tokio::test(start_paused = true)]
async fn of_several_owners_none_takes_the_last_quarter_of_the_capacity() {
    let gate = gate(1, 7);
    let alone: Vec<_> = (0..8).map(|n| enter_of(&gate, "ann", n).expect("all capacity, for one owner alone")).collect();
    assert_eq!(enter_of(&gate, "bob", 0).expect_err("full").code, Code::QueueFull);
    drop(alone);
    drop(enter_of(&gate, "bob", 0).expect("a ticket"));
    let many: Vec<_> = (0..8).filter_map(|n| enter_of(&gate, "ann", n).ok()).collect();
    assert_eq!(many.len(), 6);
    drop(enter_of(&gate, "bob", 0).expect("capacity is left"));
}

#[tokio::test(start_paused = true)]
async fn requests_hold_bounded_memory_until_their_runs_are_over() {
    let gate = Admission::new(AdmissionOptions { bytes_max: 64 << 10, ..options(1, 100) });
    let enter = |owner: &str, conversation, kib: usize| enter_with(&gate, owner, conversation, kib << 10);
    let running = enter("ann", 0, 16).expect("room").turn().await.expect("a slot");
    let waiting = enter("ann", 1, 16).expect("her half is used up now");
    assert_eq!(enter("ann", 2, 1).expect_err("no room").code, Code::QueueFull);
    drop(enter("ann", 2, 0).expect("a request without bytes needs none"));
    let of_bob = enter("bob", 0, 32).expect("the other half");
    assert_eq!(enter("eve", 0, 1).expect_err("no room for anyone").code, Code::QueueFull);
    drop(running);
    drop(enter("eve", 0, 16).expect("what the run held"));
    drop((waiting, of_bob));
    let large = enter("ann", 0, 1000).expect("as much as there is for one, alone");
    assert_eq!(enter("ann", 1, 1).expect_err("no room").code, Code::QueueFull);
    drop(large);
    assert_eq!((gate.capacity.available_permits(), kept(&gate)), (101, 0));
}
