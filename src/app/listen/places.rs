//! The places of a listener: how many requests are answered at once, and which connection is closed for another.
//!
//! A place is an open connection. A quarter of the places is never used for answers to requests without a token
//! (guests), and some not even for those with one (holders), so that a new connection can always be read and a health
//! probe or a holder answered. One address has a share of the guests' places. One token may use twice as many places as
//! it leaves free, and the tokens of one owner together three times as many: two thirds and three quarters of the
//! places that others do not use. So the last places go to tokens that use few. A request beyond its share waits.
//!
//! When every place is used, the connection that has waited longest for its client is closed, guests' first, then one
//! whose request waits for its turn, again guests' first. A connection is spared for a short time in which its client
//! is likely to send a request or an answer is likely to end. One connection is asked to close at a time.

mod held;

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until},
};

use super::connection::Connection;
use crate::{
    api::http::auth::Class,
    domain::{id::TokenId, owner::Principal},
    services::shares::{HeldMemory, SharedMemory},
};

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections_max: usize,
    /// The share of one address in all connections, for requests without a token, in percent.
    pub address_percent: usize,
    /// Time to send the head of a request.
    pub header_read_max: Duration,
    /// Time between two requests.
    pub idle_max: Duration,
    /// Time in which the sending of an answer has to make progress.
    pub write_stall_max: Duration,
}

impl Limits {
    fn reserve(&self) -> usize {
        self.connections_max / 4
    }

    /// Whose answers a request counts among beside so many others, and how many each may have with it.
    fn shares(&self, class: &Class, address: IpAddr, answers: usize) -> Vec<(Sender, usize)> {
        let places = self.connections_max;
        match class {
            Class::Probe => Vec::new(),
            Class::Holder { owner, token } => {
                let left = (places - self.reserve().div_ceil(4)).saturating_sub(answers);
                vec![(Sender::Owner(owner.clone()), left * 3), (Sender::Token(*token), left * 2)]
            }
            Class::Guest => {
                let share = (places * self.address_percent / 100).max(1);
                vec![(Sender::Address(address), if answers < places - self.reserve() { share } else { 0 })]
            }
        }
    }
}

/// Whose answers are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sender {
    /// Of requests without a token.
    Address(IpAddr),
    Owner(Principal),
    Token(TokenId),
}

#[derive(Debug, Default)]
struct Answers {
    all: usize,
    /// Of those that have some.
    senders: HashMap<Sender, usize>,
}

#[derive(Debug)]
pub(super) struct Places {
    pub(super) limits: Limits,
    free: Arc<Semaphore>,
    /// In the order in which they were opened.
    open: Mutex<Vec<Weak<Connection>>>,
    answers: Mutex<Answers>,
    long_answers: SharedMemory<Sender>,
    /// Requests of guests that wait for their turn.
    pub(super) queued: AtomicUsize,
    /// Notified when a connection became idle, or stays although it was asked to make room.
    pub(super) changed: Notify,
    /// Notified when an answer has ended.
    pub(super) ended: Notify,
}

/// While it lives, a request is answered.
#[derive(Debug)]
pub(super) struct AnswerPermit {
    places: Arc<Places>,
    senders: Vec<Sender>,
    held: Option<HeldMemory>,
}

