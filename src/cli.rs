//! The command line: parses it, loads the settings, starts the log, calls the app, prints one sentence on failure.
//!
//! The only place that reads the environment.

mod doctor;
mod engine_proxy;
mod health;

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::{
    adapters::engine::proxy::ProxyOptions,
    api::{http::openapi, mcp},
    app::{self, App, StartError},
    config::{self, Config, Overrides, Sources, telemetry},
    domain::{
        clock::{Clock as _, SystemClock},
        id::ConversationId,
        owner::{ConversationKey, Principal},
    },
    ports::{runner::Runner, signed_url::UrlSigner, store::SafePath},
};

/// A self-hosted code sandbox for AI assistants: runs programs in fresh containers, over MCP.
#[derive(Debug, Parser)]
#[command(name = "mcp-sandbox-server", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct SettingsArgs {
    /// A settings file instead of ./sandbox.toml.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file of NAME=value lines instead of ./.env.
    #[arg(long, global = true, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// One setting, by its name in the environment; wins over every other source. May be repeated.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MCP, the page and the files over HTTP.
    Serve,
    /// Serve MCP over standard input and output, for clients that start a process.
    Stdio,
    /// Check this machine and say what to mend.
    Doctor {
        /// For programs: a list of findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the settings.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print the description of the HTTP API (`OpenAPI` 3.1).
    Openapi,
    /// List the languages that can be run now.
    Runners,
    /// Print a signed link to a file of a conversation.
    Url {
        /// The conversation.
        conversation: String,
        /// The file's path below /data.
        path: String,
        /// How long the link works, in seconds; the setting says it where this does not.
        #[arg(long, value_name = "SECONDS")]
        ttl_s: Option<u64>,
    },
    /// Open a socket to the container engine that can start sandboxes of this server's form and nothing else.
    EngineProxy {
        /// The socket to listen on.
        #[arg(long, value_name = "PATH", default_value = "/run/sandbox-engine/engine.sock")]
        listen: PathBuf,
        /// The engine's own socket.
        #[arg(long, value_name = "unix://PATH", env = "DOCKER_HOST", default_value = "unix:///var/run/docker.sock")]
        engine: String,
        /// The server's `SANDBOX_ROOT`, by the same path here and on the engine's host.
        #[arg(long, value_name = "PATH", env = "SANDBOX_ROOT", default_value = "/var/sandboxes")]
        root: PathBuf,
        /// The user that programs run as; the server's setting has to be the same.
        #[arg(long, value_name = "UID", env = "SANDBOX_ENGINE__RUNNER_UID", default_value_t = 1000)]
        runner_uid: u32,
        /// The OCI runtime, as the server's setting says it.
        #[arg(long, value_name = "NAME", env = "SANDBOX_ENGINE__RUNTIME", default_value = "")]
        runtime: String,
    },
    /// Ask a running server whether it is ready; the exit status says so.
    Health {
        /// Its address, where it is not `MCP_HTTP_ADDR`.
        #[arg(long, value_name = "HOST:PORT", env = "HEALTH_ADDR", hide_env = true)]
        addr: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the merged settings without secrets.
    Print,
    /// Print every setting with its default, in the form of a .env file.
    Example,
    /// Print every setting as a Markdown table.
    Table,
}

fn pair(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "write NAME=VALUE, such as SANDBOX_LIMITS__WALL_MS=60000".to_owned())
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            // Nobody is left to tell when standard error is closed.
            drop(writeln!(std::io::stderr(), "mcp-sandbox-server: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Config { command: ConfigCommand::Example } => return print(&config::example()),
        Command::Openapi => return print(&openapi::text()),
        Command::Config { command: ConfigCommand::Table } => return print(&config::table()),
        Command::EngineProxy { listen, engine, root, runner_uid, runtime } => {
            let runtime = runtime.as_str().into();
            let (engine, root) = (engine.clone(), root.clone());
            return engine_proxy::run(listen, ProxyOptions { engine, root, uid: *runner_uid, runtime });
        }
        _ => {}
    }
    let sources = Sources {
        file: cli.settings.config,
        env_file: cli.settings.env_file,
        environment: environment(),
        overrides: Overrides(cli.settings.set),
    };
    if let Command::Health { addr } = cli.command {
        return health::check(addr, &sources);
    }
    let config = match (config::load(&sources), &cli.command) {
        (Err(error), Command::Doctor { json }) => return doctor::without_settings(&error, *json),
        (loaded, _) => loaded?,
    };
    if let Command::Config { .. } = cli.command {
        return print(&config.print());
    }
    let level = match cli.command {
        Command::Serve | Command::Stdio => config.log.level.as_str(),
        // A person reads the answer, not the log.
        _ => "error",
    };
    telemetry::init(level, config.log.format == "json")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let result = runtime.block_on(async {
        match cli.command {
            Command::Serve => serve(&config).await,
            Command::Stdio => stdio(&config).await,
            Command::Doctor { json } => doctor::check(&config, json).await,
            Command::Runners => runners(&config).await,
            Command::Url { conversation, path, ttl_s } => url(&config, &conversation, &path, ttl_s),
            Command::Config { .. } | Command::Health { .. } | Command::Openapi | Command::EngineProxy { .. } => {
                Ok(ExitCode::SUCCESS)
            }
        }
    });
    // A read of standard input that is under way cannot be ended, and must not keep the process.
    runtime.shutdown_background();
    result
}

fn environment() -> Vec<(String, String)> {
    // A name or value that is no text is not one of ours; whoever set one of ours so is told that it is not set.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: &Config) -> anyhow::Result<ExitCode> {
    let listener = app::listen(config).await?;
    let app = App::build(config).await?;
    let shutdown = CancellationToken::new();
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    tracing::info!(address = %listener.local_addr()?, page = %config.public_base_url, "serving");
    app.serve(listener, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

async fn stdio(config: &Config) -> anyhow::Result<ExitCode> {
    let mut app = App::build(config).await?;
    // Links to files need somebody who answers them: this process, or the server that holds the address already.
    match app::listen(config).await {
        Ok(listener) => app.serve_beside(listener),
        Err(error) => tracing::info!(%error, "links are left to the server at that address"),
    }
    let shutdown = CancellationToken::new();
    tokio::spawn(cancel_on_signal(shutdown.clone()));
    let isolation = app.isolation.clone();
    let served = tokio::select! {
        served = mcp::serve_stdio(app.mcp.clone(), shutdown) => served,
        why = isolation.violated() => {
            app.stop().await;
            return Err(StartError::Isolation(why).into());
        }
    };
    app.stop().await;
    served.context("the client's messages could not be read")?;
    Ok(ExitCode::SUCCESS)
}

async fn cancel_on_signal(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    shutdown.cancel();
}

async fn runners(config: &Config) -> anyhow::Result<ExitCode> {
    let (engine, _) = app::engine(config).await?;
    let mut text = String::new();
    for image in engine.runners().await? {
        let name = image.reference.clone().unwrap_or_else(|| image.id.0.clone());
        match Runner::from_image(&image) {
            Ok(runner) => {
                let version = runner.version.unwrap_or_default();
                text += [runner.language.as_str(), &version, &name].join("\t").as_str();
            }
            Err(why) => text += ["(refused)", &why.to_string(), &name].join("\t").as_str(),
        }
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("No image carries the label sandbox.runner=true: build the runners with ./build.sh\n");
    }
    print(&text)
}

fn url(config: &Config, conversation: &str, path: &str, ttl_s: Option<u64>) -> anyhow::Result<ExitCode> {
    let id: ConversationId = conversation.parse().context("conversation")?;
    let conversation = ConversationKey::new(Principal::default(), id);
    let path = SafePath::from_text(path).context("path")?;
    let ttl_s = ttl_s.unwrap_or(config.files.url_ttl_s);
    anyhow::ensure!(
        (1..=config::URL_TTL_S_MAX).contains(&ttl_s),
        "--ttl-s must be from 1 to {}",
        config::URL_TTL_S_MAX
    );
    let secrets: Vec<_> = config.file_secrets.iter().map(|secret| secret.expose().clone()).collect();
    let base_url = config.public_base_url.to_string();
    let signer = UrlSigner::new(&secrets, base_url.trim_end_matches('/'));
    let expires = SystemClock.unix_s() + i64::try_from(ttl_s)?;
    print(&format!("{}\n", signer.mint(&conversation, &path, expires)))
}
