//! Who is answered and who makes room when slots are scarce, on a paused clock; and the memory of long answers.

use std::{future::pending, net::Ipv4Addr, time::Duration};

use tokio::time::sleep;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn holder(owner: &str) -> Class {
    Class::Holder { owner: owner.parse().expect("an owner"), token: TokenId::new() }
}

fn slots(connections_max: u32) -> Arc<ConnectionSlots> {
    ConnectionSlots::new(Server { connections_max, ..Server::default() })
}

#[tokio::test(start_paused = true)]
async fn the_connection_that_waited_longest_makes_room_and_none_that_is_answered() {
    let all = slots(8);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(all.open(HERE).await.expect("a slot"));
    }
    assert!(all.next_to_go().is_err(), "they are new");
    sleep(Duration::from_millis(600)).await;
    let is_next = |expected: &Arc<Connection>| all.next_to_go().is_ok_and(|next| Arc::ptr_eq(&next, expected));
    assert!(is_next(&open[0]));
    let busy = open[0].begin(&Class::Guest).await;
    assert!(is_next(&open[1]), "the answer of the first is not sent yet");
    drop(busy);
    open[0].has_flushed();
    assert!(is_next(&open[1]), "the first became idle later");
    drop(open[1].begin(&holder("ann")).await);
    open[1].has_flushed();
    sleep(Duration::from_millis(600)).await;
    drop(open.remove(2));
    assert!(is_next(&open[0]), "the connection of a holder stays longest");
    let late = open[0].begin(&Class::Guest).await;
    drop(open);
    assert!(matches!(all.next_to_go(), Err(None)), "a closed connection makes no room");
    drop(late);
}

