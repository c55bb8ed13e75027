//! The decision with a resolver that says what the test wants.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicUsize, Ordering},
};

use futures_util::{FutureExt as _, future::BoxFuture};

use super::*;
use crate::{
    domain::{
        TokenId,
        clock::ManualClock,
        network::{BYTES_PER_MINUTE_MIN, PolicyText, Secret, SecretRule, SecretText},
    },
    ports::{
        network::{Authority, Carrier, ChannelPipe, Resolver},
        observer::Observers,
    },
    services::{
        network::{
            Network, NetworkParts, Policies,
            channels::{EVENTS_MAX, SENTENCES_MAX},
        },
        tokens::{Tokens, no_database},
    },
};

struct NoCarrier;

impl Carrier for NoCarrier {
    fn authority(&self, _hosts: &[Host]) -> Option<Authority> {
        None
    }

    fn carry(&self, _pipe: ChannelPipe, _gate: Arc<dyn Gate>) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

#[derive(Default)]
struct Names {
    known: HashMap<&'static str, Vec<IpAddr>>,
    /// What is answered before that, an answer each time.
    first: Mutex<HashMap<&'static str, VecDeque<Vec<IpAddr>>>>,
    asked: AtomicUsize,
    is_silent: bool,
}

#[async_trait]
impl Resolver for Names {
    async fn resolve(&self, name: &str) -> Vec<IpAddr> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_silent {
            return std::future::pending().await;
        }
        let first = self.first.lock().get_mut(name).and_then(VecDeque::pop_front);
        first.or_else(|| self.known.get(name).cloned()).unwrap_or_default()
    }

    fn is_own(&self, address: IpAddr) -> bool {
        ["8.8.4.4", "2002:100:9::1"].iter().any(|own| own.parse() == Ok(address))
    }
}

fn addresses(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|address| address.parse().expect("an address")).collect()
}

fn gate(names: Arc<Names>, text: &PolicyText) -> SandboxGate {
    gate_of(names, text, &[])
}

/// Of a server with these hosts in its URLs.
fn gate_of(names: Arc<Names>, text: &PolicyText, own: &[&str]) -> SandboxGate {
    let configured = vec![Policy::parse("web", text).expect("a policy")];
    gate_in(&network(names, configured, Vec::new(), own))
}

fn gate_in(network: &Network) -> SandboxGate {
    let language: Language = "python".parse().expect("a language");
    let access = network.access(&Principal::default(), &language, None).expect("no error").expect("an access");
    let conversation = ConversationKey::new(Principal::default(), "c".parse().expect("an id"));
    let network = Arc::clone(&network.0);
    SandboxGate { network, access, conversation, language, reporter: Arc::default(), secrets: Vec::new() }
}

fn network(names: Arc<Names>, configured: Vec<Policy>, secrets: Vec<Secret>, own: &[&str]) -> Network {
    let clock = Arc::new(ManualClock::at(1));
    let tokens = Arc::new(Tokens::unstored(clock.clone()));
    let parts = NetworkParts {
        tokens,
        carrier: Arc::new(NoCarrier),
        resolver: names,
        own_hosts: own.iter().map(|host| Host::parse(host).expect("a host")).collect(),
        observer: Arc::new(Observers::default()),
        clock,
    };
    Network::new(Policies::new(configured, Arc::new(no_database()), Arc::clone(&parts.clock)), secrets, parts)
}

fn policy(hosts: &[&str], allowed: &[&str]) -> PolicyText {
    PolicyText {
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        addresses: addresses(allowed),
        every_token: true,
        ..PolicyText::default()
    }
}

fn target(text: &str) -> Target {
    Target::parse(text, Some(443)).expect(text)
}

