//! Finds tools by words, so that a model need not read the descriptions of all tools.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::timeout;

use super::{
    Tools,
    modules::ModuleLanguage,
    server::{Defined, Definitions, ServerHandle, ServerState},
};
use crate::domain::{Failure, Principal, tools::Tool};

/// What a word counts by where it is found: in the path, the tool's name, the server's, the description. After those of
/// Cloudflare's code mode.
const WEIGHTS: [u32; 4] = [12, 10, 8, 5];
const EXACT: u32 = 4;
const PREFIX: u32 = 2;
const WITHIN: u32 = 1;
const QUERY_CHARS_MAX: usize = 1000;
const WORDS_MAX: usize = 16;
const LINE_CHARS_MAX: usize = 160;
/// How much of a description is searched, in characters: a server's may have megabytes, and each search reads them all.
const ABOUT_CHARS_MAX: usize = 4000;
/// How long a server may take to say which tools it has, and its modules to be made. One that is not there takes much
/// longer to be given up, and so may untrusted schemas.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The tools that were found, best match first.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = FoundTools)]
pub struct SearchResult {
    pub tools: Vec<Found>,
    /// Servers that did not list their tools in time: search again to include them.
    pub unanswered: Vec<ServerState>,
}

/// A tool that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FoundTool)]
pub struct Found {
    pub server: String,
    pub tool: String,
    // Untrusted.
    /// The first line of its description, which is its server's.
    pub about: String,
    // Empty where modules were not made, or not in time.
    /// How Python calls it.
    #[schema(example = "get_issue(owner: str, number: int) -> Result")]
    pub signature: String,
    #[schema(example = "mcptools.github.get_issue")]
    pub module: String,
    /// By its definition: where no rule is for it, a person is asked.
    pub may_destroy: bool,
}

/// A tool that matches, with its server.
type Match = (Arc<ServerHandle>, Arc<Definitions>, Arc<Defined>);

impl Tools {
    /// Tools for some words, of the servers that answer in time.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::domain::error::Code::InvalidArgument) for a query that is too long.
    pub async fn search(&self, who: &Principal, query: &str, limit: usize) -> Result<SearchResult, Failure> {
        if query.chars().count() > QUERY_CHARS_MAX {
            return Err(Failure::argument("query", format!("it has more than {QUERY_CHARS_MAX} characters")));
        }
        let mut words = words(query);
        words.truncate(WORDS_MAX);
        let live = self.0.parts.directory.of(who);
        let listed = live.iter().map(|live| async move { (live, live.definitions_within(ANSWER_MAX).await) });
        let listed = join_all(listed).await;
        let (mut answered, mut unanswered) = (Vec::new(), Vec::new());
        for (live, definitions) in listed {
            match definitions {
                Ok(definitions) => answered.push((Arc::clone(live), definitions)),
                Err(why) => unanswered.push(live.with_tools(Err(why))),
            }
        }
        let found = self.0.work.run(who, move || best(&words, answered, limit)).await?;
        let one = |(live, definitions, defined): Match| async move {
            let made = self.0.made(&live.server, &definitions, ModuleLanguage::Python);
            let made = timeout(ANSWER_MAX, made).await.ok().and_then(Result::ok);
            let signature = made.and_then(|made| Some(made.get(&defined.module)?.signature.clone()));
            let server = live.server.name.to_string();
            let tool = &defined.tool;
            let first = tool.description.lines().next().unwrap_or_default();
            Found {
                module: format!("mcptools.{server}.{}", defined.module),
                server,
                tool: tool.name.clone(),
                about: first.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect(),
                signature: signature.unwrap_or_default(),
                may_destroy: tool.hints.may_destroy(),
            }
        };
        Ok(SearchResult { tools: join_all(found.into_iter().map(one)).await, unanswered })
    }
}

/// The tools with the highest scores. Blocks for up to a second, where there are many long descriptions.
fn best(words: &[String], answered: Vec<(Arc<ServerHandle>, Arc<Definitions>)>, limit: usize) -> Vec<Match> {
    let mut found = Vec::new();
    for (live, definitions) in answered {
        found.extend(definitions.tools.iter().filter_map(|defined| {
            let score = score(words, live.server.name.as_str(), &defined.tool);
            let matched = || (score, (Arc::clone(&live), Arc::clone(&definitions), Arc::clone(defined)));
            (score > 0 || words.is_empty()).then(matched)
        }));
    }
    // Equal ones in the order of their servers.
    found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    found.truncate(limit);
    found.into_iter().map(|(_, found)| found).collect()
}

/// The words of a text: split at what is no letter or digit, and where a capital follows a small letter.
fn words(text: &str) -> Vec<String> {
    let mut before = ' ';
    let mut spaced = String::new();
    for c in text.chars() {
        if c.is_uppercase() && before.is_lowercase() || !c.is_alphanumeric() {
            spaced.push(' ');
        }
        if c.is_alphanumeric() {
            spaced.extend(c.to_lowercase());
        }
        before = c;
    }
    spaced.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn score(wanted: &[String], server: &str, tool: &Tool) -> u32 {
    let path = format!("{server} {}", tool.name);
    let about: String = tool.description.chars().take(ABOUT_CHARS_MAX).collect();
    let texts = [path.as_str(), tool.name.as_str(), server, about.as_str()];
    let mut score = 0;
    for (text, weight) in texts.into_iter().zip(WEIGHTS) {
        let there = words(text);
        for word in wanted {
            let best = there.iter().map(|other| match other {
                other if other == word => EXACT,
                other if other.starts_with(word.as_str()) => PREFIX,
                other if other.contains(word.as_str()) => WITHIN,
                _ => 0,
            });
            score += weight * best.max().unwrap_or(0);
        }
    }
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_description_is_searched() {
        let scored = |description: String| {
            let tool = Tool { name: "tool".to_owned(), description, ..Tool::default() };
            score(&["needle".to_owned()], "up", &tool)
        };
        assert!(scored("A needle.".to_owned()) > 0);
        assert_eq!(scored("hay ".repeat(1 << 20) + "needle"), 0);
    }

    #[test]
    fn words_are_split_at_marks_and_capitals() {
        assert_eq!(words("getIssue_by-ID v2"), ["get", "issue", "by", "id", "v2"]);
        assert!(words("").is_empty());
    }
}
