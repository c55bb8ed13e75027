//! The rules on a real database with a clock that the test sets: what expires, what is used twice, what comes at once.
//! What a client or an owner could make grow is in [`bounds`].

mod bounds;

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        clock::ManualClock,
        id::TokenId,
        token::{Grant, Scope, TokenDigest},
    },
    ports::{
        database::TokenStore,
        observer::{Observer, SignInFacts},
        sign_in::{Code, SignInStore},
        web::Web,
    },
    services::{
        sign_in::{Granted, Refusal, Registration, Request, SignIn, SignInOptions, TokenRequest},
        tokens::{NewToken, Tokens, digest},
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{REDIRECT, VERIFIER, challenge, documents::Pages, until};
use crate::support::{
    fake_server::{Kind, on_each_database},
    postgres::Postgres,
    server::TOKEN,
};

on_each_database! {
    code_lives_for_a_minute
    access_token_expires_and_what_it_opened_goes_on
    refresh_token_that_is_used_again_after_a_minute_ends_the_connection
    refresh_token_that_is_used_again_after_the_clock_was_set_back_ends_the_connection
    of_fifty_redemptions_on_two_servers_one_succeeds
    connection_ends_with_the_token_it_came_from_and_may_do_no_more
    consent_by_a_token_that_another_process_has_just_made_connects
    consent_by_a_token_that_another_process_revoked_makes_no_connection
    of_connections_that_are_made_during_a_revocation_none_is_left
    of_refreshes_during_a_revocation_none_is_accepted
    connection_whose_token_is_revoked_gets_nothing
    without_the_database_nothing_is_issued_and_known_tokens_go_on
    consent_whose_code_is_not_stored_leaves_no_connection
    what_has_expired_is_removed
    a_clock_that_is_far_ahead_at_the_start_ends_no_connection
}

pub(super) const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const NOW_S: i64 = 1_800_000_000;

/// What the audit log is told.
#[derive(Default)]
pub(super) struct Steps(Mutex<Vec<&'static str>>);

impl Observer for Steps {
    fn signed_in(&self, step: &SignInFacts<'_>) {
        self.0.lock().expect("no panic").push(step.step);
    }
}

pub(super) struct World {
    pub(super) clock: Arc<ManualClock>,
    pub(super) steps: Arc<Steps>,
    pub(super) pages: Arc<Pages>,
    pub(super) database: Database,
    pub(super) tokens: Arc<Tokens>,
    pub(super) sign_in: Arc<SignIn>,
    client: String,
    _kept: (TempDir, Option<Postgres>),
}

impl World {
    pub(super) async fn new(kind: Kind) -> Self {
        Self::with(kind, Arc::default()).await
    }

    /// With other servers that answer what the test says.
    async fn with(kind: Kind, pages: Arc<Pages>) -> Self {
        let web: Arc<dyn Web> = pages.clone();
        let folder = tempfile::tempdir().expect("a folder");
        let cluster = if kind == Kind::Postgres { Some(Postgres::start().await) } else { None };
        let in_folder = || format!("sqlite://{}/x.db", folder.path().display());
        let url = cluster.as_ref().map_or_else(in_folder, Postgres::url);
        let database = Database::connect(&url).expect("a database");
        database.prepare().await.expect("tables");
        let clock = Arc::new(ManualClock::at(NOW_S));
        let steps = Arc::default();
        let (tokens, sign_in) = server(&database, &clock, &steps, &web);
        let registration = Registration { redirects: vec![REDIRECT.to_owned()], ..Registration::default() };
        let client = sign_in.register(registration, HERE).await.expect("a client").client.id;
        Self { clock, steps, pages, database, tokens, sign_in, client, _kept: (folder, cluster) }
    }

    fn web(&self) -> Arc<dyn Web> {
        self.pages.clone()
    }

    async fn consent(&self, token: &str) -> Result<SecretString, Refusal> {
        let client = self.sign_in.client(&self.client, HERE).await.expect("the client");
        let request = Request {
            response_type: "code".into(),
            challenge: challenge(VERIFIER),
            challenge_method: "S256".into(),
            ..Request::default()
        };
        let consent = self.sign_in.check(client, REDIRECT.into(), &request).expect("a request");
        self.sign_in.consent(&consent, token, HERE).await
    }

    async fn code(&self, token: &str) -> String {
        self.consent(token).await.expect("consent").expose_secret().to_owned()
    }

    /// A code, as it is stored.
    fn stored_code(&self, digest: TokenDigest) -> Code {
        Code {
            digest,
            client: self.client.clone(),
            redirect: REDIRECT.into(),
            challenge: challenge(VERIFIER),
            expires_unix_ms: self.sign_in.now() + 60_000,
        }
    }

    fn redemption(&self, code: &str) -> TokenRequest {
        TokenRequest {
            grant_type: "authorization_code".into(),
            client: self.client.clone(),
            code: code.into(),
            verifier: VERIFIER.into(),
            ..TokenRequest::default()
        }
    }

    async fn signed_in(&self, token: &str) -> Granted {
        let code = self.code(token).await;
        self.sign_in.grant(&self.redemption(&code), HERE).await.expect("tokens")
    }

    async fn refresh(&self, granted: &Granted) -> Result<Granted, Refusal> {
        let request = TokenRequest {
            grant_type: "refresh_token".into(),
            client: self.client.clone(),
            refresh: granted.refresh.expose_secret().to_owned(),
            ..TokenRequest::default()
        };
        self.sign_in.grant(&request, HERE).await
    }

    fn is_accepted(&self, granted: &Granted) -> bool {
        self.tokens.caller(granted.access.expose_secret().as_bytes()).is_some()
    }

    pub(super) fn pass(&self, seconds: i64) {
        use mcp_sandbox_server::domain::clock::Clock as _;
        self.clock.set(self.clock.unix_s() + seconds);
    }
}

fn server(
    database: &Database,
    clock: &Arc<ManualClock>,
    steps: &Arc<Steps>,
    web: &Arc<dyn Web>,
) -> (Arc<Tokens>, Arc<SignIn>) {
    let store: Arc<dyn TokenStore> = Arc::new(database.clone());
    let tokens = Arc::new(Tokens::new(&TOKEN.to_owned().into(), store, clock.clone()));
    let options = SignInOptions {
        issuer: "https://sandbox.test".into(),
        access: Duration::from_hours(1),
        refresh: Duration::from_hours(24 * 30),
        key: "a-key".to_owned().into(),
        documents: true,
        openid: None,
    };
    let store = Arc::new(database.clone());
    let sign_in = SignIn::new(store, Arc::clone(&tokens), clock.clone(), steps.clone(), Arc::clone(web), options);
    (tokens, Arc::new(sign_in))
}

async fn code_lives_for_a_minute(kind: Kind) {
    let world = World::new(kind).await;
    let code = world.code(TOKEN).await;
    world.pass(61);
    let late = world.sign_in.grant(&world.redemption(&code), HERE).await;
    assert_eq!(late.map(drop), Err(Refusal::InvalidGrant));
}

async fn access_token_expires_and_what_it_opened_goes_on(kind: Kind) {
    let world = World::new(kind).await;
    let first = world.signed_in(TOKEN).await;
    let before = world.tokens.caller(first.access.expose_secret().as_bytes()).expect("accepted");
    world.pass(3601);
    assert!(!world.is_accepted(&first));
    let second = world.refresh(&first).await.expect("tokens");
    let after = world.tokens.caller(second.access.expose_secret().as_bytes()).expect("accepted");
    assert_eq!(before.owner.token(), after.owner.token(), "runs and sessions belong to the connection");
    assert!(!before.token.ended().is_cancelled());
    world.pass(30 * 24 * 3600 + 1);
    assert_eq!(world.refresh(&second).await.map(drop), Err(Refusal::InvalidGrant));
}

async fn refresh_token_that_is_used_again_after_a_minute_ends_the_connection(kind: Kind) {
    let world = World::new(kind).await;
    let first = world.signed_in(TOKEN).await;
    let second = world.refresh(&first).await.expect("tokens");
    world.pass(60);
    let sibling = world.refresh(&first).await.expect("within the grace");
    let other = world.signed_in(TOKEN).await;
    world.pass(1);
    assert_eq!(world.refresh(&first).await.map(drop), Err(Refusal::InvalidGrant));
    for tokens in [&first, &second, &sibling] {
        assert!(!world.is_accepted(tokens));
        assert_eq!(world.refresh(tokens).await.map(drop), Err(Refusal::InvalidGrant));
    }
    assert!(world.is_accepted(&other), "another connection of the same client");
    let told = world.steps.0.lock().expect("no panic").clone();
    let of_first = ["registered", "allowed", "redeemed", "refreshed", "refreshed"];
    assert_eq!(told[..8], [&of_first[..], &["allowed", "redeemed", "reused"]].concat());
}

async fn refresh_token_that_is_used_again_after_the_clock_was_set_back_ends_the_connection(kind: Kind) {
    let world = World::new(kind).await;
    let first = world.signed_in(TOKEN).await;
    let second = world.refresh(&first).await.expect("tokens");
    world.pass(-3600);
    assert!(world.is_accepted(&second));
    assert_eq!(world.refresh(&first).await.map(drop), Err(Refusal::InvalidGrant));
    assert!(!world.is_accepted(&second));
}

async fn of_fifty_redemptions_on_two_servers_one_succeeds(kind: Kind) {
    let world = World::new(kind).await;
    let code = world.code(TOKEN).await;
    let (_, other) = server(&world.database, &world.clock, &world.steps, &world.web());
    let tries: Vec<_> = (0..50)
        .map(|n| {
            let sign_in = Arc::clone(if n % 2 == 0 { &world.sign_in } else { &other });
            let request = world.redemption(&code);
            tokio::spawn(async move { sign_in.grant(&request, HERE).await.is_ok() })
        })
        .collect();
    let mut granted = 0;
    for one in tries {
        granted += u32::from(one.await.expect("no panic"));
    }
    assert_eq!(granted, 1);
}

async fn connection_ends_with_the_token_it_came_from_and_may_do_no_more(kind: Kind) {
    let world = World::new(kind).await;
    let grant = Grant { scopes: vec![Scope::Run, Scope::Admin], ..Grant::default() };
    let new = NewToken {
        owner: "other".parse().expect("an owner"),
        name: "laptop".into(),
        grant,
        expires_unix_ms: Some((NOW_S + 7200) * 1000),
        parent: None,
    };
    let (record, secret) = world.tokens.create(new.clone()).await.expect("a token");
    let granted = world.signed_in(secret.expose_secret()).await;
    assert_eq!(granted.scopes, [Scope::Run]);
    let caller = world.tokens.caller(granted.access.expose_secret().as_bytes()).expect("accepted");
    assert_eq!((caller.owner.name(), caller.token.record.parent), ("other", Some(record.id)));
    world.tokens.revoke(record.id).await.expect("revoked");
    assert!(!world.is_accepted(&granted) && caller.token.ended().is_cancelled());
    assert_eq!(world.refresh(&granted).await.map(drop), Err(Refusal::InvalidGrant));

    let (_, secret) = world.tokens.create(new).await.expect("a token");
    let granted = world.signed_in(secret.expose_secret()).await;
    world.pass(7201);
    assert_eq!(world.refresh(&granted).await.map(drop), Err(Refusal::InvalidGrant), "nor does it outlive it");
}

/// A token of another owner, or a connection that came from one.
fn of_other(parent: Option<TokenId>) -> NewToken {
    let (owner, grant) = ("other".parse().expect("an owner"), Grant::default());
    NewToken { owner, name: "laptop".into(), grant, expires_unix_ms: None, parent }
}

async fn consent_by_a_token_that_another_process_has_just_made_connects(kind: Kind) {
    let world = World::new(kind).await;
    let (other, _) = server(&world.database, &world.clock, &world.steps, &world.web());
    let (_, secret) = other.create(of_other(None)).await.expect("a token");
    until("it is read", async || world.consent(secret.expose_secret()).await.is_ok()).await;
}

async fn consent_by_a_token_that_another_process_revoked_makes_no_connection(kind: Kind) {
    let world = World::new(kind).await;
    let (record, secret) = world.tokens.create(of_other(None)).await.expect("a token");
    world.database.revoke(&record.id, world.sign_in.now()).await.expect("revoked");
    assert!(world.tokens.caller(secret.expose_secret().as_bytes()).is_some(), "this process does not know it yet");
    assert_eq!(world.consent(secret.expose_secret()).await.map(drop), Err(Refusal::WrongToken));
    assert_eq!(world.database.changed(0).await.expect("the database").len(), 1, "the token alone");
}

async fn of_connections_that_are_made_during_a_revocation_none_is_left(kind: Kind) {
    let world = World::new(kind).await;
    let (record, _) = world.tokens.create(of_other(None)).await.expect("a token");
    let made: Vec<_> = (0..16)
        .map(|n| {
            let connection = world.tokens.new_connection(of_other(Some(record.id))).expect("a connection");
            let (code, database) = (world.stored_code([n; 32]), world.database.clone());
            let parent = Some(record.id);
            tokio::spawn(async move { SignInStore::connect(&database, &connection, &code, parent).await })
        })
        .collect();
    world.database.revoke(&record.id, world.sign_in.now()).await.expect("revoked");
    for one in made {
        one.await.expect("no panic").expect("the database");
    }
    let mut left = world.database.changed(0).await.expect("the database");
    left.retain(|token| token.revoked_unix_ms.is_none());
    assert!(left.is_empty(), "{left:?}");
}

async fn of_refreshes_during_a_revocation_none_is_accepted(kind: Kind) {
    let world = World::new(kind).await;
    let (record, secret) = world.tokens.create(of_other(None)).await.expect("a token");
    let granted = world.signed_in(secret.expose_secret()).await;
    let refreshes = join_all((0..16).map(|_| world.refresh(&granted)));
    let (answers, revoked) = tokio::join!(refreshes, world.tokens.revoke(record.id));
    revoked.expect("it is revoked");
    for tokens in answers.iter().flatten().chain([&granted]) {
        assert!(!world.is_accepted(tokens));
        assert_eq!(world.refresh(tokens).await.map(drop), Err(Refusal::InvalidGrant));
    }
}

async fn connection_whose_token_is_revoked_gets_nothing(kind: Kind) {
    let world = World::new(kind).await;
    let (record, _) = world.tokens.create(of_other(None)).await.expect("a token");
    world.tokens.revoke(record.id).await.expect("revoked");
    // As an earlier version left some.
    let connection = world.tokens.new_connection(of_other(Some(record.id))).expect("a connection");
    let code = world.stored_code(digest(b"a-code"));
    assert!(SignInStore::connect(&world.database, &connection, &code, None).await.expect("stored"));
    let refused = world.sign_in.grant(&world.redemption("a-code"), HERE).await;
    assert_eq!(refused.map(drop), Err(Refusal::InvalidGrant));
}

async fn without_the_database_nothing_is_issued_and_known_tokens_go_on(kind: Kind) {
    let world = World::new(kind).await;
    let granted = world.signed_in(TOKEN).await;
    let code = world.code(TOKEN).await;
    world.database.close().await;
    assert_eq!(world.sign_in.grant(&world.redemption(&code), HERE).await.map(drop), Err(Refusal::Unavailable));
    assert_eq!(world.refresh(&granted).await.map(drop), Err(Refusal::Unavailable));
    let registration = Registration { redirects: vec![REDIRECT.to_owned()], ..Registration::default() };
    assert_eq!(world.sign_in.register(registration, HERE).await.map(drop), Err(Refusal::Unavailable));
    assert!(world.is_accepted(&granted));
}

async fn consent_whose_code_is_not_stored_leaves_no_connection(kind: Kind) {
    let world = World::new(kind).await;
    let connection = || world.tokens.new_connection(of_other(None)).expect("a connection");
    let (first, second) = (connection(), connection());
    let code = world.stored_code([7; 32]);
    assert!(SignInStore::connect(&world.database, &first, &code, None).await.expect("stored"));
    SignInStore::connect(&world.database, &second, &code, None).await.expect_err("the code is there");
    let stored = world.database.changed(0).await.expect("the database");
    assert_eq!(stored, [first]);
}

async fn what_has_expired_is_removed(kind: Kind) {
    let world = World::new(kind).await;
    let registration =
        |n: u32| Registration { redirects: vec![format!("https://{n}.test/")], ..Registration::default() };
    let unused = world.sign_in.register(registration(1), HERE).await.expect("a client").client.id;
    world.signed_in(TOKEN).await;
    world.code(TOKEN).await;
    world.pass(25 * 3600);
    let idle = SignInStore::forget(&world.database, world.sign_in.now()).await.expect("the database");
    assert_eq!(idle.len(), 1, "the connection whose code was not redeemed");
    assert_eq!(world.sign_in.client(&unused, HERE).await.map(drop), Err(Refusal::InvalidClient));
    assert!(world.sign_in.client(&world.client, HERE).await.is_ok());
    assert!(world.database.access(0).await.expect("the database").is_empty());
}

async fn a_clock_that_is_far_ahead_at_the_start_ends_no_connection(kind: Kind) {
    let world = World::new(kind).await;
    let granted = world.signed_in(TOKEN).await;
    world.pass(365 * 24 * 3600);
    let keeping = Arc::clone(&world.sign_in).remove_expired(CancellationToken::new());
    tokio::time::timeout(Duration::from_millis(300), keeping).await.expect_err("it goes on");
    world.pass(-365 * 24 * 3600);
    assert!(world.refresh(&granted).await.is_ok());
}