#[tokio::test]
async fn every_address_of_a_name_must_be_of_the_internet() {
    let names = Names {
        known: HashMap::from([
            ("good.example.com", addresses(&["1.1.1.1", "2606:4700::1111"])),
            ("mixed.example.com", addresses(&["1.1.1.1", "10.0.0.1"])),
            ("inner.example.com", addresses(&["10.0.0.1"])),
            ("mapped.example.com", addresses(&["::ffff:169.254.169.254"])),
            ("named.example.com", addresses(&["10.9.9.9"])),
            ("own.example.com", addresses(&["8.8.4.4"])),
        ]),
        ..Names::default()
    };
    let names = Arc::new(names);
    let gate = gate(Arc::clone(&names), &policy(&["*.example.com"], &["10.9.9.9"]));
    for (name, want) in [
        ("good.example.com", "allowed"),
        ("named.example.com", "allowed"),
        ("mixed.example.com", "not_public"),
        ("inner.example.com", "not_public"),
        ("mapped.example.com", "not_public"),
        ("own.example.com", "own_address"),
        ("absent.example.com", "not_found"),
        ("good.example.org", "not_allowed"),
        ("good.example.com:22", "not_allowed"),
    ] {
        assert_eq!(word(&gate, name).await, want, "{name}");
    }
    // What no policy names is not looked up: a name is no way to tell anything to its owner.
    assert_eq!(names.asked.load(Ordering::Relaxed), 7);
    let found = gate.decide(&target("good.example.com")).await.expect("allowed");
    assert_eq!(found, ["1.1.1.1:443".parse().expect("one"), "[2606:4700::1111]:443".parse().expect("two")]);
}

/// The word of the refusal, or `allowed`.
async fn word(gate: &SandboxGate, name: &str) -> &'static str {
    gate.decide(&target(name)).await.map_or_else(|why| why.word(), |_| "allowed")
}

#[tokio::test(start_paused = true)]
async fn addresses_of_the_servers_own_urls_are_refused_unless_a_policy_names_them() {
    let names = Names {
        known: HashMap::from([
            ("sandbox.example.net", addresses(&["1.0.0.1", "2606:4700::1111"])),
            ("other.example.com", addresses(&["1.0.0.2"])),
            ("alias.example.com", addresses(&["1.0.0.2", "1.0.0.1"])),
            ("six.example.com", addresses(&["2606:4700::1111"])),
            ("mapped.example.com", addresses(&["::ffff:1.0.0.1"])),
            ("nat64.example.com", addresses(&["64:ff9b::1.0.0.1"])),
            ("tunnel.example.com", addresses(&["2002:100:1::1"])),
            ("carried.example.com", addresses(&["64:ff9b::8.8.4.4"])),
            ("interface.example.com", addresses(&["2002:100:9::1"])),
            ("files.example.com", addresses(&["9.9.9.9"])),
        ]),
        ..Names::default()
    };
    let (names, own) = (Arc::new(names), ["sandbox.example.net", "9.9.9.9"]);
    let hosts = policy(&["*.example.com", "sandbox.example.net"], &[]);
    let gate = gate_of(Arc::clone(&names), &hosts, &own);
    for (name, want) in [
        ("other.example.com", "allowed"),
        ("sandbox.example.net", "own_address"),
        ("alias.example.com", "own_address"),
        ("six.example.com", "own_address"),
        ("mapped.example.com", "own_address"),
        ("nat64.example.com", "own_address"),
        ("tunnel.example.com", "own_address"),
        ("carried.example.com", "own_address"),
        ("interface.example.com", "own_address"),
        ("files.example.com", "own_address"),
    ] {
        assert_eq!(word(&gate, name).await, want, "{name}");
    }
    assert_eq!(names.asked.load(Ordering::Relaxed), 11, "its own name is looked up once");
    // By its name it is refused at another address too; a look-up that fails forgets none.
    let mut first = HashMap::from([("alias.example.com", VecDeque::from([addresses(&["1.0.0.1"])]))]);
    first.insert("sandbox.example.net", [addresses(&["1.0.0.3"]), Vec::new()].into());
    *names.first.lock() = first;
    assert_eq!(word(&gate, "sandbox.example.net").await, "own_address");
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(word(&gate, "alias.example.com").await, "own_address");
    let excepted = policy(&["*.example.com"], &["1.0.0.1", "1.0.0.2"]);
    assert_eq!(word(&gate_of(names, &excepted, &own), "alias.example.com").await, "allowed");
}

