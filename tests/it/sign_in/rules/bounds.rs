//! What clients that are signed in, and their owners, cannot make grow without a bound.

use mcp_sandbox_server::{ports::database::TokenStore as _, services::sign_in::Refusal};
use secrecy::ExposeSecret as _;

use super::{World, of_other};
use crate::support::{
    fake_server::{Kind, on_each_database},
    server::TOKEN,
};

on_each_database! {
    client_that_refreshes_in_a_loop_is_slowed_down
    of_a_thousand_connections_the_least_used_leaves_for_a_new_one
    owner_who_connects_in_a_loop_is_slowed_down
}

async fn client_that_refreshes_in_a_loop_is_slowed_down(kind: Kind) {
    let world = World::new(kind).await;
    let (mut granted, other) = (world.signed_in(TOKEN).await, world.signed_in(TOKEN).await);
    let mut made = 0;
    let refused = loop {
        match world.refresh(&granted).await {
            Ok(next) => granted = next,
            Err(refusal) => break refusal,
        }
        made += 1;
        assert!(made < 200, "ten more are allowed each minute");
    };
    assert_eq!((refused, made >= 60), (Refusal::TooMany, true), "{made}");
    assert!(world.is_accepted(&granted), "what it has goes on");
    assert!(world.refresh(&other).await.is_ok(), "another connection of the same client has its own rate");
}

async fn of_a_thousand_connections_the_least_used_leaves_for_a_new_one(kind: Kind) {
    let world = World::new(kind).await;
    let (_, secret) = world.tokens.create(of_other(None)).await.expect("a token");
    let connection = || world.tokens.new_connection(of_other(None)).expect("a connection");
    let (mut used, idle) = (connection(), connection());
    used.used_unix_ms = Some(world.sign_in.now() + 2000);
    for stored in [&used, &idle] {
        world.database.insert(stored).await.expect("the database");
    }
    world.pass(1);
    let more = (0..998).map(|_| connection());
    world.tokens.learn([used.clone(), idle.clone()].into_iter().chain(more).collect());
    world.signed_in(TOKEN).await;
    assert_eq!(world.tokens.connections_beyond(0, &used.owner).len(), 1000, "another owner's new one ends none");
    world.consent(secret.expose_secret()).await.expect("a code");
    let left = world.tokens.connections_beyond(0, &used.owner);
    assert_eq!((left.len(), left.contains(&used.id), left.contains(&idle.id)), (1000, true, false));
    let stored = world.database.changed(0).await.expect("the database");
    let ended: Vec<_> = stored.iter().filter(|token| token.revoked_unix_ms.is_some()).map(|token| token.id).collect();
    assert_eq!(ended, [idle.id]);
}

async fn owner_who_connects_in_a_loop_is_slowed_down(kind: Kind) {
    let world = World::new(kind).await;
    let (record, secret) = world.tokens.create(of_other(None)).await.expect("a token");
    let mut made = 0;
    let refused = loop {
        match world.consent(secret.expose_secret()).await.map(drop) {
            Ok(()) => made += 1,
            Err(refusal) => break refusal,
        }
        assert!(made < 200, "one more is allowed each minute");
    };
    assert_eq!((refused, made >= 60), (Refusal::TooMany, true), "{made}");
    assert_eq!(world.tokens.connections_beyond(0, &record.owner).len(), made, "what was refused is not there");
    world.consent(TOKEN).await.expect("another owner has a rate of its own");
}
