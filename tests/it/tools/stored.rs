//! Tool servers and questions on each kind of database.

use futures_util::future::join_all;
use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        Code, Principal,
        owner::ConversationKey,
        tools::{Answered, Approval, ApprovalId, ProposedCall, ServerText},
    },
    ports::database::{ApprovalStore as _, DefinitionKind, DefinitionStore as _, StoredDefinition},
};
use reqwest::Method;
use serde_json::json;
use tokio::time::timeout;

use crate::support::{
    FakeServer,
    calls::ask,
    postgres::Postgres,
    server::TOKEN,
    until::{PATIENCE, until},
};

const NOW: i64 = 1_000_000;
const LATER: i64 = NOW + 1000;

fn question(conversation: &str, arguments: &str) -> Approval {
    let conversation: ConversationKey = conversation.parse().expect("a conversation");
    Approval {
        id: ApprovalId::new(),
        call: ProposedCall {
            conversation,
            server: "files".to_owned(),
            tool: "delete".to_owned(),
            definition: "abc".to_owned(),
            arguments: arguments.to_owned(),
        },
        asked_unix_ms: NOW,
        answered: None,
        answered_by: None,
        expires_unix_ms: LATER,
    }
}

async fn put(database: &Database, name: &str, text: &ServerText, secret: &str) {
    let definition = serde_json::to_string(text).expect("JSON");
    let stored = StoredDefinition { name: name.to_owned(), definition, secret: secret.to_owned() };
    database.put_definition(DefinitionKind::ToolServer, &stored, NOW).await.expect("stored");
}

/// The stored tool servers.
async fn servers(database: &Database) -> Vec<StoredDefinition> {
    database.definitions(DefinitionKind::ToolServer).await.expect("servers")
}

/// Every policy and every tool server.
async fn stored(database: &Database) -> [Vec<StoredDefinition>; 2] {
    let policies = database.definitions(DefinitionKind::NetworkPolicy).await.expect("policies");
    [policies, servers(database).await]
}