#[tokio::test]
async fn name_that_changes_its_addresses_is_judged_by_the_answer_that_is_connected_to() {
    let many = |last: &[u8; 4]| -> Vec<IpAddr> {
        (0..1000_u32).map(|n| Ipv4Addr::from(0x0100_0000 + n).into()).chain([IpAddr::from(*last)]).collect()
    };
    let answers = [
        (addresses(&["1.1.1.1"]), "allowed"),
        (addresses(&["127.0.0.1"]), "not_public"),
        (addresses(&["1.1.1.1", "127.0.0.1"]), "not_public"),
        (addresses(&["169.254.169.254", "1.1.1.1"]), "not_public"),
        (addresses(&["::ffff:10.0.0.1", "1.1.1.1"]), "not_public"),
        (Vec::new(), "not_found"),
        (many(&[1, 1, 1, 1]), "allowed"),
        (many(&[192, 168, 0, 1]), "not_public"),
        (addresses(&["1.1.1.1"]), "allowed"),
    ];
    let names = Names::default();
    let all = answers.iter().map(|(answer, _)| answer.clone()).collect();
    names.first.lock().insert("a.example.com", all);
    let names = Arc::new(names);
    let gate = gate(Arc::clone(&names), &policy(&["a.example.com"], &[]));
    for (at, (answer, want)) in answers.iter().enumerate() {
        let decided = gate.decide(&target("a.example.com")).await;
        assert_eq!(decided.as_ref().map_or_else(Refusal::word, |_| "allowed"), *want, "answer {at}");
        if let Ok(allowed) = decided {
            let allowed: Vec<_> = allowed.iter().map(SocketAddr::ip).collect();
            assert_eq!(allowed, *answer, "what is connected to is what was checked");
        }
        assert_eq!(names.asked.load(Ordering::Relaxed), at + 1, "each connection looks it up once");
    }
}

/// The notations of an address that some library reads as one.
fn notations(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let whole = u32::from(address);
    let (low, lower) = (whole & 0xff_ffff, whole & 0xffff);
    vec![
        address.to_string(),
        format!("{address}."),
        whole.to_string(),
        format!("{whole:#x}"),
        format!("0{whole:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a}.{low}"),
        format!("{a}.{b}.{lower}"),
        format!("{a:#x}.{low:#x}"),
        format!("00{a:o}.{b}.{c}.{d:#x}"),
        format!("[::ffff:{address}]"),
        format!("[::ffff:{:x}:{:x}]", whole >> 16, lower),
        format!("[0:0:0:0:0:ffff:{address}]"),
        format!("[64:ff9b::{address}]"),
        format!("[2002:{:x}:{:x}::1]", whole >> 16, lower),
        format!("[::{address}]"),
        a.to_string().chars().map(|c| char::from_u32(u32::from(c) + 0xfee0).expect("a digit")).collect::<String>()
            + format!(".{b}.{c}.{d}").as_str(),
    ]
}

#[tokio::test]
async fn no_notation_of_an_inner_address_is_let_through() {
    let inner = [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "192.0.0.192",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
    ];
    let mut tried = 0;
    for address in inner {
        let address: Ipv4Addr = address.parse().expect("an address");
        for text in notations(address) {
            tried += 1;
            let Some(host) = Host::parse(&text) else { continue };
            let Host::Address(parsed) = host else { panic!("{text} is taken for a name") };
            assert!(!is_public(parsed), "{text}");
            let names = Names { known: HashMap::from([("a.example.com", vec![parsed])]), ..Names::default() };
            let gate = gate(Arc::new(names), &policy(&["*.example.com", "1.1.1.1"], &[]));
            assert_eq!(word(&gate, &text).await, "not_allowed", "{text}");
            assert_eq!(word(&gate, "a.example.com").await, "not_public", "a name that leads to {text}");
        }
    }
    assert!(tried >= 200, "{tried}");
}

#[tokio::test]
async fn refusals_are_told_once_and_in_bounded_number() {
    let gate = gate(Arc::default(), &policy(&["a.example.com"], &[]));
    let events = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&events);
    gate.reporter.to(Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    for n in 0..1000 {
        drop(gate.decide(&target(&format!("h{}.example.org", n % 40))).await);
    }
    assert_eq!(events.load(Ordering::Relaxed), EVENTS_MAX);
    let sentences = gate.reporter.end();
    assert_eq!(sentences.len(), SENTENCES_MAX + 1, "one more about the connections that are no events");
    assert!(sentences[0].starts_with("[network: no policy allows h0.example.org:443."), "{}", sentences[0]);
    assert!(gate.reporter.end().is_empty());
    let kept = gate.network.decisions.newest(&Principal::default(), 10_000);
    assert_eq!((kept.len(), kept[0].used.target.as_str()), (500, "h39.example.org:443"));
    let other: Principal = "ann".parse().expect("an owner");
    assert!(gate.network.decisions.newest(&other, 10).is_empty());
    gate.closed(NetworkUse::of("a.example.com:443".to_owned(), Some(Refusal::Idle(target("a.example.com")))));
    assert!(gate.reporter.end().is_empty(), "an idle connection is an event alone");
}

