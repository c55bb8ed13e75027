//! Policies that change while a sandbox has them.

use super::*;

#[tokio::test]
async fn changed_policy_holds_for_its_languages_alone() {
    let text = PolicyText { languages: vec!["python".to_owned()], ..policy(&["1.1.1.1"], &[]) };
    let gate = gate(Arc::default(), &text);
    assert_eq!(word(&gate, "1.1.1.1").await, "allowed");
    // As if it had been of another language when the sandbox began.
    let gate = SandboxGate { language: "bash".parse().expect("a language"), ..gate };
    assert_eq!(word(&gate, "1.1.1.1").await, "not_allowed");
}

#[tokio::test]
async fn policy_that_is_for_every_token_no_more_holds_for_those_that_name_it_alone() {
    let hosts = policy(&["1.1.1.1"], &[]);
    let gate = gate(Arc::default(), &hosts);
    assert_eq!(word(&gate, "1.1.1.1").await, "allowed");
    // As if it had been changed since the sandbox began.
    let named = Policy::parse("web", &PolicyText { every_token: false, ..hosts }).expect("a policy");
    let network = network(Arc::default(), vec![named], Vec::new(), &[]);
    let gate = SandboxGate { network: Arc::clone(&network.0), ..gate };
    assert_eq!(word(&gate, "1.1.1.1").await, "not_allowed");
    let (one, other) = (Principal::default(), Principal::default().by(TokenId::new()));
    assert!(network.covers(&other, &gate.language, &gate.access, &one), "it lets nothing out");
    // A tool server has what its operator named, whatever a token has.
    let access = network.named(&["web".to_owned()], &gate.language).expect("it is there").expect("an access");
    assert!(!network.covers(&other, &gate.language, &access, &one));
    assert_eq!(word(&SandboxGate { access, ..gate }, "1.1.1.1").await, "allowed");
}

#[test]
fn secret_whose_policy_was_deleted_is_used_under_no_other() {
    let named = |name: &str| Policy::parse(name, &policy(&["a.example.com"], &[])).expect("a policy");
    let text = SecretText {
        hosts: vec!["a.example.com".to_owned()],
        policies: vec!["first".to_owned()],
        ..SecretText::default()
    };
    let rule = SecretRule::parse("index", &text).expect("a rule");
    let secret = Arc::new(rule.with("value-of-the-index".to_owned().into()).expect("a secret"));
    let (request, host) = (RequestLine { method: "GET", path: "/" }, target("a.example.com"));
    for (policies, want) in [
        (vec![named("first"), named("second")], Ok(())),
        (vec![named("second")], Err("policy_changed")),
        (vec![named("first")], Ok(())),
    ] {
        let secrets = secret.for_sandbox(&[&named("first")]).into_iter().collect();
        let gate = SandboxGate { secrets, ..gate_in(&network(Arc::default(), policies, Vec::new(), &[])) };
        assert_eq!(gate.admit(&host, Some(&request)).map_err(|why| why.word()), want);
    }
}
