//! The subcommands for tokens. They write to the database; a running server follows within a second.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use secrecy::ExposeSecret as _;

use crate::{
    api::schema::token::TokenStatus,
    app,
    config::Config,
    domain::{Grant, Language, Principal, Scope, TokenId, TokenLimits, text::items, token::LIFE_DAYS_MAX},
    services::tokens::{NewToken, Tokens},
};

const DAY_S: u64 = 24 * 3600;

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token and print it. It is not shown again.
    Create {
        /// What people call it.
        name: String,
        /// Whose conversations it opens.
        #[arg(long, default_value_t = Principal::default().name().to_owned())]
        owner: String,
        /// What it may do: run, files, approve, admin.
        #[arg(long, value_delimiter = ',', default_value = "run,files")]
        scopes: Vec<Scope>,
        /// The only languages that it may run.
        #[arg(long, value_delimiter = ',')]
        languages: Vec<Language>,
        /// After how many days it ends.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=LIFE_DAYS_MAX))]
        expires_days: Option<u64>,
        /// Programs that may begin within a minute.
        #[arg(long, value_name = "COUNT")]
        runs_per_minute: Option<u32>,
        /// Programs that may wait or run at once.
        #[arg(long, value_name = "COUNT")]
        runs_at_once: Option<u32>,
        /// Processor time within 24 hours, in seconds.
        #[arg(long, value_name = "SECONDS")]
        cpu_seconds_per_day: Option<u64>,
        /// Printed bytes within 24 hours.
        #[arg(long, value_name = "BYTES")]
        output_bytes_per_day: Option<u64>,
        /// Its network policies, instead of those that are for every token; empty for none.
        #[arg(long, value_name = "NAMES")]
        network: Option<String>,
    },
    /// List the tokens, one JSON object a line.
    List {
        /// Only those of this owner.
        #[arg(long)]
        owner: Option<String>,
    },
    /// Revoke a token by its id: what it opened ends.
    Revoke { id: TokenId },
}

/// # Errors
/// When the database cannot be used, or what is wanted cannot be.
pub async fn run(config: &Config, command: TokenCommand) -> anyhow::Result<ExitCode> {
    let tokens = app::stored_tokens(config).await?;
    match command {
        TokenCommand::Revoke { id } => tokens.revoke(id).await?,
        TokenCommand::List { owner } => list(&tokens, owner).await?,
        TokenCommand::Create {
            name,
            owner,
            scopes,
            languages,
            expires_days,
            runs_per_minute,
            runs_at_once,
            cpu_seconds_per_day: cpu_s_per_day,
            output_bytes_per_day: bytes_per_day,
            network,
        } => {
            let network = network.map(|names| items(&names).map(str::to_owned).collect());
            let limits = TokenLimits { runs_per_minute, runs_at_once, cpu_s_per_day, bytes_per_day };
            let expires_unix_ms = expires_days.map(|days| tokens.in_seconds(days.saturating_mul(DAY_S)));
            let (owner, grant) = (owner.parse().context("--owner")?, Grant { scopes, languages, limits, network });
            let (_, token) = tokens.create(NewToken { owner, name, grant, expires_unix_ms, parent: None }).await?;
            super::print(&format!("{}\n", token.expose_secret()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(tokens: &Tokens, owner: Option<String>) -> anyhow::Result<()> {
    let owner = owner.map(|owner| owner.parse::<Principal>()).transpose().context("--owner")?;
    for token in tokens.list(owner.as_ref()).await? {
        super::print(&format!("{}\n", serde_json::to_string(&TokenStatus::from(&token))?))?;
    }
    Ok(())
}
