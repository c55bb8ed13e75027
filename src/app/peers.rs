//! Connects this server with the other servers on the same database, where the settings say how they reach this one.

use std::sync::Arc;

use crate::{
    adapters::database::Database,
    config::Config,
    domain::{clock::SystemClock, id::InstanceId, owner::ConversationKey},
    services::{
        containers::Containers,
        peers::{Occupancy, Peer, Peers},
        runs::Runs,
        sessions::Sessions,
    },
};

pub(super) fn parts(config: &Config, instance: InstanceId, database: Option<&Database>) -> Peers {
    let url = config.peer_url();
    match database.filter(|_| !url.is_empty()) {
        Some(database) => Peers::new(Peer { instance, url }, Arc::new(database.clone()), Arc::new(SystemClock)),
        None => Peers::default(),
    }
}

/// What is in conversations of this server.
pub(super) struct LocalOccupancy {
    pub runs: Runs,
    pub sessions: Sessions,
    pub containers: Containers,
}

impl Occupancy for LocalOccupancy {
    fn is_idle(&self, conversation: &ConversationKey) -> bool {
        let sessions = || self.sessions.list(&conversation.owner, Some(&conversation.id));
        !self.containers.holds(conversation) && !self.has_run(conversation) && sessions().is_empty()
    }

    fn has_run(&self, conversation: &ConversationKey) -> bool {
        !self.runs.is_idle(conversation)
    }

    fn lost(&self, conversation: &ConversationKey) {
        self.sessions.leave(conversation);
    }
}
