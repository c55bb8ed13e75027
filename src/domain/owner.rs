//! The principal of a request, who owns conversations, and the key of a conversation.

use std::{cmp::Reverse, collections::HashMap, fmt, str::FromStr, sync::Arc};

use sha2::{Digest as _, Sha256};

use super::{
    id::{ConversationId, IdError, IgnoredInComparison, TokenId, check_folder_name},
    text::hex,
};

/// The longest name of an owner, in characters.
pub const OWNER_CHARS_MAX: usize = 64;

/// The owner of the configured `MCP_API_TOKEN`. Its folders lie at the top of the root.
const DEFAULT: &str = "default";

/// The server itself, when it tests the engine's isolation.
const SELF_TEST: &str = "self-test";

/// What the names begin with that are made of claims.
const CLAIM_MARK: &str = "sub-";
/// Bytes of a digest that an owner is named by.
const NAMED_BY: usize = 20;

/// An owner of conversations: 1 to 64 characters of `A-Z a-z 0-9 . _ -`, the first a letter or digit, so that the name
/// is one plain folder name. It may remember by which token a request came, which makes no difference when two are
/// compared: an owner's tokens see the same. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    name: Arc<str>,
    token: IgnoredInComparison<Option<TokenId>>,
}

impl Default for Principal {
    /// The holder of the configured token, and the user who started a process in `stdio` mode.
    fn default() -> Self {
        Self::of(DEFAULT)
    }
}

impl Principal {
    /// The server itself, when it tests the engine's isolation.
    pub fn self_test() -> Self {
        Self::of(SELF_TEST)
    }

    /// Whether this is the owner of the configured token.
    pub fn is_default(&self) -> bool {
        &*self.name == DEFAULT
    }

    /// Whether this is the server itself.
    pub fn is_self_test(&self) -> bool {
        &*self.name == SELF_TEST
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same owner, by this token.
    #[must_use]
    pub fn by(&self, token: TokenId) -> Self {
        Self { name: Arc::clone(&self.name), token: IgnoredInComparison(Some(token)) }
    }

    /// By which token the request came, or what it began. `None` for the configured token and a user's own process.
    pub fn token(&self) -> Option<TokenId> {
        self.token.0
    }

    /// The owner that a claim of an issuer names: the one of that name, where it is a name of an owner, and else one
    /// that is named by a digest. Names that a digest could have, and that of the configured token, are not taken from
    /// a claim, so two claims never lead to one owner.
    pub fn of_claim(issuer: &str, claim: &str) -> Self {
        let plain = claim.parse::<Self>().ok().filter(|owner| !owner.is_default() && !claim.starts_with(CLAIM_MARK));
        plain.unwrap_or_else(|| {
            let digest = Sha256::digest(format!("owner\0{issuer}\0{claim}"));
            Self::of(&format!("{CLAIM_MARK}{}", hex(&digest[..NAMED_BY])))
        })
    }

    fn of(name: &str) -> Self {
        Self { name: name.into(), token: IgnoredInComparison(None) }
    }
}

impl FromStr for Principal {
    type Err = IdError;

    /// The server's own name is refused: no token may stand for the server.
    fn from_str(name: &str) -> Result<Self, IdError> {
        check_folder_name(name, OWNER_CHARS_MAX)?;
        if name == SELF_TEST { Err(IdError::Reserved) } else { Ok(Self::of(name)) }
    }
}

/// A conversation of an owner. Two owners may use the same id and never share a folder, a lock or a link.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConversationKey {
    pub owner: Principal,
    /// Unique for its owner.
    pub id: ConversationId,
}

impl ConversationKey {
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

    /// Parses the form that [`Display`](fmt::Display) writes; `@default/id` is refused.
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
            Some((DEFAULT, _)) => Err(IdError::Reserved),
            Some((owner, id)) => Ok(Self::new(owner.parse()?, id.parse()?)),
            None => Ok(Self::new(Principal::default(), text.parse()?)),
        }
    }
}

/// The first index of the owner who is named most often.
pub fn first_of_most<'a>(owners: impl Iterator<Item = &'a Principal>) -> Option<usize> {
    let mut counts: HashMap<&Principal, (usize, usize)> = HashMap::new();
    for (at, owner) in owners.enumerate() {
        counts.entry(owner).or_insert((0, at)).0 += 1;
    }
    counts.into_values().max_by_key(|(count, first)| (*count, Reverse(*first))).map(|(_, first)| first)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn principal_accepts_plain_folder_names_only() {
        for good in ["a", "default", "A.b_c-d", "0", &"x".repeat(64)] {
            assert_eq!(good.parse::<Principal>().map(|owner| owner.name().to_owned()), Ok(good.to_owned()));
        }
        let long = "x".repeat(65);
        for bad in ["", ".", "..", "@a", "-a", "a/b", "a\0", "a b", "\u{e4}", "self-test", &long] {
            assert!(bad.parse::<Principal>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn claims_never_meet_in_one_owner_and_never_are_the_operator() {
        let owner = |claim: &str| Principal::of_claim("https://id.test", claim).name().to_owned();
        assert_eq!(owner("alice"), "alice");
        let hashed = owner("alice@example.org");
        assert!(hashed.starts_with(CLAIM_MARK) && hashed.len() == 44, "{hashed}");
        let long = "x".repeat(65);
        let claims = ["default", "self-test", "auth0|1", "a b", "a/b", "..", &hashed, "sub-1", &long, "\u{e4}", "@a"];
        let owners: HashSet<_> = claims.iter().map(|claim| owner(claim)).collect();
        assert_eq!(owners.len(), claims.len());
        assert!(owners.iter().all(|name| name.starts_with(CLAIM_MARK) && *name != hashed), "{owners:?}");
        assert_ne!(Principal::of_claim("https://other.test", "a b").name(), owner("a b"), "of another issuer");
    }

    #[test]
    fn conversation_key_has_one_text_form() {
        for text in ["c", "@other/c"] {
            assert_eq!(text.parse::<ConversationKey>().map(|key| key.to_string()), Ok(text.to_owned()));
        }
        for bad in
            ["@default/c", "@self-test/c", "@/c", "@other", "@other/", "@other/../c", "@../c", "other/c", "@a/@b/c"]
        {
            assert!(bad.parse::<ConversationKey>().is_err(), "{bad:?}");
        }
    }
}
