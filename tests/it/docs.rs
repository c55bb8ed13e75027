//! Compares the generated documents with the code. `UPDATE=1 cargo test --test it docs` rewrites them.

use std::path::{Path, PathBuf};

use mcp_sandbox_server::{api::http::openapi, config};

const BEGIN: &str = "<!-- settings: made by the code, see tests/it/docs.rs -->\n";
const END: &str = "<!-- end of settings -->\n";

fn at_root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Fails when the file is out of date, or rewrites it when `UPDATE` is set.
fn hold(name: &str, actual: &str, expected: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(at_root(name), expected).expect(name);
        return;
    }
    assert!(actual == expected, "{name} is out of date: run `UPDATE=1 cargo test --test it docs` and commit.");
}

fn read(name: &str) -> String {
    std::fs::read_to_string(at_root(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn env_example_matches_the_settings() {
    let name = ".env.example";
    hold(name, &std::fs::read_to_string(at_root(name)).unwrap_or_default(), &config::example());
}

#[test]
fn readme_settings_table_matches_the_settings() {
    let text = read("README.md");
    let (before, rest) = text.split_once(BEGIN).expect("README.md has the mark where the table begins");
    let (_, after) = rest.split_once(END).expect("README.md has the mark where the table ends");
    hold("README.md", &text, &format!("{before}{BEGIN}{}{END}{after}", config::table()));
}

#[test]
fn openapi_document_matches_the_code() {
    let name = "docs/generated/openapi.json";
    hold(name, &std::fs::read_to_string(at_root(name)).unwrap_or_default(), &openapi::text());
}
