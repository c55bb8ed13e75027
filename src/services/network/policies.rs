//! The policies that apply now.

use std::sync::Arc;

use crate::{
    domain::{
        Clock, Failure,
        network::{Policy, PolicyError, PolicyText},
    },
    ports::database::{DefinitionKind, DefinitionStore, StoredDefinition},
    services::registry::{Definition, Registry},
};

/// The policies that hold now.
pub type Policies = Registry<Policy>;

impl Definition for Policy {
    const KIND: DefinitionKind = DefinitionKind::NetworkPolicy;
    const NOUN: &'static str = "network policy";
    const MADE_MAX: usize = 200;
    const DEFINITION_BYTES_MAX: usize = 16 << 10;
    type Parts = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn read(stored: &StoredDefinition, earlier: Option<&Arc<Self>>, (): &()) -> Result<Arc<Self>, String> {
        let text: PolicyText = serde_json::from_str(&stored.definition).map_err(|error| error.to_string())?;
        if let Some(same) = earlier.filter(|policy| policy.text == text) {
            return Ok(Arc::clone(same));
        }
        let why = |error: PolicyError| format!("{}: {error}", error.field());
        Self::parse(&stored.name, &text).map(Arc::new).map_err(why)
    }
}

impl Policies {
    pub fn new(configured: Vec<Policy>, store: Arc<dyn DefinitionStore>, clock: Arc<dyn Clock>) -> Self {
        Self::with(configured, store, clock, ())
    }

    /// Makes a policy, or another one in place of the one of that name; returns the name. It holds from the next
    /// connection on, in sandboxes that have begun too.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::domain::Code::InvalidArgument) for what it cannot be,
    /// [`Code::DatabaseUnavailable`](crate::domain::Code::DatabaseUnavailable).
    pub async fn put(&self, name: &str, text: &PolicyText) -> Result<String, Failure> {
        if let Some((list, _, most)) = text.lists().into_iter().find(|(_, count, most)| count > most) {
            return Err(Failure::argument(list, format!("it has more than {most} items: make several policies")));
        }
        let policy = Policy::parse(name, text).map_err(|why| match why {
            // Members of a request are in camel case.
            PolicyError::Bytes => Failure::argument("bytesPerMinute", why),
            _ => Failure::argument(why.field(), &why),
        })?;
        self.store(&policy.name, text, |_| String::new()).await?;
        Ok(policy.name)
    }

    /// Deletes a policy that was made, by a name as [`Self::put`] takes it; returns the name. Connections that there
    /// are go on.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::domain::Code::NotFound) for one that was not made,
    /// [`Code::DatabaseUnavailable`](crate::domain::Code::DatabaseUnavailable).
    pub async fn remove(&self, name: &str) -> Result<String, Failure> {
        let name = name.to_ascii_lowercase();
        self.delete(&name).await.map(|()| name)
    }
}
