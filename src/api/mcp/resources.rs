//! Files as resources: what a link in an answer names can be read, and followed while programs change it. And the list
//! of tools, which changes with the languages.
//!
//! ```text
//! a session: one task for the languages, one for its files from its first subscription on; both end with the session
//! subscriptions/listen: both in the request's own task
//! ```
//!
//! Files that are written by a tool or over HTTP are not announced: only runs have events.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::StreamExt as _;
use rmcp::{
    ErrorData, Peer, RoleServer,
    model::{ReadResourceResult, ResourceContents, ResourceTemplate, ResourceUpdatedNotificationParam},
    service::SubscriptionSink,
};

use super::{Caller, McpParts, shown::ANSWER_BYTES_MAX};
use crate::{
    api::schema::{FileResult, json_len},
    domain::{
        error::Failure,
        event::EventKind,
        owner::{ConversationKey, Principal},
        path::SafePath,
        token::Scope,
    },
    ports::runner::Runner,
    services::runs::{FeedItem, Runs},
};

/// The files that one client follows at most.
pub(super) const FOLLOWED_MAX: usize = 100;
/// What the URI of a file begins with that no answer named.
const SCHEME: &str = "sandbox://files/";

type FileKey = (ConversationKey, SafePath);

/// The files that a client follows, each by the URI that the client gave.
#[derive(Clone, Default)]
pub(super) struct Followed(Arc<Mutex<HashMap<FileKey, String>>>);

impl Followed {
    /// Adds a file. `Some(true)` for the first one ever, `None` when there are too many.
    pub(super) fn add(&self, key: FileKey, uri: String) -> Option<bool> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = files.capacity() == 0;
        (files.len() < FOLLOWED_MAX || files.contains_key(&key)).then(|| {
            files.insert(key, uri);
            first
        })
    }

    pub(super) fn remove(&self, key: &FileKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    fn uri(&self, key: &FileKey) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

/// Where notifications go.
pub(super) enum Sink {
    Session(Peer<RoleServer>),
    Subscription(SubscriptionSink),
}

impl Sink {
    /// `false` when the client is gone.
    async fn tools_changed(&self) -> bool {
        match self {
            Self::Session(peer) => peer.notify_tool_list_changed().await.is_ok(),
            Self::Subscription(sink) => sink.notify_tool_list_changed().await.is_ok(),
        }
    }

    async fn updated(&self, uri: String) -> bool {
        match self {
            Self::Session(peer) => {
                peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await.is_ok()
            }
            Self::Subscription(sink) => sink.notify_resource_updated(uri).await.is_ok(),
        }
    }
}

/// Tells the client when the languages have changed, until it is gone.
pub(super) async fn follow_languages(runs: &Runs, sink: &Sink) {
    // The list of runners is replaced whenever an image changes; the tools name only these parts.
    let shown = |runners: &[Runner]| -> Vec<_> {
        let one = |runner: &Runner| (runner.language.clone(), runner.version.clone(), runner.description.clone());
        runners.iter().map(one).collect()
    };
    let mut changes = runs.runner_changes();
    let mut known = shown(&changes.borrow_and_update().clone());
    while changes.changed().await.is_ok() {
        let now = shown(&changes.borrow_and_update().clone());
        if now != known && !sink.tools_changed().await {
            return;
        }
        known = now;
    }
}

/// Tells the client when a run has changed a file that it follows, until it is gone.
pub(super) async fn follow_files(runs: &Runs, who: &Principal, followed: &Followed, sink: &Sink) {
    let mut feed = runs.feed(who);
    while let Some(item) = feed.next().await {
        let FeedItem::Event { conversation, event, .. } = item else { continue };
        let EventKind::File(file) = event.kind else { continue };
        if let Some(uri) = followed.uri(&(conversation, file.path.clone()))
            && !sink.updated(uri).await
        {
            return;
        }
    }
}

/// The form of a file's URI.
pub(super) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{SCHEME}{{conversationId}}/{{+path}}"), "file")
        .with_title("A file of a conversation")
        .with_description("A file in /data. The links in results name files too.")
}

impl McpParts {
    /// The file that a URI names, if it is one of the caller's.
    pub(super) fn file_of(&self, caller: &Caller, uri: &str) -> Result<FileKey, ErrorData> {
        caller.check_scope(Scope::Files).map_err(|failure| ErrorData::invalid_request(failure.message, None))?;
        let plain = || {
            let (conversation, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
            Some((caller.key(conversation.parse().ok()?), SafePath::from_encoded(path).ok()?))
        };
        let found = plain().or_else(|| self.files.named_by(uri)).filter(|(key, _)| key.owner == caller.principal);
        found.ok_or_else(|| not_found("uri: it names no file here: give the link of a result".to_owned()))
    }

    /// A file as a resource, which is always whole.
    pub(super) async fn read_resource(&self, caller: &Caller, uri: String) -> Result<ReadResourceResult, ErrorData> {
        let (key, path) = self.file_of(caller, &uri)?;
        let bytes_max = ANSWER_BYTES_MAX as u64;
        let file = self.files.read(&key, &path, 0, bytes_max).await;
        let file = file.map_err(|Failure { message, .. }| not_found(message))?;
        let FileResult { content, encoding, media_type, .. } = FileResult::new(&file, 0, ANSWER_BYTES_MAX, str::len);
        let contents = match encoding {
            "utf-8" => ResourceContents::text(content, uri),
            _ => ResourceContents::blob(content, uri),
        };
        let result = ReadResourceResult::new(vec![contents.with_mime_type(media_type)]);
        if file.truncated || json_len(&result) > ANSWER_BYTES_MAX {
            let why = "uri: the file is too large for one answer: read parts of it with the tool, or open its link";
            return Err(ErrorData::invalid_params(why, None));
        }
        Ok(result)
    }
}

fn not_found(message: String) -> ErrorData {
    ErrorData::resource_not_found(message, None)
}
