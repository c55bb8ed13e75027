//! Runner images come and go while the server runs, and an image that knows nothing of this server works unchanged.

use mcp_sandbox_server::domain::id::Language;
use serde_json::json;

use crate::support::{
    Server,
    images::{Image, docker},
    until,
};

#[tokio::test(flavor = "multi_thread")]
async fn foreign_image_is_discovered_run_and_removed() {
    // One that stood by would hold the image.
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let image = Image::new("ruby");
    let (language, ruby) = (image.language.as_str(), image.language.parse::<Language>().expect("a language"));
    assert!(server.catalog.find(&ruby).is_none());
    let refused = server.run("foreign", language, "puts 1").await;
    assert_eq!(refused["isError"], true);
    let text = refused["content"][0]["text"].as_str().expect("a sentence");
    assert!(text.contains(language) && text.contains("python"), "the languages that are there are named: {text}");

    image.build("ruby-style");
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
