//! What the message to a program says that its host needs.

use super::*;

/// What a refused program reads of a host that this policy names, where its gate is of this language and token.
fn message_of(text: &PolicyText, language: &str, owner: Principal, wanted: Option<&[String]>) -> String {
    let other = Policy::parse("other", &policy(&["b.example.com"], &[])).expect("a policy");
    let network = network(Arc::default(), vec![Policy::parse("web", text).expect("a policy"), other], Vec::new(), &[]);
    let access = network.access(&Principal::default(), &"python".parse().expect("a language"), wanted);
    let access = access.expect("no error").expect("an access");
    let conversation = ConversationKey::new(owner, "c".parse().expect("an id"));
    let language = language.parse().expect("a language");
    let gate = SandboxGate { access, conversation, language, ..gate_in(&network) };
    drop(gate.admit(&target("a.example.com"), None));
    gate.reporter.end().concat()
}

#[test]
fn refusal_says_what_its_host_needs() {
    let web = |every_token| PolicyText { every_token, ..policy(&["a.example.com"], &[]) };
    let python = PolicyText { languages: vec!["python".to_owned()], ..web(true) };
    let (default, other) = (Principal::default(), Principal::default().by(TokenId::new()));
    let only_other = ["other".to_owned()];
    for (text, language, owner, wanted, needed) in [
        (&python, "bash", default.clone(), None, "does for other languages: the operator can add \"bash\""),
        (
            &web(true),
            "python",
            default.clone(),
            Some(&only_other[..]),
            "web does: let `network` of the request name it",
        ),
        // What only other tokens have is as unknown as what no policy has.
        (&web(false), "python", default, None, "hosts = [\"a.example.com:443\"] and every_token = true below"),
        (&python, "bash", other, None, "443\"] below [network.<name>] of a policy that the token has"),
    ] {
        let message = message_of(text, language, owner, wanted);
        assert!(
            message.starts_with("[network: no policy allows a.example.com:443. ") && message.contains(needed),
            "{message}"
        );
    }
}

#[test]
fn refusal_of_an_installation_names_the_hosts_of_packages() {
    let named = |name: &str, host: &str| Policy::parse(name, &policy(&[host], &[])).expect("a policy");
    let network = network(Arc::default(), vec![named("web", "a.example.com")], Vec::new(), &[]);
    let index = named("packages", "index.example.com");
    let gate = SandboxGate { access: Access::of(index), ..gate_in(&network) };
    // A policy of programs that names the host does not apply to installations.
    drop(gate.admit(&target("a.example.com"), None));
    let message = "[network: no policy allows a.example.com:443. The operator can add \"a.example.com:443\" to `hosts` \
                below [packages] in sandbox.toml.]\n";
    assert_eq!(gate.reporter.end(), [message]);
}

#[test]
fn host_of_several_policies_is_listed_once() {
    let named = |name: &str, hosts: &[&str]| Policy::parse(name, &policy(hosts, &[])).expect("a policy");
    let first = named("first", &["a.example.com", "b.example.com"]);
    let second = named("second", &["b.example.com", "a.example.com"]);
    let network = network(Arc::default(), vec![first, second], Vec::new(), &[]);
    assert_eq!(network.hosts(&Principal::default()), ["a.example.com", "b.example.com"]);
}
