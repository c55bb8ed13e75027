//! A name server that does not answer.

use super::*;

#[tokio::test]
async fn look_ups_of_one_owner_leave_room_for_those_of_others() {
    let names = Arc::new(Names { is_silent: true, ..Names::default() });
    let web = Policy::parse("web", &policy(&["*.example.com"], &[])).expect("a policy");
    let network = network(Arc::clone(&names), vec![web], Vec::new(), &[]);
    let (one, mut other) = (gate_in(&network), gate_in(&network));
    other.conversation.owner = "ann".parse().expect("an owner");
    let asked = || names.asked.load(Ordering::Relaxed);
    let target = target("a.example.com");
    let mut waiting: Vec<_> = (0..100).map(|_| one.decide(&target)).collect();
    assert!(waiting.iter_mut().all(|decision| decision.now_or_never().is_none()));
    assert_eq!(asked(), 32);
    assert!(other.decide(&target).now_or_never().is_none());
    assert_eq!(asked(), 33, "another owner's is made");
    drop(waiting);
    assert!(one.decide(&target).now_or_never().is_none());
    assert_eq!(asked(), 34, "what was given up has given back its room");
}
