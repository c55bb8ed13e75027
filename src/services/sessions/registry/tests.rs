//! Tests of which owners and ends are kept.

use super::*;

#[test]
fn owners_that_ask_are_not_all_kept() {
    let registry = Arc::<Registry>::default();
    let ask = |n: usize| drop(registry.capacity_for(&format!("owner-{n}").parse().expect("an owner"), 1, 1));
    (0..100).for_each(ask);
    assert_eq!(registry.state.lock().owners.len(), 2);
}

#[test]
fn ends_of_an_owner_displace_none_of_anothers() {
    let registry = Registry::default();
    let left = |owner: &str| {
        let conversation = ConversationKey::new(owner.parse().expect("an owner"), "c".parse().expect("an id"));
        let language = "python".parse().expect("a language");
        SessionRecord { session: SessionId::new(), conversation, language, opened_ms: 0 }
    };
    let (ben, ann) = (left("ben"), left("ann"));
    registry.add_left(ben.clone(), true, false);
    registry.add_left(ann.clone(), true, false);
    (1..ENDED_MAX).for_each(|_| registry.add_left(left("ann"), true, false));
    let end = |record: &SessionRecord| registry.end_of(&record.conversation.owner, record.session);
    assert_eq!((end(&ben), end(&ann)), (Some(SessionEnd::Server), None));
    assert_eq!(registry.state.lock().ended.len(), ENDED_MAX);
}