#[tokio::test(start_paused = true)]
async fn a_connection_stays_when_its_request_has_arrived_and_ends_when_none_has() {
    let all = slots(2);
    let (asks, silent) = (all.open(HERE).await.expect("a slot"), all.open(HERE).await.expect("a slot"));
    // Its request is read only after it was asked to make room.
    let connection = async {
        sleep(Duration::from_millis(101)).await;
        let busy = asks.begin(&Class::Guest).await;
        sleep(Duration::from_secs(1)).await;
        drop(busy);
    };
    let newcomer = async {
        loop {
            all.make_room().await;
        }
    };
    let both = async { tokio::join!(asks.drive(connection), silent.drive(pending::<()>())) };
    let (answered, ended) = tokio::select! {
        ends = both => ends,
        () = newcomer => unreachable!("it asks for ever"),
    };
    assert!(answered.is_ok() && ended.is_err());
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_connection_keeps_its_slot_and_its_turn_until_its_end() {
    let all = slots(8);
    let open = all.open(HERE).await.expect("a slot");
    let mut busy = open.begin(&Class::Guest).await;
    busy.upgrade();
    drop(busy);
    sleep(Duration::from_hours(2)).await;
    assert!(matches!(all.next_to_go(), Err(None)), "it makes no room");
    assert_eq!(all.answers.lock().senders[&Sender::Address(HERE)].answers, 1);
    drop(open);
    assert_eq!((all.answers.lock().all.answers, all.free.available_permits()), (0, 8));
}

#[tokio::test(start_paused = true)]
async fn an_answer_ends_when_the_socket_has_taken_all_of_it() {
    let all = slots(8);
    let answers = || all.answers.lock().all.answers;
    let open = all.open(HERE).await.expect("a slot");
    open.has_flushed();
    drop(open.begin(&Class::Guest).await);
    sleep(Duration::from_hours(1)).await;
    assert!(matches!(all.next_to_go(), Err(None)) && open.next_limit() == Ok(None), "it is not idle");
    assert_eq!(answers(), 1);
    // The client has sent another request meanwhile.
    let second = open.begin(&Class::Guest).await;
    assert_eq!(answers(), 2);
    open.has_flushed();
    assert_eq!(answers(), 1, "the first has been sent");
    assert!(matches!(all.next_to_go(), Err(None)), "the second is being answered");
    drop(second);
    assert_eq!(answers(), 1);
    open.has_flushed();
    assert_eq!(answers(), 0);
    sleep(Duration::from_secs(1)).await;
    assert!(all.next_to_go().is_ok());
}

#[tokio::test(start_paused = true)]
async fn guests_leave_slots_to_holders_and_holders_to_probes() {
    let all = slots(16);
    let turns = |address| std::iter::from_fn(|| all.turn(&Class::Guest, address)).collect::<Vec<_>>();
    let (here, there) = (turns(HERE), turns(THERE));
    assert_eq!((here.len(), there.len()), (8, 4), "half for one address, three quarters for all");
    let holders: Vec<_> = ["a", "b", "c", "d"].iter().filter_map(|owner| all.turn(&holder(owner), HERE)).collect();
    assert_eq!(holders.len(), 3);
    assert!(all.turn(&Class::Probe, HERE).is_some());
    let waiting = all.open(HERE).await.expect("a slot");
    let guest = Class::Guest;
    let (refused, ()) = tokio::join!(waiting.begin(&guest), async {
        sleep(Duration::from_secs(1)).await;
        drop(there);
    });
    assert!(!refused.is_answered(), "its address has its share");
    drop((here, holders, refused));
    let served = waiting.begin(&guest).await;
    assert!(served.is_answered() && !all.are_scarce());
    assert_eq!(all.answers.lock().all.answers, 1);
    assert_eq!(all.answers.lock().senders.len(), 1);
}

#[test]
fn probes_have_half_as_many_slots_as_guests_leave_and_are_guests_beyond() {
    let all = slots(16);
    let turns = |address| std::iter::from_fn(|| all.turn(&Class::Probe, address)).collect::<Vec<_>>();
    let (here, there) = (turns(HERE), turns(THERE));
    assert_eq!((here.len(), there.len()), (10, 2), "2 of probes and 8 of an address, then what is left to guests");
    assert!(all.turn(&holder("ann"), HERE).is_some());
    drop(here);
    assert_eq!(turns(THERE).len(), 8, "2 of probes again, and 6 more of the address");
    drop(there);
    assert!(all.answers.lock().senders.is_empty());
}

#[test]
fn tokens_and_owners_leave_slots_to_others() {
    let all = slots(64);
    let turns = |class: &Class| std::iter::from_fn(|| all.turn(class, HERE)).collect::<Vec<_>>();
    // 60 of them are for holders.
    let (one, same_owner) = (turns(&holder("ann")), turns(&holder("ann")));
    assert_eq!((one.len(), same_owner.len()), (40, 5), "two thirds for one token, three quarters for one owner");
    let others = ["bob", "carol", "dave"].map(|owner| turns(&holder(owner)));
    assert_eq!(others.each_ref().map(Vec::len), [10, 4, 1], "each newcomer gets one");
    assert!(all.turn(&Class::Probe, HERE).is_some());
    drop((one, same_owner, others));
    let answers = all.answers.lock();
    assert!(answers.all == Held::default() && answers.senders.is_empty(), "{answers:?}");
}

#[test]
fn streams_of_all_sessions_of_a_token_leave_it_slots_for_calls() {
    let (server, ann) = (Server::default(), holder("ann"));
    let all = ConnectionSlots::new(server.clone());
    let streams: Vec<_> = (0..server.token_sessions_max).map(|_| all.turn(&ann, HERE)).collect();
    assert!(streams.iter().all(Option::is_some) && all.turn(&ann, HERE).is_some());
}

#[tokio::test(start_paused = true)]
async fn request_of_a_holder_beyond_its_share_makes_room_only_when_every_slot_is_taken() {
    let (all, ann, from) = (slots(4), holder("ann"), Instant::now());
    let answers = [all.turn(&ann, HERE), all.turn(&ann, HERE)];
    let waits = all.open(HERE).await.expect("a slot");
    let newcomers = async {
        sleep(Duration::from_millis(200)).await;
        assert!(!all.are_scarce(), "connections of others are kept");
        let others = [all.open(HERE).await, all.open(HERE).await];
        assert!(all.next_to_go().is_err(), "a slot is free");
        (others, all.open(HERE).await)
    };
    let request = waits.drive(async { waits.begin(&ann).await.is_answered() });
    let ((others, last), refused) = tokio::join!(newcomers, request);
    assert!(answers.iter().all(Option::is_some) && others.iter().all(Option::is_some) && last.is_some());
    assert_eq!(refused, Ok(false));
    assert!(from.elapsed() < Duration::from_secs(1), "it is refused as soon as the last slot is taken");
}

#[tokio::test(start_paused = true)]
async fn request_of_a_guest_beyond_its_share_makes_room_sooner_than_a_new_connection() {
    let (all, from, guest) = (slots(2), Instant::now(), Class::Guest);
    let answer = all.turn(&guest, HERE);
    let (waits, new) = (all.open(HERE).await.expect("a slot"), all.open(HERE).await.expect("a slot"));
    let request = waits.drive(async { waits.begin(&guest).await.is_answered() });
    let newcomer = async {
        loop {
            all.make_room().await;
        }
    };
    let refused = tokio::select! {
        biased;
        refused = request => refused,
        () = newcomer => unreachable!("it asks for ever"),
    };
    assert_eq!(refused, Ok(false));
    assert!(from.elapsed() < Duration::from_millis(100) && new.next_limit().is_ok());
    drop(answer);
}

#[test]
fn long_answers_of_one_sender_leave_memory_to_others() {
    let all = ConnectionSlots::new(Server::default());
    let answer_to = |class: &Class, owner: &str, bytes| {
        let owner: Principal = owner.parse().expect("an owner");
        let mut permit = all.turn(class, HERE).expect("a turn");
        permit.hold(bytes, Some(&owner)).then_some(permit)
    };
    let answer = |owner: &str, bytes| answer_to(&holder(owner), owner, bytes);
    let long = |owner: &str| std::iter::from_fn(|| answer(owner, 16 << 20)).collect::<Vec<_>>();
    let owners = ["ann", "bob", "carol", "dave"].map(long);
    assert_eq!(owners.each_ref().map(Vec::len), [8, 4, 2, 1], "as many as all leave free");
    assert!(answer("ann", SHORT_BYTES_MAX as u64).is_some(), "a short one needs none");
    assert!(answer("ann", SHORT_BYTES_MAX as u64 + 1).is_none());
    assert!(answer("erin", 2 << 20).is_some(), "others have room");
    let mut guest = all.turn(&Class::Guest, HERE).expect("a turn");
    assert!(guest.hold(u64::MAX, None), "it takes no memory of its own");
    assert!(answer_to(&Class::Guest, "ann", 2 << 20).is_none(), "her token was not known when the request arrived");
    let late = answer_to(&Class::Guest, "erin", 12 << 20);
    assert!(late.is_some() && answer("erin", 2 << 20).is_none(), "it counts for its owner");
    drop((owners, guest, late));
    assert!(answer("dave", u64::MAX).is_some(), "one fits, however long it is");
    let answers = all.answers.lock();
    assert!(answers.all == Held::default() && answers.senders.is_empty(), "{answers:?}");
}
