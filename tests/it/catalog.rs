//! Runner images come and go while the server runs, and an image that knows nothing of this server works unchanged.

use std::{path::Path, process::Command};

use mcp_sandbox_server::domain::id::Language;
use serde_json::json;

use crate::support::{Server, engines::base_image, until};

fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("the docker command: run ./test.sh");
    assert!(output.status.success(), "docker {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The image of a language of its own, so that no other server on this engine takes it for a language that it offers.
/// Removed also when the test fails.
struct Image {
    name: String,
    language: String,
}

impl Image {
    fn new() -> Self {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        Self { name: format!("sandbox-it-{unique}"), language: format!("ruby-{}", &unique[..8]) }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        drop(Command::new("docker").args(["rmi", "-f", &self.name]).output());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_image_is_discovered_run_and_removed() {
    // One that stood by would hold the image.
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let image = Image::new();
    let (language, ruby) = (image.language.as_str(), image.language.parse::<Language>().expect("a language"));
    assert!(server.catalog.find(&ruby).is_none());
    let refused = server.run("foreign", language, "puts 1").await;
    assert_eq!(refused["isError"], true);
    let text = refused["content"][0]["text"].as_str().expect("a sentence");
    assert!(text.contains(language) && text.contains("python"), "the languages that are there are named: {text}");

    let context = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ruby-style");
    let (base, label) = (format!("BASE={}", base_image()), format!("sandbox.language={language}"));
    let context = context.display().to_string();
    docker(&["build", "--quiet", "--build-arg", &base, "--label", &label, "--tag", &image.name, &context]);
    until("Ruby is known, without a restart", async || server.catalog.find(&ruby).is_some()).await;
    let listed = server.call("sandbox.list_runners", json!({})).await;
    let takes_input = |language: &str| {
        let runners = listed["structuredContent"]["runners"].as_array().expect("runners");
        runners.iter().find(|runner| runner["language"] == language).map(|runner| runner["takesInput"].clone())
    };
    let told = (takes_input(language), takes_input("python"));
    assert_eq!(told, (Some(json!(false)), Some(json!(true))), "only a runner of protocol 1 takes input: {listed}");

    let result = server.run("foreign", language, "puts 6 * 7\nFile.write('out.txt', Dir.pwd)\nexit 3").await;
    let answer = &result["structuredContent"];
    assert_eq!((&answer["stdout"], &answer["outcome"]["exitCode"]), (&json!("42\n"), &json!(3)), "{result}");
    assert_eq!(answer["files"][0]["path"], "out.txt");
    assert_eq!(std::fs::read_to_string(server.root.join("foreign/files/out.txt")).expect("the file"), "/data");

    server.janitor.idle().await;
    docker(&["rmi", &image.name]);
    until("Ruby is gone, without a restart", async || server.catalog.find(&ruby).is_none()).await;
    server.stop().await;
}
