//! The settings as text: merged, for an operator; all with their defaults, for documents.

use figment::value::Value;

use super::{
    Config,
    load::{ActualDisplay as _, Raw},
    settings,
};

impl Config {
    /// The merged settings as `NAME=value` lines. A secret is shown as `(set)`.
    pub fn print(&self) -> String {
        let raw = Raw {
            mcp_api_token: "(set)".to_owned(),
            file_secret: vec!["(set)"; self.file_secrets.len()].join(","),
            sandbox_root: self.root.display().to_string(),
            public_base_url: self.public_base_url.to_string().trim_end_matches('/').to_owned(),
            mcp_http_addr: self.http_addr.to_string(),
            docker_host: self.docker_host.clone().unwrap_or_default(),
            tunnel_token: String::new(),
            server: self.server.clone(),
            limits: self.limits.clone(),
            engine: self.engine.clone(),
            admission: self.admission.clone(),
            standby: self.standby.clone(),
            runs: self.runs.clone(),
            files: self.files.clone(),
            quota: self.quota.clone(),
            metrics: self.metrics.clone(),
            audit: self.audit.clone(),
            traces: self.traces.clone(),
            log: self.log.clone(),
        };
        let lines: Vec<String> = lines(&raw)
            .filter(|(name, ..)| name != "TUNNEL_TOKEN")
            .map(|(name, value, _)| format!("{name}={value}"))
            .collect();
        lines.join("\n") + "\n"
    }
}

/// Every setting's name, value and meaning.
fn lines(raw: &Raw) -> impl Iterator<Item = (String, String, &'static str)> {
    let root = Value::serialize(raw).unwrap_or_else(|_| Value::from(""));
    settings().map(move |setting| {
        let path = if setting.section.is_empty() {
            setting.key.to_lowercase()
        } else {
            format!("{}.{}", setting.section, setting.key)
        };
        let value = match root.clone().find(&path) {
            Some(Value::String(_, text)) => text,
            Some(Value::Num(_, num)) => num.to_actual_display(),
            Some(Value::Bool(_, flag)) => flag.to_string(),
            _ => String::new(),
        };
        (setting.name(), value, setting.doc)
    })
}

/// The text of `.env.example`: every setting with its default, those that have one commented out.
pub fn example() -> String {
    let mut text = String::from(
        "# Settings of the MCP code sandbox. Copy to .env and fill in the two secrets, or let ./quickstart.sh do it.\n\
         # A line that is commented out shows the default.\n",
    );
    for (name, value, doc) in lines(&Raw::default()) {
        let mark = if matches!(name.as_str(), "MCP_API_TOKEN" | "FILE_SECRET") { "" } else { "# " };
        text.extend(["\n# ", doc, "\n", mark, &name, "=", &value, "\n"]);
    }
    text
}

/// The settings as a Markdown table.
pub fn table() -> String {
    let mut text = String::from("| name | default | meaning |\n| --- | --- | --- |\n");
    for (name, value, doc) in lines(&Raw::default()) {
        let value = match (name.as_str(), value.as_str()) {
            ("MCP_API_TOKEN" | "FILE_SECRET", _) => "none, required".to_owned(),
            (_, "") => "none".to_owned(),
            (_, value) => format!("`{value}`"),
        };
        text.extend(["| `", &name, "` | ", &value, " | ", doc, " |\n"]);
    }
    text
}
