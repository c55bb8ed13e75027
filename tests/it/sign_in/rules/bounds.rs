//! What clients that are signed in, and their owners, cannot make grow without a bound.

use mcp_sandbox_server::services::sign_in::Refusal;

use super::World;
use crate::support::{
    fake_server::{Kind, on_each_database},
    server::TOKEN,
};

on_each_database! {
    client_that_refreshes_in_a_loop_is_slowed_down
}

async fn client_that_refreshes_in_a_loop_is_slowed_down(kind: Kind) {
    let world = World::new(kind).await;
    let (mut granted, other) = (world.signed_in(TOKEN).await, world.signed_in(TOKEN).await);
    let mut refused = None;
    // Ten more are allowed each minute, so even a slow database comes to an end here.
    for _ in 0..200 {
        let next = world.refresh(&granted).await;
        match next {
            Ok(next) => granted = next,
            Err(refusal) => {
                refused = Some(refusal);
                break;
            }
        }
    }
    assert_eq!(refused, Some(Refusal::TooMany));
    assert!(world.is_accepted(&granted), "what it has goes on");
    assert!(world.refresh(&other).await.is_ok(), "another connection of the same client has its own rate");
}
