//! Which kernel belongs to which notebook or console of a client. Jupyter calls this a session.

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use uuid::Uuid;

use super::Kernels;
use crate::{
    domain::{Code, ConversationId, Failure, Principal, SessionId},
    services::shares::WeakMap,
};

/// Documents of one owner that are remembered. One more takes the place of that owner's oldest.
const DOCUMENTS_MAX: usize = 1000;
/// The longest path, name or kind, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// A notebook, a console or a file with its kernel. The path is the client's word for it and leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub id: Uuid,
    /// The conversation that its client named for it.
    pub pin: Option<ConversationId>,
    pub path: String,
    pub name: String,
    pub kind: String,
    pub kernel: SessionId,
}

/// What a client changes; `None` stays.
#[derive(Debug, Clone)]
pub struct DocumentChange {
    path: Option<String>,
    name: Option<String>,
    kind: Option<String>,
    pub kernel: Option<SessionId>,
}

#[derive(Default)]
pub(super) struct Documents {
    all: Mutex<Vec<(Principal, Document)>>,
    creating: WeakMap<(Principal, Option<ConversationId>, String), AsyncMutex<()>>,
}

impl Documents {
    /// Adds one, and forgets those that are not there any more.
    fn add(&self, who: &Principal, document: Document, is_there: impl Fn(&Principal, &Document) -> bool) {
        let mut all = self.all.lock();
        all.retain(|(owner, document)| is_there(owner, document));
        if all.iter().filter(|(owner, _)| owner == who).count() >= DOCUMENTS_MAX
            && let Some(oldest) = all.iter().position(|(owner, _)| owner == who)
        {
            all.remove(oldest);
        }
        all.push((who.clone(), document));
    }
}

impl DocumentChange {
    /// A change of these texts.
    ///
    /// # Errors
    /// [`Code::TooLarge`].
    pub fn new(path: Option<String>, name: Option<String>, kind: Option<String>) -> Result<Self, Failure> {
        let texts = [&path, &name, &kind].into_iter().flatten();
        if texts.map(String::len).max().unwrap_or_default() > TEXT_BYTES_MAX {
            return Err(Failure::new(Code::TooLarge, format!("A path or name is longer than {TEXT_BYTES_MAX} bytes.")));
        }
        Ok(Self { path, name, kind, kernel: None })
    }

    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    fn apply(self, document: &mut Document) {
        let Self { path, name, kind, kernel } = self;
        document.path = path.unwrap_or(std::mem::take(&mut document.path));
        document.name = name.unwrap_or(std::mem::take(&mut document.name));
        document.kind = kind.unwrap_or(std::mem::take(&mut document.kind));
        document.kernel = kernel.unwrap_or(document.kernel);
    }
}

impl Kernels {
    /// The right to look for the document of a path, in a conversation or in none, and to add it. Others wait
    /// meanwhile, so that two callers get the same document and kernel.
    pub async fn creating(&self, who: &Principal, pin: Option<&ConversationId>, path: &str) -> OwnedMutexGuard<()> {
        let key = (who.clone(), pin.cloned(), path.to_owned());
        self.0.documents.creating.of(&key, AsyncMutex::default).lock_owned().await
    }

    /// The documents of a caller whose kernels are there: of one conversation or of all.
    pub fn documents(&self, who: &Principal, conversation: Option<&ConversationId>) -> Vec<Document> {
        let mine: Vec<_> = {
            let all = self.0.documents.all.lock();
            all.iter().filter(|(owner, _)| owner == who).map(|(_, document)| document.clone()).collect()
        };
        let is_there = |document: &Document| {
            let kernel = self.get(who, document.kernel);
            kernel.is_ok_and(|kernel| conversation.is_none_or(|wanted| *wanted == kernel.conversation.id))
        };
        mine.into_iter().filter(is_there).collect()
    }

    /// A document of a caller: of one conversation or of any.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`], also when its kernel is gone.
    pub fn document(
        &self,
        who: &Principal,
        conversation: Option<&ConversationId>,
        id: Uuid,
    ) -> Result<Document, Failure> {
        let found = self.documents(who, conversation).into_iter().find(|document| document.id == id);
        found.ok_or_else(|| Failure::new(Code::SessionNotFound, "There is no such session, or its kernel is gone."))
    }

    /// Notes what a kernel is for.
    pub fn add_document(
        &self,
        who: &Principal,
        pin: Option<ConversationId>,
        kernel: SessionId,
        change: DocumentChange,
    ) -> Document {
        let (id, path, name) = (Uuid::new_v4(), String::new(), String::new());
        let mut document = Document { id, pin, path, name, kind: "notebook".to_owned(), kernel };
        change.apply(&mut document);
        let is_there = |owner: &Principal, document: &Document| self.get(owner, document.kernel).is_ok();
        self.0.documents.add(who, document.clone(), is_there);
        document
    }

    /// Changes a document; the kernel that it had before.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`].
    pub fn change_document(
        &self,
        who: &Principal,
        id: Uuid,
        change: DocumentChange,
    ) -> Result<(Document, SessionId), Failure> {
        self.document(who, None, id)?;
        let mut all = self.0.documents.all.lock();
        let found = all.iter_mut().find(|(owner, document)| owner == who && document.id == id);
        let (_, document) = found.ok_or_else(|| Failure::new(Code::SessionNotFound, "There is no such session."))?;
        let before = document.kernel;
        change.apply(document);
        Ok((document.clone(), before))
    }

    /// Forgets a document, of one conversation or of any; the kernel that it had.
    ///
    /// # Errors
    /// [`Code::SessionNotFound`].
    pub fn remove_document(
        &self,
        who: &Principal,
        conversation: Option<&ConversationId>,
        id: Uuid,
    ) -> Result<SessionId, Failure> {
        let document = self.document(who, conversation, id)?;
        self.0.documents.all.lock().retain(|(_, other)| other.id != id);
        Ok(document.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_with_many_documents_takes_the_place_of_its_own_oldest_only() {
        let (documents, kernel) = (Documents::default(), SessionId::new());
        let [ann, ben]: [Principal; 2] = ["ann", "ben"].map(|name| name.parse().expect("an owner"));
        let add = |who: &Principal, path: String| {
            let (id, name, kind) = (Uuid::new_v4(), String::new(), "notebook".to_owned());
            documents.add(who, Document { id, pin: None, path, name, kind, kernel }, |_, _| true);
        };
        add(&ben, "his".to_owned());
        (0..=DOCUMENTS_MAX).for_each(|n| add(&ann, n.to_string()));
        let paths = |who: &Principal| -> Vec<String> {
            let all = documents.all.lock();
            all.iter().filter(|(owner, _)| owner == who).map(|(_, document)| document.path.clone()).collect()
        };
        assert_eq!(paths(&ben), ["his"]);
        assert_eq!((paths(&ann).len(), paths(&ann)[0].as_str()), (DOCUMENTS_MAX, "1"));
        let his = documents.all.lock()[0].1.clone();
        documents.add(&ben, his, |owner, _| *owner == ben);
        assert!(paths(&ann).is_empty(), "their kernels are gone");
    }
}
