//! Runner images, how they are fetched, and the events of their changes.

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    time::Duration,
};

use bollard::{
    Docker,
    models::ImageSummary,
    query_parameters::{CreateImageOptionsBuilder, EventsOptionsBuilder, ListImagesOptionsBuilder},
};
use futures_util::{StreamExt, stream::BoxStream};
use parking_lot::Mutex;
use tracing::warn;

use super::{
    super::{changes, labels},
    call, convert,
};
use crate::{
    domain::text::{is_like, items},
    ports::{
        engine::{EngineError, PullProgress},
        runner::RunnerImage,
    },
};

/// Events that may add, remove or rename an image, by Docker's and Podman's names. Engines ignore unknown ones.
pub(super) const ACTIONS: [&str; 10] =
    ["build", "create", "delete", "import", "load", "loadfromarchive", "pull", "remove", "tag", "untag"];

/// Which images may be runners, by name or id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedImages(Vec<String>);

impl From<&str> for AllowedImages {
    /// Patterns, separated by commas; `*` stands for any text. None: every image is allowed.
    fn from(text: &str) -> Self {
        Self(items(text).map(str::to_owned).collect())
    }
}

impl AllowedImages {
    /// Whether a name such as `runner-python:latest`, or an id, is allowed.
    pub(super) fn allows(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| is_like(pattern, name))
    }
}

/// The runner images of an engine.
#[derive(Debug, Default)]
pub(super) struct Images {
    allowed: AllowedImages,
    /// Images that are not allowed and were logged.
    refused: Mutex<HashSet<String>>,
}

impl Images {
    pub(super) fn new(allowed: AllowedImages) -> Self {
        Self { allowed, refused: Mutex::default() }
    }

    pub(super) async fn runners(&self, docker: &Docker, limit: Duration) -> Result<Vec<RunnerImage>, EngineError> {
        let filters = HashMap::from([("label", vec![labels::RUNNERS])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let images = call::within("list images", limit, docker.list_images(Some(options))).await?;
        Ok(self.allowed_of(images))
    }

    /// The images that may be runners, by name. Another one is logged once.
    fn allowed_of(&self, images: Vec<ImageSummary>) -> Vec<RunnerImage> {
        let mut refused = self.refused.lock();
        refused.retain(|id| images.iter().any(|image| image.id == *id));
        let mut runners = Vec::new();
        for image in images {
            let (id, names) = (image.id.clone(), image.repo_tags.clone());
            let is_allowed = self.allowed.allows(&id);
            match convert::runner_image(image, |name| is_allowed || self.allowed.allows(name)) {
                Some(runner) => runners.push(runner),
                None if !names.is_empty() && refused.insert(id.clone()) => {
                    let names = names.join(", ");
                    warn!(image = id, names, "an image with the runner label is not in SANDBOX_ENGINE__RUNNER_IMAGES");
                }
                None => {}
            }
        }
        runners.sort_by(|a, b| (&a.reference, &a.id).cmp(&(&b.reference, &b.id)));
        runners
    }
}

/// Fetches an image; without a tag or a digest the one that is tagged `latest`, as engines' own commands do.
pub(super) fn pull(docker: &Docker, reference: &str) -> BoxStream<'static, Result<PullProgress, EngineError>> {
    let last = reference.rsplit('/').next().unwrap_or_default();
    let tag = if last.contains([':', '@']) { "" } else { ":latest" };
    let options = CreateImageOptionsBuilder::new().from_image(&format!("{reference}{tag}")).build();
    let mut parts: HashMap<String, PullProgress> = HashMap::new();
    // Only the vendor's client limits how long the engine may take to begin.
    let limit = docker.timeout();
    let fetched = docker.create_image(Some(options), None, None).map(move |item| {
        let info = item.map_err(|error| call::map_error("pull", limit, error))?;
        if let Some((id, detail)) = info.id.zip(info.progress_detail) {
            let bytes = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
            let part = parts.entry(id).or_default();
            // A part is downloaded, then unpacked, which counts from its beginning again.
            part.done = part.done.max(bytes(detail.current));
            part.total = part.total.max(bytes(detail.total));
        }
        let sum = |of: fn(&PullProgress) -> u64| parts.values().map(of).sum();
        Ok(PullProgress { done: sum(|part| part.done), total: sum(|part| part.total) })
    });
    fetched.boxed()
}

/// See [`changes::changes`].
pub(super) fn changes(docker: Docker) -> BoxStream<'static, ()> {
    changes::changes(move || ready(Some(open(&docker))))
}

fn open(docker: &Docker) -> changes::Events {
    let filters = HashMap::from([("type", vec!["image"]), ("event", ACTIONS.to_vec())]);
    docker.events(Some(EventsOptionsBuilder::new().filters(&filters).build())).map(|event| event.is_ok()).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str]) -> ImageSummary {
        let repo_tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        ImageSummary { id: id.to_owned(), repo_tags, ..ImageSummary::default() }
    }

    fn listed(setting: &str) -> Vec<String> {
        let images = Images::new(setting.into());
        let all = || {
            vec![
                image("sha256:1", &["runner-python:latest", "backup/python:1"]),
                image("sha256:2", &["runner-evil:latest"]),
                image("sha256:3", &[]),
            ]
        };
        images.allowed_of(all());
        let known = images.refused.lock().clone();
        let names = images.allowed_of(all()).into_iter().filter_map(|runner| runner.reference).collect();
        assert_eq!(*images.refused.lock(), known, "each is logged once");
        names
    }

    #[test]
    fn only_allowed_images_are_runners() {
        assert_eq!(listed(""), ["backup/python:1", "runner-evil:latest"]);
        assert_eq!(listed("runner-python:latest"), ["runner-python:latest"]);
        assert_eq!(listed(" runner-p*:* , other"), ["runner-python:latest"]);
        assert_eq!(listed("sha256:2"), ["runner-evil:latest"]);
        assert_eq!(listed("python"), [""; 0]);
    }

    #[test]
    fn refused_images_that_are_gone_are_forgotten() {
        let images = Images::new("x".into());
        for n in 0..1000 {
            assert_eq!(images.allowed_of(vec![image(&format!("sha256:{n}"), &["a:b"])]).len(), 0);
        }
        assert_eq!(images.refused.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_without_an_answer_names_the_limit_of_the_client() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("engine.sock");
        // It takes connections and never answers.
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let host = format!("unix://{}", socket.display());
        let docker = Docker::connect_with_unix(&host, 7, bollard::API_DEFAULT_VERSION).expect("a client");
        let items: Vec<_> = pull(&docker, "runner-python").collect().await;
        let [Err(EngineError::Timeout { act: "pull", limit })] = &items[..] else { panic!("{items:?}") };
        assert_eq!(*limit, Duration::from_secs(7));
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*c", "abcbc", true),
            ("a*b*", "ab", true),
            ("a*c", "ab", false),
            ("a", "ab", false),
            ("*é", "xéé", true),
        ] {
            assert_eq!(AllowedImages::from(pattern).allows(text), expected, "{pattern} {text}");
        }
        let (pattern, text) = ("*a".repeat(30), "a".repeat(60));
        assert!(AllowedImages::from(pattern.as_str()).allows(&text));
        assert!(!AllowedImages::from(format!("{pattern}b").as_str()).allows(&text));
    }
}
