//! Skills over REST and MCP on the fake engine: what is listed, read, uploaded and deleted, by whom, and what is
//! refused.

mod attacks;
mod page;

use std::{
    fs,
    io::{Cursor, Write as _},
    path::Path,
};

use mcp_sandbox_server::domain::text::hex;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::support::{FakeServer, calls::create, server::TOKEN};

/// `SKILL.md` of a skill.
pub fn skill_md(name: &str, description: &str) -> String {
    format!("---\nname: {name}\ndescription: {description}\n---\n# {name}\n")
}

/// A zip of files.
pub fn zipped(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, bytes) in files {
        zip.start_file(*path, SimpleFileOptions::default().unix_permissions(0o644)).expect("an entry");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("a zip").into_inner()
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("written");
}

struct Scene {
    server: FakeServer,
    /// The folder of skills.
    root: TempDir,
    /// A token of another owner.
    ann: String,
}

impl Scene {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    async fn with(more: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "public/report/SKILL.md", &skill_md("report", "Makes reports."));
        write(root.path(), "public/report/scripts/run.py", "print(1)\n");
        let path = root.path().display().to_string();
        let server = FakeServer::with(&[&[("SANDBOX_SKILLS__ROOT", path.as_str())], more].concat()).await;
        let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann", "scopes": ["run", "files"]})).await;
        Self { server, root, ann }
    }

    async fn send(&self, token: &str, method: Method, path: &str, body: Vec<u8>) -> (u16, String) {
        let request = self.server.http.request(method, format!("http://{}{path}", self.server.address));
        let answer = request.bearer_auth(token).body(body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    }

    async fn get(&self, token: &str, path: &str) -> (u16, String) {
        self.send(token, Method::GET, path, Vec::new()).await
    }

    async fn put(&self, token: &str, name: &str, zip: Vec<u8>) -> (u16, Value) {
        let (status, body) = self.send(token, Method::PUT, &format!("/v1/skills/{name}"), zip).await;
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// `source/name` of each listed skill.
    async fn listed(&self, token: &str) -> Vec<String> {
        let (status, body) = self.get(token, "/v1/skills").await;
        assert_eq!(status, 200, "{body}");
        let list: Value = serde_json::from_str(&body).expect("JSON");
        let one = |skill: &Value| format!("{}/{}", skill["source"].as_str()?, skill["name"].as_str()?).into();
        list["skills"].as_array().expect("skills").iter().filter_map(one).collect()
    }

    async fn tool(&self, name: &str, arguments: Value) -> String {
        let answer = self.server.rpc("tools/call", json!({"name": name, "arguments": arguments})).await;
        let text = answer["result"]["content"][0]["text"].as_str();
        text.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_are_uploaded_read_replaced_and_deleted() {
    let scene = Scene::start().await;
    assert_eq!(scene.listed(TOKEN).await, ["public/report"]);
    let text = skill_md("mine", "Does mine.");
    let (status, body) = scene.put(TOKEN, "mine", zipped(&[("SKILL.md", text.as_bytes()), ("a/b.txt", b"1")])).await;
    assert_eq!((status, body["location"].as_str()), (201, Some("/skills/user/mine")), "{body}");
    assert_eq!(scene.listed(TOKEN).await, ["public/report", "user/mine"]);
    assert_eq!(scene.get(TOKEN, "/v1/skills/mine/files/a/b.txt").await, (200, "1".to_owned()));
    let (_, details) = scene.get(TOKEN, "/v1/skills/mine").await;
    let details: Value = serde_json::from_str(&details).expect("JSON");
    let paths: Vec<_> = details["files"].as_array().expect("files").iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["SKILL.md", "a/b.txt"]);

    // In a folder with its name, and as a whole: what was there is gone.
    let (status, body) =
        scene.put(TOKEN, "mine", zipped(&[("mine/SKILL.md", text.as_bytes()), ("mine/c", b"2")])).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(scene.get(TOKEN, "/v1/skills/mine/files/a/b.txt").await.0, 404);
    assert_eq!(scene.get(TOKEN, "/v1/skills/mine/files/c").await, (200, "2".to_owned()));
    let left = fs::read_dir(scene.root.path().join(".incoming")).expect("the folder").count();
    assert_eq!(left, 0, "what was replaced is deleted");

    // An own one hides the public one of its name, until it is deleted.
    let own = skill_md("report", "Mine.");
    assert_eq!(scene.put(TOKEN, "report", zipped(&[("SKILL.md", own.as_bytes())])).await.0, 201);
    assert_eq!(scene.listed(TOKEN).await, ["user/mine", "user/report"]);
    assert_eq!(scene.listed(&scene.ann).await, ["public/report"]);
    for name in ["report", "mine"] {
        let path = format!("/v1/skills/{name}");
        assert_eq!(scene.send(TOKEN, Method::DELETE, &path, Vec::new()).await, (204, String::new()));
    }
    assert_eq!(scene.listed(TOKEN).await, ["public/report"]);
    assert_eq!(scene.send(TOKEN, Method::DELETE, "/v1/skills/report", Vec::new()).await.0, 404, "not the operator's");
    scene.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_answer_in_the_texts_of_coderunner() {
    let scene = Scene::start().await;
    let list = "Available Skills:\n\nPublic Skills (1):\n  - report: Makes reports.\n\nUser Skills (0):\n  (none)\n\n\
                Use get_skill_info(skill_name) to read documentation for a specific skill.";
    assert_eq!(scene.tool("list_skills", json!({})).await, list);
    for (groups, is_listed) in [("coderunner", true), ("skills", true), ("ipybox", false)] {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).to_string();
        let listed = scene.server.post_to(&format!("?tools={groups}"), call).send().await.expect("an answer");
        let listed = listed.text().await.expect("text");
        for tool in ["list_skills", "get_skill_info", "get_skill_file"] {
            assert_eq!(listed.contains(&format!("\"{tool}\"")), is_listed, "{tool} in {groups}: {listed}");
        }
    }
    let rule = "=".repeat(80);
    let info = scene.tool("get_skill_info", json!({"skill_name": "report"})).await;
    let text = skill_md("report", "Makes reports.");
    assert_eq!(info, format!("Skill: report (public)\nLocation: /skills/public/report/\n{rule}\n\n{text}"));
    let file = json!({"skill_name": "report", "filename": "scripts/run.py"});
    let file = scene.tool("get_skill_file", file).await;
    let head = "Skill: report (public)\nFile: scripts/run.py\nLocation: /skills/public/report/\n";
    assert_eq!(file, format!("{head}{rule}\n\nprint(1)\n"));
    for (name, filename) in [("report", "gone"), ("gone", "SKILL.md"), ("../x", "a"), ("report", "../../x")] {
        let missing = scene.tool("get_skill_file", json!({"skill_name": name, "filename": filename})).await;
        let why = "Use list_skills() to see available skills.";
        assert_eq!(missing, format!("Error: File '{filename}' not found in skill '{name}'. {why}"));
    }
    scene.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn list_of_skills_that_is_cut_says_where_the_rest_is() {
    let scene = Scene::start().await;
    for number in 0..99 {
        let name = format!("s{number:03}");
        write(scene.root.path(), &format!("public/{name}/SKILL.md"), &skill_md(&name, &"é".repeat(1000)));
    }
    let list = scene.tool("list_skills", json!({})).await;
    assert!(list.contains("Public Skills (100):") && list.contains("- s098: ") && !list.contains("- s050: "), "{list}");
    assert!(list.contains("bytes are left out here: a program finds all skills in /skills …]"), "{list:.200}");
    assert!(list.ends_with("Use get_skill_info(skill_name) to read documentation for a specific skill."));
    scene.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_have_entries_with_digests_as_the_extension_says() {
    let scene = Scene::start().await;
    for number in 0..12 {
        let name = format!("s{number:02}");
        let text = format!("---\nname: {name}\ndescription: d\nmodel: any\n---\n");
        assert_eq!(scene.put(TOKEN, &name, zipped(&[("SKILL.md", text.as_bytes()), ("é", b"x")])).await.0, 201);
    }
    let first = scene.server.rpc("skills/list", json!({})).await;
    let entries = first["result"]["skills"].as_array().unwrap_or_else(|| panic!("{first}"));
    assert_eq!((entries.len(), &entries[0]["uri"]), (10, &json!("skill://public/report/SKILL.md")));
    let file = |uri: &str, bytes: &[u8]| {
        let digest = format!("sha256:{}", hex(&Sha256::digest(bytes)));
        json!({"uri": uri, "digest": digest, "size": bytes.len()})
    };
    let expected = json!({
        "uri": "skill://user/s00/SKILL.md",
        "frontmatter": {"name": "s00", "description": "d", "model": "any"},
        "resources": [
            file("skill://user/s00/SKILL.md", b"---\nname: s00\ndescription: d\nmodel: any\n---\n"),
            file("skill://user/s00/%C3%A9", b"x"),
        ],
    });
    assert_eq!(entries[1], expected);
    let cursor = &first["result"]["nextCursor"];
    let second = scene.server.rpc("skills/list", json!({"cursor": cursor})).await;
    assert_eq!(second["result"]["skills"].as_array().map(Vec::len), Some(3), "{second}");
    assert!(second["result"]["nextCursor"].is_null(), "{second}");
    let got = scene.server.rpc("skills/get", json!({"uri": "skill://user/s00/SKILL.md"})).await;
    assert_eq!(got["result"]["skill"], expected, "{got}");
    for uri in ["skill://public/s00/SKILL.md", "skill://user/report/SKILL.md", "skill://user/s00/%C3%A9", "file:///etc"]
    {
        let refused = scene.server.rpc("skills/get", json!({"uri": uri})).await;
        assert_eq!(refused["error"]["code"], -32602, "{uri}: {refused}");
    }
    scene.server.stop().await;
}

/// Whatever the files of skills are named.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_entries_are_no_longer_than_an_answer() {
    let scene = Scene::start().await;
    let upload = async |name: &str, folder: &str, count: u32, long: &str| {
        let text = skill_md(name, "d");
        let paths: Vec<_> = (0..count).map(|n| format!("{folder}{long}{n}")).collect();
        let mut files = vec![("SKILL.md", text.as_bytes())];
        files.extend(paths.iter().map(|path| (path.as_str(), &b"x"[..])));
        let (status, answer) = scene.put(TOKEN, name, zipped(&files)).await;
        assert_eq!(status, 201, "{name}: {answer}");
    };
    for name in ["a", "b", "c", "d"] {
        upload(name, "", 450, &"é".repeat(100)).await;
    }
    // Its entry alone is too long: as many files as there may be, with names nearly as long as they may be.
    let long = "é".repeat(120);
    upload("deep", &format!("{long}/"), 499, &long).await;
    let (mut params, mut names) = (json!({}), Vec::new());
    loop {
        let page = scene.server.rpc("skills/list", params).await;
        let bytes = page.to_string().len();
        assert!(bytes <= 700 << 10, "{bytes}");
        let entries = page["result"]["skills"].as_array().expect("skills");
        names.extend(entries.iter().map(|entry| entry["frontmatter"]["name"].as_str().expect("a name").to_owned()));
        if page["result"]["nextCursor"].is_null() {
            break;
        }
        params = json!({"cursor": page["result"]["nextCursor"]});
    }
    assert_eq!(names, ["report", "a", "b", "c", "d"]);
    let refused = scene.server.rpc("skills/get", json!({"uri": "skill://user/deep/SKILL.md"})).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    scene.server.stop().await;
}

/// A public skill is bounded by no upload. An entry without `SKILL.md` would make an error of the whole list.
#[tokio::test(flavor = "multi_thread")]
async fn skills_of_which_not_all_files_can_be_listed_have_no_entry() {
    let scene = Scene::start().await;
    let root = scene.root.path();
    for name in ["many", "deep"] {
        write(root, &format!("public/{name}/SKILL.md"), &skill_md(name, "d"));
    }
    for number in 0..500 {
        write(root, &format!("public/many/{number}"), "x");
    }
    write(root, &format!("public/deep/{}x", "d/".repeat(8)), "x");
    assert_eq!(scene.listed(TOKEN).await, ["public/deep", "public/many", "public/report"]);
    let page = scene.server.rpc("skills/list", json!({})).await;
    let entries = page["result"]["skills"].as_array().unwrap_or_else(|| panic!("{page}"));
    let uris: Vec<_> = entries.iter().map(|entry| &entry["uri"]).collect();
    assert_eq!(uris, ["skill://public/report/SKILL.md"]);
    for name in ["many", "deep"] {
        let refused = scene.server.rpc("skills/get", json!({"uri": format!("skill://public/{name}/SKILL.md")})).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    scene.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_are_resources_and_their_tools_are_listed_where_there_are_some() {
    let scene = Scene::start().await;
    let list = scene.server.rpc("resources/list", json!({})).await;
    assert_eq!(list["result"]["resources"][0]["uri"], "skill://public/report/SKILL.md", "{list}");
    let read = |uri: &'static str| scene.server.rpc("resources/read", json!({"uri": uri}));
    let script = read("skill://public/report/scripts/run.py").await;
    assert_eq!(script["result"]["contents"][0]["text"], "print(1)\n", "{script}");
    for uri in [
        "skill://public/report/gone",
        "skill://user/report/SKILL.md",
        "skill://public/report/%2e%2e/x",
        "skill://public/gone/SKILL.md",
        "skill://",
        "skill://report/SKILL.md",
    ] {
        assert!(read(uri).await["error"].is_object(), "{uri}");
    }
    let names = |list: &Value| list["result"]["tools"].to_string();
    assert!(names(&scene.server.rpc("tools/list", json!({})).await).contains("get_skill_file"));
    scene.server.stop().await;

    let without = FakeServer::start().await;
    assert!(!names(&without.rpc("tools/list", json!({})).await).contains("skill"));
    let answer = without.rpc("tools/call", json!({"name": "list_skills", "arguments": {}})).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    without.stop().await;
}
