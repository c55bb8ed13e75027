//! Files as resources: a client can read the files that links in answers name, and follow their changes by programs and
//! clients. Also the list of tools, which changes with the languages.
//!
//! ```text
//! a session: one task for the languages, one for its files from its first subscription on; both end with the session
//! subscriptions/listen: both in the request's own task
//! ```
//!
//! A file that a program deletes is not announced, because no event reports it.

use std::{collections::HashMap, sync::Arc};

use futures_util::{StreamExt as _, stream::BoxStream};
use parking_lot::Mutex;
use rmcp::{
    ErrorData, Peer, RoleServer,
    model::{
        ReadResourceResult, ResourceContents, ResourceTemplate, ResourceUpdatedNotificationParam, SubscriptionFilter,
    },
    service::{SubscriptionContext, SubscriptionSink},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{Caller, McpParts, shown::ANSWER_BYTES_MAX};
use crate::{
    api::schema::{FileResult, json_len},
    domain::{Code, ConversationKey, EventKind, Failure, Principal, RunId, SafePath, Scope},
    ports::runner::Runner,
    services::{
        files::Changed,
        runs::{FeedItem, Runs},
    },
};

/// The files that one client follows at most, and their URIs together, in bytes: a link may have any query.
pub(super) const FOLLOWED_MAX: usize = 100;
pub(super) const URIS_BYTES_MAX: usize = 64 << 10;
/// What the URI of a file begins with that no answer named.
const SCHEME: &str = "sandbox://files/";

type FileKey = (ConversationKey, SafePath);

/// The files that a client follows, each by the URI that the client gave.
#[derive(Clone, Default)]
pub(super) struct Followed(Arc<Mutex<HashMap<FileKey, String>>>);

impl Followed {
    /// Adds a file. `Some(true)` for the first one ever, `None` when there are too many.
    pub(super) fn add(&self, key: FileKey, uri: String) -> Option<bool> {
        let mut files = self.0.lock();
        let first = files.capacity() == 0;
        let others = files.iter().filter(|(followed, _)| **followed != key).map(|(_, uri)| uri.len());
        let (count, bytes) = others.fold((1, uri.len()), |(count, bytes), more| (count + 1, bytes + more));
        (count <= FOLLOWED_MAX && bytes <= URIS_BYTES_MAX).then(|| {
            files.insert(key, uri);
            first
        })
    }

    pub(super) fn remove(&self, key: &FileKey) {
        self.0.lock().remove(key);
    }

    /// The URIs of those that have changed.
    fn among(&self, changed: &Changed) -> Vec<String> {
        let files = self.0.lock();
        let covered = files.iter().filter(|((conversation, path), _)| changed.covers(conversation, path));
        covered.map(|(_, uri)| uri.clone()).collect()
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().values().cloned().collect()
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

/// Notifies the client when the languages have changed, until it is gone.
pub(super) async fn follow_languages(runs: &Runs, sink: &Sink) {
    // The list of runners is replaced whenever an image changes; the list of tools depends only on these parts.
    let shown = |runners: &[Runner]| -> Vec<_> {
        let one = |runner: &Runner| {
            let Runner { language, version, description, kernel, .. } = runner;
            (language.clone(), version.clone(), description.clone(), kernel.is_some())
        };
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

/// What changes files of an owner, from when this is made on: runs of this server, and clients and other servers.
pub(super) struct FileChanges {
    runs: BoxStream<'static, FeedItem>,
    others: Receiver<Changed>,
    /// How many files the events of a run have named: it may have changed more.
    named: HashMap<RunId, u64>,
}

impl FileChanges {
    pub(super) fn new(parts: &McpParts, who: &Principal) -> Self {
        Self { runs: parts.runs.feed(who), others: parts.files.changes(who), named: HashMap::new() }
    }

    /// Notifies the client when a file that it follows has changed, until it is gone. Where changes were missed, or a
    /// run changed more files than are listed, each of them may have.
    pub(super) async fn follow(mut self, followed: &Followed, sink: &Sink) {
        loop {
            let updated = tokio::select! {
                item = self.runs.next() => match item {
                    Some(FeedItem::Event { run, conversation, event }) => match event.kind {
                        EventKind::File(file) => {
                            *self.named.entry(run).or_default() += 1;
                            followed.among(&Changed::of(&conversation, Some(&file.path)))
                        }
                        EventKind::Finished(outcome) => {
                            let named = self.named.remove(&run).unwrap_or_default();
                            if outcome.figures.files <= named {
                                continue;
                            }
                            followed.among(&Changed::of(&conversation, None))
                        }
                        _ => continue,
                    },
                    Some(FeedItem::Missed { .. }) => {
                        self.named.clear();
                        followed.all()
                    }
                    None => return,
                },
                changed = self.others.recv() => match changed {
                    Ok(changed) => followed.among(&changed),
                    Err(RecvError::Lagged(_)) => followed.all(),
                    Err(RecvError::Closed) => return,
                },
            };
            for uri in updated {
                if !sink.updated(uri).await {
                    return;
                }
            }
        }
    }
}

/// A subscription without the URIs beyond the bounds.
pub(super) fn within_bounds(mut filter: SubscriptionFilter) -> SubscriptionFilter {
    if let Some(uris) = &mut filter.resource_subscriptions {
        let mut left = URIS_BYTES_MAX;
        uris.truncate(FOLLOWED_MAX);
        uris.retain(|uri| left.checked_sub(uri.len()).inspect(|rest| left = *rest).is_some());
    }
    filter
}

/// Notifies a subscription of what it accepted, until it ends.
pub(super) async fn listen(parts: &McpParts, caller: &Caller, subscription: &SubscriptionContext) {
    let changes = FileChanges::new(parts, &caller.principal);
    let (accepted, followed) = (subscription.accepted().clone(), Followed::default());
    for uri in accepted.resource_subscriptions.into_iter().flatten() {
        if let Ok(key) = parts.file_of(caller, &uri) {
            followed.add(key, uri);
        }
    }
    let sink = Sink::Subscription(subscription.sink().clone());
    tokio::select! {
        () = subscription.cancelled() => {}
        () = follow_languages(&parts.runs, &sink), if accepted.tools_list_changed == Some(true) => {}
        () = changes.follow(&followed, &sink) => {}
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
        let file = self.files.read(&key, &path, 0, ANSWER_BYTES_MAX as u64).await.map_err(unread)?;
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

pub(super) fn not_found(message: String) -> ErrorData {
    ErrorData::resource_not_found(message, None)
}

/// Why a resource is not read. Clients forget one that is not found.
pub(super) fn unread(Failure { code, message, .. }: Failure) -> ErrorData {
    match code {
        Code::ConversationNotFound | Code::FileNotFound | Code::NotAFile | Code::SkillNotFound | Code::SkillsOff => {
            not_found(message)
        }
        Code::Forbidden | Code::TooLarge => ErrorData::invalid_request(message, None),
        _ => ErrorData::internal_error(message, None),
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;

    use super::*;

    #[test]
    fn only_what_is_not_there_is_not_found() {
        for (code, expected) in [
            (Code::FileNotFound, ErrorCode::RESOURCE_NOT_FOUND),
            (Code::NotAFile, ErrorCode::RESOURCE_NOT_FOUND),
            (Code::SkillNotFound, ErrorCode::RESOURCE_NOT_FOUND),
            (Code::Forbidden, ErrorCode::INVALID_REQUEST),
            (Code::FileBusy, ErrorCode::INTERNAL_ERROR),
            (Code::Internal, ErrorCode::INTERNAL_ERROR),
        ] {
            let error = unread(Failure::new(code, "why"));
            assert_eq!((error.code, &*error.message), (expected, "why"), "{code}");
        }
    }

    #[test]
    fn followed_files_are_bounded_in_number_and_in_bytes_of_their_uris() {
        let followed = Followed::default();
        let add = |name: &str, bytes: usize| {
            let key = ("c".parse().expect("a key"), SafePath::from_text(name).expect("a path"));
            followed.add(key, "u".repeat(bytes))
        };
        assert_eq!(add("long", URIS_BYTES_MAX + 1), None);
        assert_eq!(add("a", URIS_BYTES_MAX / 2), Some(true));
        assert_eq!(add("b", URIS_BYTES_MAX / 2), Some(false));
        assert_eq!(add("c", 1), None);
        assert_eq!(add("a", 1), Some(false), "in place of its other URI");
        for number in 2..FOLLOWED_MAX {
            assert_eq!(add(&number.to_string(), 1), Some(false));
        }
        assert_eq!(add("more", 1), None);
        assert_eq!(add("b", 1), Some(false));
    }

    #[test]
    fn changes_cover_followed_files_of_their_conversation_alone() {
        let key = |text: &str| text.parse::<ConversationKey>().expect("a key");
        let path = |text: &str| SafePath::from_text(text).expect("a path");
        let followed = Followed::default();
        for (conversation, file) in [("c", "d/a"), ("c", "d"), ("c", "da"), ("other", "d/a"), ("@ann/c", "d/a")] {
            let uri = format!("{conversation} {file}");
            assert!(followed.add((key(conversation), path(file)), uri).is_some());
        }
        let among = |conversation: &str, file: Option<&str>| {
            let mut uris = followed.among(&Changed::of(&key(conversation), file.map(path).as_ref()));
            uris.sort();
            uris
        };
        assert_eq!(among("c", Some("d/a")), ["c d/a"]);
        assert_eq!(among("c", Some("d")), ["c d", "c d/a"]);
        assert_eq!(among("c", None), ["c d", "c d/a", "c da"]);
        assert_eq!(among("@ann/c", Some("d")), ["@ann/c d/a"]);
        assert_eq!(among("none", None), [""; 0]);
        assert_eq!(followed.all().len(), 5);
    }
}
