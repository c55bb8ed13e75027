//! Claims that a provider gives at its endpoint `UserInfo` only: when it is asked, and what is believed.

use std::{path::Path, sync::Arc, time::Duration};

use jsonwebtoken::Algorithm;
use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{clock::SystemClock, owner::Principal},
    ports::web::Web,
    services::{
        sign_in::{OpenIdOptions, Refusal, SignIn, SignInOptions},
        tokens::Tokens,
    },
};
use serde_json::{Value, json};

use super::{
    documents::Pages,
    rules::{HERE, Steps},
};
use crate::support::{issuer::Key, server::TOKEN};

const ISSUER: &str = "https://id.test";

struct Provider {
    key: Key,
    /// What the token of a person says beside who it is for.
    token: Value,
    /// What `UserInfo` answers; `None` where there is no such endpoint.
    user_info: Option<(u16, String)>,
    /// Whether it answers no code.
    is_silent: bool,
}

impl Provider {
    fn new() -> Self {
        Self { key: Key::rsa("only", Algorithm::RS256), token: json!({}), user_info: None, is_silent: false }
    }

    fn says(&mut self, user_info: &Value) {
        self.user_info = Some((200, user_info.to_string()));
    }

    /// The owner that its person is, and how often `UserInfo` was asked.
    async fn person(&self, allowed: &str, owner_claim: &str) -> (Result<String, Refusal>, usize) {
        let pages = Arc::new(Pages::default());
        let mut metadata = json!({"issuer": ISSUER, "authorization_endpoint": format!("{ISSUER}/authorize"),
            "token_endpoint": format!("{ISSUER}/token"), "jwks_uri": format!("{ISSUER}/keys"),
            "response_types_supported": ["code"], "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"]});
        if let Some((status, body)) = &self.user_info {
            metadata["userinfo_endpoint"] = json!(format!("{ISSUER}/userinfo"));
            pages.answer(&format!("{ISSUER}/userinfo"), *status, body, "");
        }
        pages.put(&format!("{ISSUER}/.well-known/openid-configuration"), &metadata);
        pages.put(&format!("{ISSUER}/keys"), &json!({"keys": [self.key.public()]}));

        let folder = tempfile::tempdir().expect("a folder");
        let sign_in = sign_in(&pages, folder.path(), allowed, owner_claim);
        let address = sign_in.to_provider("state", "browser", HERE).await.expect("an address");
        let query = address.split_once('?').expect("a query").1;
        let nonce = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "nonce").expect("a nonce").1;
        let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
        let mut claims = json!({"iss": ISSUER, "aud": "sandbox", "sub": "alice", "iat": now, "exp": now + 600,
            "nonce": nonce});
        claims.as_object_mut().expect("an object").extend(self.token.as_object().expect("an object").clone());
        let answer = json!({"access_token": "opaque", "token_type": "Bearer", "id_token": self.key.sign(&claims)});
        if !self.is_silent {
            pages.put(&format!("{ISSUER}/token"), &answer);
        }
        let person = sign_in.from_provider("code", None, ("state", "browser"), HERE).await;
        let asked = pages.asked.lock().expect("no panic").iter().filter(|(_, at)| at.ends_with("/userinfo")).count();
        (person.map(|owner| owner.name().to_owned()), asked)
    }
}

fn sign_in(pages: &Arc<Pages>, folder: &Path, allowed: &str, owner_claim: &str) -> SignIn {
    let openid = OpenIdOptions {
        issuer: ISSUER.into(),
        client: "sandbox".into(),
        secret: None,
        scopes: vec!["email".into()],
        allowed: allowed.split(',').map(str::to_owned).collect(),
        owner_claim: owner_claim.into(),
    };
    let options = SignInOptions {
        issuer: "https://sandbox.test".into(),
        access: Duration::from_hours(1),
        refresh: Duration::from_hours(1),
        key: "a-key".to_owned().into(),
        documents: false,
        openid: Some(openid),
    };
    // Nothing is stored before a person consents.
    let database = Database::connect(&format!("sqlite://{}/x.db", folder.display())).expect("an address");
    let tokens = Tokens::new(&TOKEN.to_owned().into(), Arc::new(database.clone()), Arc::new(SystemClock));
    let (observer, web): (Arc<Steps>, Arc<dyn Web>) = (Arc::default(), pages.clone());
    SignIn::new(Arc::new(database), Arc::new(tokens), Arc::new(SystemClock), observer, web, options)
}

#[tokio::test]
async fn userinfo_is_asked_for_claims_that_are_needed_and_missing() {
    let mut provider = Provider::new();
    let owner = |name: &str| Ok(name.to_owned());
    provider.says(&json!({"sub": "alice", "email": "a@example.org", "email_verified": true,
        "preferred_username": "ali", "employee": "a-17"}));
    assert_eq!(provider.person("@example.org", "sub").await, (owner("alice"), 1));
    assert_eq!(provider.person("A@example.org", "preferred_username").await, (owner("ali"), 1));
    assert_eq!(provider.person("*", "employee").await, (owner("a-17"), 1), "a claim that no standard names");
    assert_eq!(provider.person("@example.com", "sub").await, (Err(Refusal::NotAllowed), 1));
    // What the token says is enough.
    assert_eq!(provider.person("*", "sub").await, (owner("alice"), 0));
    assert_eq!(provider.person("alice,@example.com", "sub").await, (owner("alice"), 0));
    assert_eq!(provider.person("bob", "sub").await, (Err(Refusal::NotAllowed), 0), "no address is asked for");
    assert_eq!(provider.person("*", "department").await, (Err(Refusal::Unidentified), 1));

    // An address that the provider has not verified stays so, and is never completed by another's mark.
    provider.token = json!({"email": "a@example.org", "email_verified": false});
    assert_eq!(provider.person("@example.org", "sub").await, (Err(Refusal::NotAllowed), 0));
    provider.token = json!({"email": "a@example.org"});
    provider.says(&json!({"sub": "alice", "email": "a@example.com", "email_verified": true}));
    assert_eq!(provider.person("@example.org", "sub").await, (Err(Refusal::NotAllowed), 1));
    assert_eq!(provider.person("@example.com", "sub").await, (owner("alice"), 1));
    provider.says(&json!({"sub": "alice", "email_verified": true}));
    assert_eq!(provider.person("@example.org", "sub").await, (Err(Refusal::NotAllowed), 1));
}

