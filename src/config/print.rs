//! The settings as text: the merged ones for an operator, all with their defaults for documents.

use figment::value::Value;

use super::{Config, load::default_config, settings};

impl Config {
    /// The merged settings as `NAME=value` lines. A secret is shown as `(set)`.
    pub fn print(&self) -> String {
        let shown = lines(self).into_iter().filter(|(name, ..)| name != "TUNNEL_TOKEN" && !name.contains('<'));
        let root = values(self);
        let of_tables = ["mounts", "network", "secrets", "tools"].into_iter().flat_map(|table| {
            let named = root.find_ref(table).and_then(Value::as_dict).into_iter().flatten();
            named.map(move |(name, value)| (format!("SANDBOX_{table}__{name}").to_uppercase(), text(value), ""))
        });
        shown.chain(of_tables).flat_map(|(name, value, _)| [name, "=".to_owned(), value, "\n".to_owned()]).collect()
    }
}

fn values(config: &Config) -> Value {
    Value::serialize(config).unwrap_or_else(|_| Value::from(""))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Name, value and meaning of every setting.
fn lines(config: &Config) -> Vec<(String, String, &'static str)> {
    let root = values(config);
    let line = |setting: super::Setting| {
        let value = root.find_ref(&setting.path(&setting.name())).map(text).unwrap_or_default();
        (setting.name(), value, setting.doc)
    };
    settings().map(line).collect()
}

/// The text of `.env.example`: every setting with its default, those that have one commented out.
pub fn example() -> String {
    let mut text = String::from(
        "# Settings of the MCP code sandbox. Copy to .env and fill in the two secrets, or let ./quickstart.sh do it.\n\
         # A line that is commented out shows the default.\n",
    );
    for (name, value, doc) in lines(&default_config()) {
        let mark = if matches!(name.as_str(), "MCP_API_TOKEN" | "FILE_SECRET") { "" } else { "# " };
        text.extend(["\n# ", doc, "\n", mark, &name, "=", &value, "\n"]);
    }
    text
}

/// The settings as a Markdown table.
pub fn table() -> String {
    let mut text = String::from("| name | default | meaning |\n| --- | --- | --- |\n");
    for (name, value, doc) in lines(&default_config()) {
        let value = match (name.as_str(), value.as_str()) {
            ("MCP_API_TOKEN" | "FILE_SECRET", _) => "none, required".to_owned(),
            (_, "") => "none".to_owned(),
            (_, value) => format!("`{value}`"),
        };
        text.extend(["| `", &name, "` | ", &value, " | ", doc, " |\n"]);
    }
    text
}
