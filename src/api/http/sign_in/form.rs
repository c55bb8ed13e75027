//! The pairs of a query or a form. `get` ignores a name that occurs twice; callers refuse it by `repeats`.

/// The pairs, in their order.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn read(text: &[u8]) -> Self {
        // PostgreSQL refuses a text with a NUL, which would look as if the database were away.
        let pairs =
            form_urlencoded::parse(text).map(|(key, value)| (key.into_owned(), value.replace('\0', "\u{fffd}")));
        Self(pairs.collect())
    }

    /// Every value of a name.
    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    /// The value of a name that is there once and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
        values.next().filter(|_| values.next().is_none()).filter(|value| !value.is_empty())
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// Whether one of these names is there twice.
    pub(super) fn repeats(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.0.iter().filter(|(key, _)| key == name).count() > 1)
    }
}
