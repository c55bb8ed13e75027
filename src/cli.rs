//! The command line: parses it, loads the settings, starts the log, calls the app, prints one sentence on failure.
//! Nothing else reads the environment.

mod backup;
mod checks;
mod engine_proxy;
mod runners;
mod signals;
mod token;

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use uuid::Uuid;

use self::signals::stop_on_signal;
use crate::{
    api::{http::openapi, mcp},
    app::{self, App, StartError, doctor},
    config::{self, Config, ConfigError, Sources, telemetry},
    domain::{
        ConversationId, ConversationKey, Principal, SafePath,
        clock::{Clock as _, SystemClock},
    },
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

/// The log level of commands whose output a person reads.
const LEVEL_FOR_PEOPLE: &str = "error";

#[derive(Debug, Args)]
struct SettingsArgs {
    /// A settings file instead of ./sandbox.toml.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file of NAME=value lines instead of ./.env.
    #[arg(long, global = true, value_name = "FILE")]
    env_file: Option<PathBuf>,
    /// One setting, by its name in the environment; overrides every other source. May be repeated.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve MCP, the page and the files over HTTP.
    Serve,
    /// Serve MCP over standard input and output, for clients that start a process.
    Stdio {
        /// A folder of this machine that programs see at /mnt/<its name>; with `:rw` after it they may change it. May
        /// be repeated.
        #[arg(long = "mount", value_name = "FOLDER[:rw]")]
        mounts: Vec<String>,
    },
    /// Check this machine and say what to fix.
    Doctor {
        /// Print the findings as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the settings.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the `OpenAPI` 3.1 description of the HTTP API.
    Openapi,
    /// List the languages that can be run now, or fetch more.
    Runners {
        #[command(subcommand)]
        command: Option<runners::RunnersCommand>,
    },
    /// Print a signed link to a file of a conversation.
    Url {
        conversation: String,
        /// The file's path below /data.
        path: String,
        /// How long the link works, in seconds; the default is the setting `SANDBOX_FILES__URL_TTL_S`.
        #[arg(long, value_name = "SECONDS")]
        ttl_s: Option<u64>,
    },
    /// Check the audit log.
    #[command(subcommand)]
    Audit(checks::AuditCommand),
    /// Make, list and revoke tokens.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Write the database and the files of all owners into one archive, while the server runs.
    Backup(backup::BackupArgs),
    /// Restore an archive into an empty root and database, while no server runs.
    Restore(backup::RestoreArgs),
    /// Open a socket to the container engine that can start sandboxes of this server's form and nothing else.
    EngineProxy(engine_proxy::ProxyArgs),
    /// Ask a running server whether it is ready; the exit status says so.
    Health {
        /// Its address; the default is `MCP_HTTP_ADDR`.
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

/// `--mount` as a setting: the folder's own name names it.
fn setting_of(mount: &str) -> anyhow::Result<(String, String)> {
    let (folder, mode) = match mount.rsplit_once(':') {
        Some((folder, mode @ ("ro" | "rw"))) => (folder, mode),
        _ => (mount, "ro"),
    };
    #[expect(clippy::disallowed_methods, reason = "the engine mounts it; nothing here opens it")]
    let folder = std::fs::canonicalize(folder).with_context(|| format!("--mount {folder}"))?;
    anyhow::ensure!(folder.is_dir(), "--mount {}: it is not a folder", folder.display());
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '-' };
    let name: String = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()).chars().map(plain).collect();
    Ok((format!("SANDBOX_MOUNTS__{name}"), format!("{}:{mode}", folder.display())))
}

/// Each `--mount` as a setting.
fn settings_of(mounts: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut settings: Vec<(String, String)> = Vec::new();
    for mount in mounts {
        let (name, folder) = setting_of(mount)?;
        // Where settings have one name, only the last one counts.
        let is_taken = settings.iter().any(|(taken, other)| taken.eq_ignore_ascii_case(&name) && *other != folder);
        anyhow::ensure!(!is_taken, "--mount {mount}: programs see another folder by this name; rename one of the two");
        settings.push((name, folder));
    }
    Ok(settings)
}

/// What a server of one person's process needs and that person need not choose: secrets that nothing else is to know, a
/// folder for the files, and a user whose files that person can read.
fn alone(environment: &[(String, String)]) -> Vec<(String, String)> {
    let secret = || format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let mut pairs = vec![("MCP_API_TOKEN".to_owned(), secret()), ("FILE_SECRET".to_owned(), secret())];
    let uid = rustix::process::getuid();
    if uid.is_root() {
        return pairs;
    }
    pairs.push(("SANDBOX_ENGINE__RUNNER_UID".to_owned(), uid.as_raw().to_string()));
    let folder = |name: &str| {
        let value = environment.iter().find(|(known, _)| known == name)?;
        Some(PathBuf::from(&value.1)).filter(|path| path.is_absolute())
    };
    let data = folder("XDG_DATA_HOME").or_else(|| Some(folder("HOME")?.join(".local/share")));
    if let Some(root) = data.and_then(|data| Some(data.join("mcp-code-sandbox").to_str()?.to_owned())) {
        pairs.push(("SANDBOX_ROOT".to_owned(), root));
    }
    pairs
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
            // A closed standard error is no reason to panic.
            drop(writeln!(std::io::stderr(), "mcp-sandbox-server: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let SettingsArgs { config: file, env_file, set: overrides } = cli.settings;
    let sources = Sources { file, env_file, environment: environment(), overrides, fallbacks: Vec::new() };
    let load = || config::load(&sources);
    match cli.command {
        Command::Serve => match load() {
            Ok(config) => block_on(&config, &config.log.level, serve(&config)),
            Err(error) => without_settings(&sources, error),
        },
        Command::Stdio { mounts } => {
            let mut sources = sources.clone();
            sources.overrides.extend(settings_of(&mounts)?);
            sources.fallbacks = alone(&sources.environment);
            match config::load(&sources) {
                Ok(config) => block_on(&config, &config.log.level, stdio(&config)),
                Err(error) => without_settings(&sources, error),
            }
        }
        Command::Doctor { json } => match load() {
            Ok(config) => block_on(&config, LEVEL_FOR_PEOPLE, checks::doctor(&config, json)),
            Err(error) => checks::conclude(&doctor::without_settings(&error), json),
        },
        Command::Runners { command } => for_people(&load()?, |config| runners::run(config, command)),
        Command::Url { conversation, path, ttl_s } => url(&load()?, &conversation, &path, ttl_s),
        Command::Config(ConfigCommand::Print) => print(&load()?.print()),
        Command::Config(ConfigCommand::Example) => print(&config::example()),
        Command::Config(ConfigCommand::Table) => print(&config::table()),
        Command::Openapi => print(&openapi::text()),
        Command::Audit(command) => checks::audit(command, &sources),
        Command::Token(command) => for_people(&load()?, |config| token::run(config, command)),
        Command::Backup(args) => for_people(&load()?, |config| backup::backup(config, args)),
        Command::Restore(args) => for_people(&load()?, |config| backup::restore(config, args)),
        Command::EngineProxy(args) => engine_proxy::run(args, &sources.environment),
        Command::Health { addr } => checks::health(addr, &sources),
    }
}

/// Runs a command that logs errors alone, for a person.
fn for_people<'a, F: Future<Output = anyhow::Result<ExitCode>>>(
    config: &'a Config,
    command: impl FnOnce(&'a Config) -> F,
) -> anyhow::Result<ExitCode> {
    block_on(config, LEVEL_FOR_PEOPLE, command(config))
}

/// Starts the log and runs a command to its end.
fn block_on(
    config: &Config,
    level: &str,
    command: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    telemetry::init(level, config.log.format == "json")?;
    let runtime = tokio::runtime::Runtime::new().context("no runtime")?;
    let result = runtime.block_on(command);
    // A pending read of standard input cannot be cancelled and must not keep the process.
    runtime.shutdown_background();
    result.or_else(|error| if config.log.format == "json" { Ok(logged(&error)) } else { Err(error) })
}

/// The end of a server whose settings are wrong.
fn without_settings(sources: &Sources, error: ConfigError) -> anyhow::Result<ExitCode> {
    if !config::logs_json(sources) {
        return Err(error.into());
    }
    telemetry::init(LEVEL_FOR_PEOPLE, true)?;
    Ok(logged(&error.into()))
}

fn logged(error: &anyhow::Error) -> ExitCode {
    tracing::error!(error = format!("{error:#}"), "the server cannot continue");
    ExitCode::FAILURE
}

fn environment() -> Vec<(String, String)> {
    // A name or value that is not UTF-8 counts as not set.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: &Config) -> anyhow::Result<ExitCode> {
    let shutdown = stop_on_signal()?;
    let listener = app::listen(config).await?;
    let Some(app) = shutdown.run_until_cancelled(App::build(config)).await.transpose()? else {
        return Ok(ExitCode::SUCCESS);
    };
    tracing::info!(address = %listener.local_addr()?, page = %config.public_base_url, "serving");
    app.serve(listener, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

async fn stdio(config: &Config) -> anyhow::Result<ExitCode> {
    let shutdown = stop_on_signal()?;
    let Some(app) = shutdown.run_until_cancelled(App::build_for_stdio(config)).await.transpose()? else {
        return Ok(ExitCode::SUCCESS);
    };
    let isolation = app.parts.shared.isolation.clone();
    let served = tokio::select! {
        served = mcp::serve_stdio(app.parts.mcp.clone(), shutdown) => served,
        why = isolation.violated() => {
            app.stop().await;
            return Err(StartError::Isolation(why).into());
        }
    };
    app.stop().await;
    served.context("the client's messages could not be read")?;
    Ok(ExitCode::SUCCESS)
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
    let expires = SystemClock.unix_s() + i64::try_from(ttl_s)?;
    print(&format!("{}\n", app::signer(config).mint(&conversation, &path, expires)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_name_are_refused_and_not_left_out() {
        let top = tempfile::tempdir().expect("a folder");
        let mount = |name: &str| {
            let folder = top.path().join(name);
            std::fs::create_dir_all(&folder).expect("a folder");
            folder.display().to_string()
        };
        let apart = [mount("a/docs"), format!("{}:rw", mount("b/work"))];
        let settings = settings_of(&apart).expect("two names");
        assert_eq!(
            settings.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["SANDBOX_MOUNTS__docs", "SANDBOX_MOUNTS__work"]
        );
        assert!(settings_of(&[mount("a/docs"), mount("a/docs")]).is_ok(), "one folder");
        for other in ["b/docs", "b/Docs"] {
            let error = settings_of(&[mount("a/docs"), mount(other)]).expect_err(other).to_string();
            assert!(error.contains(other) && error.contains("rename"), "{error}");
        }
    }
}