async fn questions_and_servers_are_kept(url: &str) {
    let database = Database::connect(url).expect("a database");
    database.prepare().await.expect("tables");
    let text = ServerText { url: "https://a.example/mcp".to_owned(), ..ServerText::default() };
    put(&database, "files", &text, "one").await;
    put(&database, "files", &text, "two").await;
    let kept = servers(&database).await;
    let [StoredDefinition { name, definition, secret }] = kept.as_slice() else { panic!("{} servers", kept.len()) };
    assert_eq!((name.as_str(), secret.as_str()), ("files", "two"));
    assert_eq!(serde_json::from_str::<ServerText>(definition).expect("JSON"), text);
    assert!(database.remove_definition(DefinitionKind::ToolServer, "files").await.expect("removed"));
    assert!(!database.remove_definition(DefinitionKind::ToolServer, "files").await.expect("none"));

    let (once, other) = (question("@ann/one", "{\"path\":\"/ä\"}"), question("@ben/one", "{}"));
    database.ask(&once).await.expect("stored");
    database.ask(&other).await.expect("stored");
    let owner = once.call.conversation.owner.name();
    for (owner, wanted) in [(None, Some(&once)), (Some(owner), Some(&once)), (Some("another"), None)] {
        assert_eq!(database.approval(once.id, owner).await.expect("read").as_ref(), wanted, "{owner:?}");
    }
    assert_eq!(database.open_questions("ann", NOW).await.expect("a count"), 1);
    assert_eq!(database.open_questions("ann", LATER).await.expect("a count"), 0);
    let listed = async |owner, open, now| database.approvals(owner, open, now, 10).await.expect("a list").len();
    assert_eq!([listed(Some("ann"), false, NOW).await, listed(None, false, NOW).await], [1, 2]);
    assert_eq!([listed(None, true, NOW).await, listed(None, true, LATER).await], [2, 0]);
    assert_eq!(database.take_grant(&once.call, NOW).await.expect("none"), None);
    assert!(!database.answer(once.id, Answered::Once, "ann", LATER, LATER).await.expect("late"));
    assert!(database.answer(once.id, Answered::Once, "ann", NOW, LATER).await.expect("answered"));
    assert!(!database.answer(once.id, Answered::Always, "eve", NOW, LATER).await.expect("answered before"));
    let changed = ProposedCall { arguments: "{}".to_owned(), ..once.call.clone() };
    assert_eq!(database.take_grant(&changed, NOW).await.expect("none"), None);
    // Of many at once, one gets it.
    let answers = join_all((0..16).map(|_| database.take_grant(&once.call, NOW))).await;
    let taken: Vec<_> = answers.into_iter().filter_map(|answer| answer.expect("an answer")).collect();
    assert_eq!(taken, [once.id]);

    assert!(database.answer(other.id, Answered::Session, "ben", NOW, LATER).await.expect("answered"));
    assert_eq!(database.take_grant(&other.call, NOW).await.expect("it stands"), Some(other.id));
    let elsewhere = ProposedCall { conversation: "@ben/two".parse().expect("a conversation"), ..other.call.clone() };
    assert_eq!(database.take_grant(&elsewhere, NOW).await.expect("none"), None);
    assert_eq!(database.take_grant(&other.call, LATER).await.expect("over"), None);
    let always = question("@ben/one", "{}");
    database.ask(&always).await.expect("stored");
    assert!(database.answer(always.id, Answered::Always, "ben", NOW, i64::MAX / 4).await.expect("answered"));
    assert_eq!(database.take_grant(&elsewhere, LATER).await.expect("it stands"), Some(always.id));
    let others = ProposedCall { definition: "another".to_owned(), ..elsewhere.clone() };
    assert_eq!(database.take_grant(&others, LATER).await.expect("none"), None);
    for number in 1..=3 {
        let question = Approval { asked_unix_ms: NOW + number, ..question("@ben/one", "{}") };
        database.ask(&question).await.expect("stored");
    }
    let asked = async |now| {
        let listed = database.approvals(Some("ben"), false, now, 2).await.expect("a list");
        listed.iter().map(|question| question.asked_unix_ms).collect::<Vec<_>>()
    };
    assert_eq!(asked(NOW).await, [NOW + 3, NOW + 2, NOW, NOW], "the newest two, and the two answers that stand");
    assert_eq!(asked(LATER).await, [NOW + 3, NOW + 2, NOW], "one for a conversation is over");
    assert_eq!(listed(Some("ben"), true, NOW).await, 3);
    assert!(database.revoke(always.id, LATER).await.expect("taken back"));
    assert_eq!(asked(LATER).await, [NOW + 3, NOW + 2]);
    assert!(!database.revoke(always.id, LATER).await.expect("taken back before"));
    assert_eq!(database.take_grant(&elsewhere, LATER).await.expect("none"), None);
    database.forget_approvals(LATER + 1).await.expect("forgotten");
    assert_eq!(listed(None, false, NOW).await, 0);
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_questions_and_servers_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    questions_and_servers_are_kept(&format!("sqlite://{}/state.db", folder.path().display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_questions_and_servers_are_kept() {
    let cluster = Postgres::start().await;
    questions_and_servers_are_kept(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_server_whose_name_is_in_the_settings_is_not_offered() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/state.db", folder.path().display());
    let text = |owners: &[&str]| ServerText {
        url: "https://a.example/mcp".to_owned(),
        owners: owners.iter().map(|&owner| owner.to_owned()).collect(),
        ..ServerText::default()
    };
    let database = Database::connect(&url).expect("a database");
    database.prepare().await.expect("tables");
    put(&database, "up", &text(&[]), "").await;
    put(&database, "other", &text(&["ben"]), "").await;
    database.close().await;

    let file = folder.path().join("sandbox.toml");
    std::fs::write(&file, "[tools.up]\nurl = 'https://b.example/mcp'\nowners = ['ann']\n").expect("written");
    let settings = [("--config", file.to_str().expect("a path")), ("DATABASE_URL", url.as_str())];
    let server = FakeServer::with(&settings).await;
    let tools = &server.mcp.tools;
    until("the stored ones are read", async || tools.directory().all().len() == 2).await;
    let owner = |name: &str| name.parse::<Principal>().expect("an owner");
    for (who, is_offered) in [(owner("ann"), true), (owner("ben"), true), (Principal::default(), false)] {
        assert_eq!(tools.is_offered(&who), is_offered, "{}", who.name());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_with_a_hyphen_is_the_name_that_is_stored() {
    let server = FakeServer::start().await;
    let tools = &server.mcp.tools;
    let register = async |owner: &str, name: &str| {
        let text = ServerText {
            url: "https://a.example/mcp".to_owned(),
            owners: vec![owner.to_owned()],
            ..ServerText::default()
        };
        let who: Principal = owner.parse().expect("an owner");
        tools.register(&who, name, &text).await.map_err(|failure| failure.code)
    };
    let stored = Ok("git_hub".to_owned());
    assert_eq!(register("ann", "git-hub").await, stored);
    for name in ["git_hub", "git-hub"] {
        assert_eq!(register("ben", name).await, Err(Code::Forbidden), "{name} is another owner's");
        assert_eq!(register("ann", name).await, stored, "{name}");
    }
    let url = format!("http://{}/v1/tool-servers/git-hub", server.address);
    for status in [204_u16, 404] {
        let deleted = server.http.delete(&url).bearer_auth(TOKEN).send().await.expect("an answer");
        assert_eq!(deleted.status(), status);
    }
    assert!(tools.directory().all().is_empty());
    server.stop().await;
}

/// A server reads only every two seconds what others changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_keeps_what_another_server_has_just_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/state.db", folder.path().display());
    let server = FakeServer::with(&[("DATABASE_URL", &url)]).await;
    let database = Database::connect(&url).expect("a database");
    database.prepare().await.expect("tables");
    let text = |owner: &str| ServerText {
        url: "https://a.example/mcp".to_owned(),
        owners: vec![owner.to_owned()],
        ..ServerText::default()
    };
    put(&database, "files", &text("ann"), "secret").await;
    let changed = json!({"server": {"url": "https://a.example/mcp", "owners": ["ann", "ben"]}});
    assert_eq!(ask(&server, Method::PUT, "/v1/tool-servers/files", changed).await.0, 204);
    let kept = servers(&database).await;
    let [StoredDefinition { definition, secret, .. }] = kept.as_slice() else { panic!("{} servers", kept.len()) };
    assert!(secret == "secret" && definition.contains("ben"), "{definition}");

    put(&database, "mine", &text("ann"), "").await;
    let taken = server.mcp.tools.register(&"ben".parse().expect("an owner"), "mine", &text("ben")).await;
    assert_eq!(taken.map_err(|failure| failure.code), Err(Code::Forbidden), "it is another owner's");
    database.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_a_lock_are_503_and_change_nothing() {
    let cluster = Postgres::start().await;
    let url = cluster.url();
    let server = FakeServer::with(&[("DATABASE_URL", &url)]).await;
    let policy = |host: &str| Some(json!({"hosts": [host]}));
    let tools = |host: &str| Some(json!({"server": {"url": format!("https://{host}/mcp")}}));
    until("the tables are there", async || {
        ask(&server, Method::PUT, "/v1/admin/network/kept", policy("a.example")).await.0 == 204
    })
    .await;
    assert_eq!(ask(&server, Method::PUT, "/v1/tool-servers/kept", tools("a.example")).await.0, 204);
    let database = Database::connect(&url).expect("a database");
    database.prepare().await.expect("tables");
    let asked = Approval { expires_unix_ms: i64::MAX / 4, ..question("@ann/one", "{}") };
    database.ask(&asked).await.expect("stored");
    let before = stored(&database).await;
    let pool = sqlx::AnyPool::connect(&url).await.expect("another process");
    let mut other = pool.acquire().await.expect("a connection");
    let lock = "LOCK TABLE network_policies, tool_servers, approvals IN ACCESS EXCLUSIVE MODE";
    for statement in ["BEGIN", lock] {
        sqlx::query(statement).execute(&mut *other).await.expect("a lock");
    }

    let question = format!("/v1/approvals/{}", asked.id);
    let requests = [
        (Method::PUT, "/v1/admin/network/kept", policy("b.example")),
        (Method::PUT, "/v1/admin/network/new", policy("b.example")),
        (Method::DELETE, "/v1/admin/network/kept", None),
        (Method::PUT, "/v1/tool-servers/kept", tools("b.example")),
        (Method::DELETE, "/v1/tool-servers/kept", None),
        (Method::GET, "/v1/approvals", None),
        (Method::POST, &*question, Some(json!({"answer": "always"}))),
        (Method::DELETE, &*question, None),
    ];
    let requests = requests.map(async |(method, path, body)| {
        let (status, why) = ask(&server, method.clone(), path, body).await;
        assert_eq!((status, &why["code"]), (503, &json!("database_unavailable")), "{method} {path}: {why}");
    });
    timeout(PATIENCE, join_all(requests)).await.expect("they are answered while the lock is held");
    sqlx::query("ROLLBACK").execute(&mut *other).await.expect("no lock");

    assert_eq!(database.approval(asked.id, None).await.expect("read"), Some(asked));
    let after = stored(&database).await;
    assert!(after == before);
    drop(other);
    database.close().await;
    server.stop().await;
}
