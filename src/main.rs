//! Picks a subcommand and returns an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    mcp_sandbox_server::cli::main()
}