#[test]
fn owner_has_one_share_while_any_of_its_sandboxes_has_channels() {
    let gate = gate(Arc::default(), &policy(&["a.example.com"], &[]));
    let owner: Principal = "ann".parse().expect("an owner");
    let (first, second) = (gate.network.shares.of(&owner), gate.network.shares.of(&owner));
    let other = gate.network.shares.of(&Principal::default());
    assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
    let taken = first.try_acquire_many(80).expect("half of all");
    assert!(second.try_acquire().is_err() && other.try_acquire().is_ok());
    drop((taken, other));
    drop((first, second));
    assert_eq!(gate.network.shares.of(&owner).available_permits(), 80, "nothing of it is kept");
}

#[tokio::test]
async fn bytes_pass_at_the_largest_rate_where_all_policies_of_a_host_limit_them() {
    let limited = |name: &str, bytes_per_minute| {
        let text = PolicyText { bytes_per_minute, ..policy(&["a.example.com"], &[]) };
        Policy::parse(name, &text).expect("a policy")
    };
    let (least, host) = (BYTES_PER_MINUTE_MIN, target("a.example.com"));
    let policies = vec![limited("a", least), limited("b", 4 * least), limited("c", least)];
    let gate = gate_in(&network(Arc::default(), policies, Vec::new(), &[]));
    let pace = gate.pace(&host).expect("all of them limit bytes");
    assert!(pace(3 * least).now_or_never().is_some(), "they fit into a minute of the second policy");
    let policies = vec![limited("a", least), limited("b", 0)];
    assert!(gate_in(&network(Arc::default(), policies, Vec::new(), &[])).pace(&host).is_none());
}

#[tokio::test]
async fn sandbox_with_a_policy_of_the_servers_own_has_no_secret() {
    let text = SecretText { hosts: vec!["a.example.com".to_owned()], ..SecretText::default() };
    let rule = SecretRule::parse("index", &text).expect("a rule");
    let secret = rule.with("value-of-the-index".to_owned().into()).expect("a secret");
    let web = || Policy::parse("web", &policy(&["a.example.com"], &[])).expect("a policy");
    let network = network(Arc::default(), vec![web()], vec![secret], &[]);
    let SandboxGate { access, conversation, language, .. } = gate_in(&network);
    for (access, has_secret) in [(access, true), (Access::of(web()), false)] {
        let channels = network.open(access, &conversation, &language);
        let has = |variable: &str| channels.variables.iter().any(|(name, _)| name == variable);
        assert_eq!((has("HTTPS_PROXY"), has("INDEX_TOKEN")), (true, has_secret));
    }
}

#[test]
fn policy_for_one_language_gives_programs_of_another_nothing() {
    let text = PolicyText { languages: vec!["python".to_owned()], ..policy(&["1.1.1.1"], &[]) };
    let named = Policy::parse("web", &text).expect("a policy");
    let network = network(Arc::default(), vec![named], Vec::new(), &[]);
    let has_access = |language: &str, wanted: Option<&[String]>| {
        let language: Language = language.parse().expect("a language");
        network.access(&Principal::default(), &language, wanted).map(|access| access.is_some())
    };
    let web = ["web".to_owned()];
    assert!(has_access("python", None).expect("no error") && has_access("python", Some(&web)).expect("it is there"));
    assert!(!has_access("bash", None).expect("no error"));
    assert!(has_access("bash", Some(&web)).is_err());
}

#[path = "gate_advice_tests.rs"]
mod advice;
#[path = "gate_changes_tests.rs"]
mod changes;
#[path = "gate_look_ups_tests.rs"]
mod look_ups;
