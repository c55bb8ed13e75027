//! Who asks and who owns: the principal of a request, and the key of a conversation.

use std::{fmt, str::FromStr, sync::Arc};

use super::id::{ConversationId, IdError};

/// The owner of the configured `MCP_API_TOKEN`. Its folders lie at the top of the root.
const DEFAULT: &str = "default";

/// The server itself, when it tests the engine's isolation.
const SELF_TEST: &str = "self-test";

/// Who asks, and whose conversations are meant. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal(Arc<str>);

impl Default for Principal {
    /// The holder of the configured token, and the user who started a process in `stdio` mode.
    fn default() -> Self {
        Self::named(DEFAULT)
    }
}

impl Principal {
    /// A principal by its name.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// The server itself, when it tests the engine's isolation.
    pub fn self_test() -> Self {
        Self::named(SELF_TEST)
    }

    /// Whether this is the owner of the configured token.
    pub fn is_default(&self) -> bool {
        &*self.0 == DEFAULT
    }

    /// Whether this is the server itself.
    pub fn is_self_test(&self) -> bool {
        &*self.0 == SELF_TEST
    }

    /// Its name, for logs and folder names.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// A conversation of an owner. Two owners may use the same id and never share a folder, a lock or a link.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey {
    /// Who owns it.
    pub owner: Principal,
    /// Its id, unique for its owner.
    pub id: ConversationId,
}

impl ConversationKey {
    /// The key of an owner's conversation.
    pub fn new(owner: Principal, id: ConversationId) -> Self {
        Self { owner, id }
    }
}

impl fmt::Display for ConversationKey {
    /// The id alone for the default owner, `@owner/id` for others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.owner.is_default() {
            write!(f, "@{}/", self.owner.name())?;
        }
        self.id.fmt(f)
    }
}

impl FromStr for ConversationKey {
    type Err = IdError;

    /// Reads what [`Display`](fmt::Display) writes. Where it came from vouches for the owner's name: a signature does.
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
            Some((owner, id)) => Ok(Self::new(Principal::named(owner), id.parse()?)),
            None => Ok(Self::new(Principal::default(), text.parse()?)),
        }
    }
}
