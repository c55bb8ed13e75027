//! The runner images of the engine: lists them, and fetches more.

use std::{process::ExitCode, sync::Arc};

use anyhow::Context as _;
use clap::Subcommand;
use futures_util::StreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    app,
    config::Config,
    ports::{
        engine::{Engine, PullProgress},
        runner::{Runner, RunnerImage},
    },
};

const BAR: &str = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";

#[derive(Debug, Subcommand)]
pub enum RunnersCommand {
    /// Fetch runner images from their registries; a running server uses them at once.
    Pull {
        /// Such as registry.example.org/runner-r:4.5; without a tag, `latest`.
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

pub async fn run(config: &Config, command: Option<RunnersCommand>) -> anyhow::Result<ExitCode> {
    let (engine, _) = app::engine(config).await?;
    match command {
        None => list(&engine).await,
        Some(RunnersCommand::Pull { images }) => pull(&engine, &images).await,
    }
}

async fn list(engine: &Arc<dyn Engine>) -> anyhow::Result<ExitCode> {
    let text: String = engine.runners().await?.iter().map(line).collect();
    let none = "No image carries the label sandbox.runner=true: build the runners with ./build.sh\n";
    super::print(if text.is_empty() { none } else { &text })
}

/// The language, its version and the name of the image, or why it is refused.
fn line(image: &RunnerImage) -> String {
    let name = image.reference.as_ref().unwrap_or(&image.id.0);
    match Runner::from_image(image) {
        Ok(runner) => format!("{}\t{}\t{name}\n", runner.language, runner.version.unwrap_or_default()),
        Err(why) => format!("(refused)\t{why}\t{name}\n"),
    }
}

/// Fetches one image after another, with a progress bar where a person sees it.
async fn pull(engine: &Arc<dyn Engine>, images: &[String]) -> anyhow::Result<ExitCode> {
    let style = ProgressStyle::with_template(BAR)?;
    let mut is_whole = true;
    for image in images {
        let before = engine.runners().await?;
        let bar = ProgressBar::new(0).with_style(style.clone()).with_prefix(image.clone());
        let mut fetching = engine.pull(image);
        while let Some(progress) = fetching.next().await {
            let PullProgress { done, total } = progress.with_context(|| image.clone())?;
            bar.set_length(total);
            bar.set_position(done);
        }
        bar.finish_and_clear();
        let after = engine.runners().await?;
        let fetched: Vec<_> = after.iter().filter(|runner| named(runner, image) || !before.contains(runner)).collect();
        is_whole &= !fetched.is_empty();
        let text: String = fetched.into_iter().map(line).collect();
        let why = "it has no label sandbox.runner=true, or SANDBOX_ENGINE__RUNNER_IMAGES leaves it out: change that";
        let none = format!("(refused)\t{why}\t{image}\n");
        super::print(if text.is_empty() { &none } else { &text })?;
    }
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the image has this name, with or without a tag. An engine may leave its default registry out.
fn named(runner: &RunnerImage, image: &str) -> bool {
    let reference = runner.reference.as_deref().unwrap_or_default();
    reference == image || reference.strip_suffix(":latest") == Some(image)
}
