//! Requests of programs: `pip install` and `npm install` in a sandbox send one line of JSON each to this service. The
//! answer is lines: the output of the tool, and at the end whether it succeeded.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Inner, InstallRequest, Installed, Packages};
use crate::{
    domain::{error::Failure, id::Language, owner::ConversationKey, packages::Tool},
    services::{network::Requests, tokens::Tokens},
};

/// Lines that a program has not read yet; more are left out, except the last.
const LINES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    tool: String,
    packages: Vec<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    text: &'a str,
    /// Whether it was installed, in the last line.
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<bool>,
}

fn line(text: &str, done: Option<bool>) -> Bytes {
    let mut line = serde_json::to_vec(&Line { text, done }).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

impl Requests for Inner {
    fn variables(&self, language: &Language) -> Vec<(&'static str, String)> {
        let Some(runner) = self.parts.catalog.find(language) else { return Vec::new() };
        let tools: Vec<Tool> = self.tools(&runner).collect();
        let Some(options) = self.options.as_ref().filter(|_| !tools.is_empty()) else { return Vec::new() };
        let words: Vec<_> = tools.iter().map(|tool| tool.word()).collect();
        // For those that a policy lets reach the index themselves.
        let index = |tool: &Tool| {
            let name = match tool {
                Tool::Uv => "UV_DEFAULT_INDEX",
                Tool::Npm => "npm_config_registry",
            };
            Some((name, options.index(*tool)?.to_owned()))
        };
        [("SANDBOX_PACKAGES", words.join(","))].into_iter().chain(tools.iter().filter_map(index)).collect()
    }

    fn answer(
        self: Arc<Self>,
        conversation: &ConversationKey,
        language: &Language,
        request: Bytes,
    ) -> BoxStream<'static, Bytes> {
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let (conversation, language) = (conversation.clone(), language.clone());
        let packages = Packages(self);
        tokio::spawn(async move {
            let told = sender.clone();
            let install = async {
                let Request { tool, packages: names } = serde_json::from_slice(&request)
                    .map_err(|_| Failure::argument("packages", "the request is not of the form that is described"))?;
                let wanted = InstallRequest { conversation, language, tool: Some(tool.parse()?), packages: names };
                // The program that asks waits for it.
                let tell = move |words: &str| drop(told.try_send(line(words, None)));
                packages.install_as(wanted, Tokens::begin_within, tell).await
            };
            let last = match install.await {
                Ok(Installed { packages, .. }) => line(&format!("Installed {}", packages.join(" ")), Some(true)),
                Err(failure) => line(&format!("ERROR: {}", failure.message), Some(false)),
            };
            drop(sender.send(last).await);
        });
        ReceiverStream::new(lines).boxed()
    }
}