#[tokio::test]
async fn userinfo_that_proves_nothing_is_told_apart() {
    let mut provider = Provider::new();
    let good = json!({"sub": "alice", "email": "a@example.org", "email_verified": true});
    let changed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        claims.to_string()
    };
    for (what, status, body, refusal) in [
        ("another subject", 200, changed("sub", json!("mallory")), Refusal::Unidentified),
        ("no subject", 200, changed("sub", Value::Null), Refusal::Unidentified),
        ("no JSON", 200, "<html>".to_owned(), Refusal::Unidentified),
        ("a token that it refuses", 401, good.to_string(), Refusal::Unidentified),
        ("a redirect", 302, good.to_string(), Refusal::Unidentified),
        ("an error", 502, good.to_string(), Refusal::ProviderAway),
        ("not verified", 200, changed("email_verified", json!(false)), Refusal::NotAllowed),
        ("not said to be verified", 200, changed("email_verified", Value::Null), Refusal::NotAllowed),
    ] {
        provider.user_info = Some((status, body));
        assert_eq!(provider.person("@example.org", "sub").await, (Err(refusal), 1), "{what}");
    }
    provider.user_info = None;
    assert_eq!(provider.person("@example.org", "sub").await, (Err(Refusal::NotAllowed), 0), "no such endpoint");
    assert_eq!(provider.person("*", "email").await, (Err(Refusal::Unidentified), 0));
}

#[tokio::test]
async fn provider_that_does_not_answer_a_code_is_no_refusal() {
    let provider = Provider { is_silent: true, ..Provider::new() };
    assert_eq!(provider.person("*", "sub").await, (Err(Refusal::ProviderAway), 0));
}

/// Otherwise a person who may choose an address at the provider would choose another person's.
#[tokio::test]
async fn address_names_an_owner_when_the_provider_has_verified_it() {
    let mut provider = Provider::new();
    let owner = Principal::of_claim(ISSUER, "a@example.org").name().to_owned();
    for (token, person) in [
        (json!({"email": "a@example.org", "email_verified": true}), Ok(owner.clone())),
        (json!({"email": "a@example.org", "email_verified": false}), Err(Refusal::Unidentified)),
        (json!({"email": "a@example.org"}), Err(Refusal::Unidentified)),
    ] {
        provider.token = token;
        assert_eq!(provider.person("*", "email").await, (person, 0), "{}", provider.token);
    }
    provider.says(&json!({"sub": "alice", "email": "a@example.org", "email_verified": true}));
    assert_eq!(provider.person("*", "email").await, (Ok(owner), 1), "UserInfo has the mark");
    provider.token = json!({"email": "a@example.org", "email_verified": false});
    assert_eq!(provider.person("*", "email").await, (Err(Refusal::Unidentified), 1), "the token counts more");
}

/// Some providers let people choose what they are called.
#[tokio::test]
async fn entry_with_an_at_sign_is_an_address_and_no_subject() {
    let mut provider = Provider::new();
    let subject = "boss@example.org";
    for (email, allowed, is_allowed) in [
        ("eve@evil.test", subject, false),
        ("eve@evil.test", "sub:boss@example.org", true),
        ("eve@evil.test", "@example.org", false),
        ("eve@evil.test", "sub:eve@evil.test", false),
        ("eve@evil.test", "Eve@evil.test", true),
        (subject, subject, true),
    ] {
        provider.token = json!({"sub": subject, "email": email, "email_verified": true});
        let person = provider.person(allowed, "sub").await.0;
        let owner = Principal::of_claim(ISSUER, subject).name().to_owned();
        assert_eq!(person, if is_allowed { Ok(owner) } else { Err(Refusal::NotAllowed) }, "{email} by {allowed}");
    }
    provider.token = json!({});
    assert_eq!(provider.person("sub:alice", "sub").await, (Ok("alice".to_owned()), 0), "no address is asked for");
}

/// One state is enough to come back with code after code, and each would make the server ask the provider.
#[tokio::test]
async fn answers_that_are_made_up_reach_the_provider_only_so_often() {
    let (pages, folder) = (Arc::new(Pages::default()), tempfile::tempdir().expect("a folder"));
    let sign_in = sign_in(&pages, folder.path(), "*", "sub");
    let mut refused = 0;
    for n in 0..200 {
        let answer = sign_in.from_provider(&format!("code-{n}"), None, ("state", "browser"), HERE).await;
        refused += usize::from(matches!(answer, Err(Refusal::TooMany)));
    }
    let asked = pages.asked.lock().expect("no panic").len();
    assert!(
        refused > 100 && asked + refused == 200,
        "{refused} were refused, and the provider was asked {asked} times"
    );
}