impl Places {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            free: Arc::new(Semaphore::new(limits.connections_max)),
            open: Mutex::default(),
            answers: Mutex::default(),
            long_answers: SharedMemory::new(held::LONG_BYTES_MAX),
            queued: AtomicUsize::new(0),
            changed: Notify::new(),
            ended: Notify::new(),
        })
    }

    /// A place for a new connection. It waits while every connection is busy.
    pub(super) async fn open(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Connection>> {
        let place = loop {
            tokio::select! {
                biased;
                place = Arc::clone(&self.free).acquire_owned() => break place.ok()?,
                () = self.make_room() => {}
            }
        };
        let connection = self.add(address, place);
        if self.are_short()
            && let Ok(idle) = self.next_to_go()
        {
            idle.make_room.notify_one();
        }
        Some(connection)
    }

    fn add(self: &Arc<Self>, address: IpAddr, place: OwnedSemaphorePermit) -> Arc<Connection> {
        let connection = Arc::new(Connection::new(Arc::clone(self), address, place));
        let mut open = self.open.lock();
        open.retain(|other| other.strong_count() > 0);
        open.push(Arc::downgrade(&connection));
        connection
    }

    /// Whether only the reserve is left, or a guest's request waits for its turn. A holder's that waits while there is
    /// more waits for its own answers, which other connections do not hold up.
    pub(super) fn are_short(&self) -> bool {
        self.free.available_permits() < self.limits.reserve() || self.queued.load(Ordering::Relaxed) > 0
    }

    /// Whether no place is left.
    pub(super) fn are_taken(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// The right to be answered now.
    pub(super) fn turn(self: &Arc<Self>, class: &Class, address: IpAddr) -> Option<AnswerPermit> {
        let mut answers = self.answers.lock();
        let shares = self.limits.shares(class, address, answers.all);
        let held = |sender: &Sender| answers.senders.get(sender).copied().unwrap_or_default();
        if shares.iter().any(|(sender, most)| held(sender) >= *most) {
            return None;
        }
        answers.all += 1;
        let senders: Vec<_> = shares.into_iter().map(|(sender, _)| sender).collect();
        for sender in &senders {
            *answers.senders.entry(sender.clone()).or_default() += 1;
        }
        Some(AnswerPermit { places: Arc::clone(self), senders, held: None })
    }

    /// Asks a connection to make room, if one can. Returns when the next try makes sense.
    async fn make_room(&self) {
        let later = self.next_to_go().map(|connection| connection.make_room.notify_one()).err().flatten();
        tokio::select! {
            () = self.changed.notified() => {}
            () = sleep_until(later.unwrap_or_else(Instant::now)), if later.is_some() => {}
        }
    }

    /// The connection that makes room first; otherwise when there will be one.
    fn next_to_go(&self) -> Result<Arc<Connection>, Option<Instant>> {
        let now = Instant::now();
        let (mut first, mut later) = (None, None::<Instant>);
        for connection in self.open.lock().iter().filter_map(Weak::upgrade) {
            let Some((rank, from)) = connection.may_go() else { continue };
            if from > now {
                later = Some(later.map_or(from, |later| later.min(from)));
            } else if first.as_ref().is_none_or(|(least, _)| (rank, from) < *least) {
                first = Some(((rank, from), connection));
            }
        }
        first.map(|(_, connection)| connection).ok_or(later)
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        let mut answers = self.places.answers.lock();
        answers.all -= 1;
        for sender in self.senders.drain(..) {
            if let Entry::Occupied(mut held) = answers.senders.entry(sender) {
                *held.get_mut() -= 1;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
        drop(answers);
        self.places.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::Ipv4Addr};

    use tokio::time::sleep;

    use super::*;
    use crate::{app::options, config::Config};

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    fn holder(owner: &str) -> Class {
        Class::Holder { owner: owner.parse().expect("an owner"), token: TokenId::new() }
    }

    fn places(connections_max: usize) -> Arc<Places> {
        let header_read_max = Duration::from_secs(10);
        let (idle_max, write_stall_max) = (Duration::from_mins(2), Duration::from_secs(30));
        Places::new(Limits { connections_max, address_percent: 50, header_read_max, idle_max, write_stall_max })
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_waited_longest_makes_room_and_none_that_is_answered() {
        let all = places(8);
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(all.open(HERE).await.expect("a place"));
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
        let all = places(2);
        let (asks, silent) = (all.open(HERE).await.expect("a place"), all.open(HERE).await.expect("a place"));
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
    async fn an_upgraded_connection_keeps_its_place_and_its_turn_until_its_end() {
        let all = places(8);
        let open = all.open(HERE).await.expect("a place");
        let mut busy = open.begin(&Class::Guest).await;
        busy.upgrade();
        drop(busy);
        sleep(Duration::from_hours(2)).await;
        assert!(matches!(all.next_to_go(), Err(None)), "it makes no room");
        assert_eq!(all.answers.lock().senders.get(&Sender::Address(HERE)), Some(&1));
        drop(open);
        assert_eq!((all.answers.lock().all, all.free.available_permits()), (0, 8));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_when_the_socket_has_taken_all_of_it() {
        let all = places(8);
        let answers = || all.answers.lock().all;
        let open = all.open(HERE).await.expect("a place");
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
    async fn guests_leave_places_to_holders_and_holders_to_probes() {
        let all = places(16);
        let turns = |address| std::iter::from_fn(|| all.turn(&Class::Guest, address)).collect::<Vec<_>>();
        let (here, there) = (turns(HERE), turns(THERE));
        assert_eq!((here.len(), there.len()), (8, 4), "half for one address, three quarters for all");
        let holders: Vec<_> = ["a", "b", "c", "d"].iter().filter_map(|owner| all.turn(&holder(owner), HERE)).collect();
        assert_eq!(holders.len(), 3);
        assert!(all.turn(&Class::Probe, HERE).is_some());
        let waiting = all.open(HERE).await.expect("a place");
        let guest = Class::Guest;
        let (refused, ()) = tokio::join!(waiting.begin(&guest), async {
            sleep(Duration::from_secs(1)).await;
            drop(there);
        });
        assert!(!refused.is_answered(), "its address has its share");
        drop((here, holders, refused));
        let served = waiting.begin(&guest).await;
        assert!(served.is_answered() && !all.are_short());
        assert_eq!(all.answers.lock().all, 1);
        assert_eq!(all.answers.lock().senders.len(), 1);
    }

    #[test]
    fn tokens_and_owners_leave_places_to_others() {
        let all = places(64);
        let turns = |class: &Class| std::iter::from_fn(|| all.turn(class, HERE)).collect::<Vec<_>>();
        // 60 of them are for holders.
        let (one, same_owner) = (turns(&holder("ann")), turns(&holder("ann")));
        assert_eq!((one.len(), same_owner.len()), (40, 5), "two thirds for one token, three quarters for one owner");
        let others = ["bob", "carol", "dave"].map(|owner| turns(&holder(owner)));
        assert_eq!(others.each_ref().map(Vec::len), [10, 4, 1], "each newcomer gets one");
        assert!(all.turn(&Class::Probe, HERE).is_some());
        drop((one, same_owner, others));
        let answers = all.answers.lock();
        assert!(answers.all == 0 && answers.senders.is_empty(), "{answers:?}");
    }

    #[test]
    fn streams_of_all_sessions_of_a_token_leave_it_places_for_calls() {
        let (config, ann) = (Config::default(), holder("ann"));
        let all = Places::new(options::listen(&config));
        let streams: Vec<_> = (0..config.server.token_sessions_max).map(|_| all.turn(&ann, HERE)).collect();
        assert!(streams.iter().all(Option::is_some) && all.turn(&ann, HERE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn request_of_a_holder_beyond_its_share_makes_room_only_when_every_place_is_taken() {
        let (all, ann, from) = (places(4), holder("ann"), Instant::now());
        let answers = [all.turn(&ann, HERE), all.turn(&ann, HERE)];
        let waits = all.open(HERE).await.expect("a place");
        let newcomers = async {
            sleep(Duration::from_millis(200)).await;
            assert!(!all.are_short(), "connections of others are kept");
            let others = [all.open(HERE).await, all.open(HERE).await];
            assert!(all.next_to_go().is_err(), "a place is free");
            (others, all.open(HERE).await)
        };
        let request = waits.drive(async { waits.begin(&ann).await.is_answered() });
        let ((others, last), refused) = tokio::join!(newcomers, request);
        assert!(answers.iter().all(Option::is_some) && others.iter().all(Option::is_some) && last.is_some());
        assert_eq!(refused, Ok(false));
        assert!(from.elapsed() < Duration::from_secs(1), "it is refused as soon as the last place is taken");
    }
}
