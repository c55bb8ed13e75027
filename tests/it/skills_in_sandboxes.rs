//! Skills in real sandboxes: our own do what they promise with the packages of the Python image, and each program sees
//! the public ones and its owner's, read-only, whether its sandbox stood by or not; so it sees the operator's folders.

use std::{
    fs,
    io::{Cursor, Write as _},
    path::{Path, PathBuf},
};

use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::support::{
    calls::{call, cell, create, get, open_session, request, streams},
    server::{Server, TOKEN},
    until,
};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() { copy(&entry.path(), &target) } else { drop(fs::copy(entry.path(), target)) }
    }
}

async fn server(more: &[(&str, &str)]) -> (Server, TempDir) {
    let root = tempfile::tempdir().expect("a folder");
    copy(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("skills"), &root.path().join("public"));
    let path = root.path().display().to_string();
    (Server::with(&[&[("SANDBOX_SKILLS__ROOT", path.as_str())], more].concat()).await, root)
}

/// What a Bash or Python program printed.
async fn printed(server: &Server, token: &str, conversation: &str, language: &str, code: &str) -> String {
    let body = json!({"conversationId": conversation, "language": language, "code": code});
    let (stdout, stderr) = streams(&call(server, token, Method::POST, "/v1/runs", body).await.1["result"]);
    stdout + stderr.as_str()
}

async fn upload(server: &Server, token: &str, name: &str, script: &str) {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, mode, text) in [
        ("SKILL.md", 0o644, format!("---\nname: {name}\ndescription: d\n---\n")),
        ("scripts/run.sh", 0o755, script.to_owned()),
    ] {
        zip.start_file(path, SimpleFileOptions::default().unix_permissions(mode)).expect("an entry");
        zip.write_all(text.as_bytes()).expect("written");
    }
    let zip = zip.finish().expect("a zip").into_inner();
    let put =
        request(server, token, Method::PUT, &format!("/v1/skills/{name}")).header("content-type", "application/zip");
    let answer = put.body(zip).send().await.expect("an answer");
    assert!(matches!(answer.status().as_u16(), 200 | 201), "{answer:?}");
}

async fn token_of(server: &Server, owner: &str) -> String {
    create(server, json!({"name": owner, "owner": owner, "scopes": ["run", "files"]})).await.1
}

/// Makes the inputs, runs each script as its SKILL.md says, and checks the results with other libraries.
const OURS: &str = r#"
import subprocess, sys, json
from reportlab.pdfgen.canvas import Canvas
from PIL import Image
import pypdf, openpyxl
c = Canvas("in.pdf")
for text in ("Draft of 2024 by Ann", "Draft, page two"):
    c.drawString(72, 700, text); c.showPage()
c.save()
picture = Image.new("RGB", (200, 100), "white"); picture.paste((255, 0, 0), (50, 20, 150, 80)); picture.save("in.png")
open("s.csv", "w").write("region,amount,when,odd\nnorth,10,2024-01-01,=1+1\nsouth,5,2024-01-02,x\n"
    "north,7,2024-01-03,\nwest,1000,2024-01-04,y\n")
def run(skill, script, *more):
    path = f"/skills/public/{skill}/scripts/{script}"
    done = subprocess.run([sys.executable, path, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
def texts(path):
    return [page.extract_text().strip() for page in pypdf.PdfReader(path).pages]
out = run("pdf-text-replace", "replace_text.py", "in.pdf", "out.pdf", "--replace", "Draft", "Final",
    "--replace", "2024", "2025", "--pages", "1")
assert out == "'Draft': 1 rewritten, 0 covered\n'2024': 1 rewritten, 0 covered\n", out
assert texts("out.pdf") == ["Final of 2025 by Ann", "Draft, page two"], texts("out.pdf")
out = run("pdf-text-replace", "replace_text.py", "in.pdf", "out.pdf", "--replace", "Ann", "Ωmega")
assert "0 rewritten, 1 covered" in out and "mega" in texts("out.pdf")[0], out
run("image-crop-rotate", "edit_image.py", "in.png", "o1.png", "--rotate", "90", "--trim")
assert Image.open("o1.png").size == (60, 100)
run("image-crop-rotate", "edit_image.py", "in.png", "o2.jpg", "--rotate", "10", "--aspect", "1:1", "--max-size", "50")
assert Image.open("o2.jpg").size == (50, 50)
run("image-crop-rotate", "edit_image.py", "in.png", "o3.png", "--crop", "25%,20%,75%,80%")
assert Image.open("o3.png").getcolors() == [(6000, (255, 0, 0))]
clear = Image.new("P", (4, 2)); clear.putpalette([255, 0, 0, 0, 0, 255]); clear.putpixel((0, 0), 1)
clear.save("clear.png", transparency=1)
run("image-crop-rotate", "edit_image.py", "clear.png", "o4.png", "--rotate", "90")
turned = Image.open("o4.png").convert("RGBA")
assert [turned.getpixel(at)[3] for at in ((0, 0), (1, 0), (1, 3))] == [255, 0, 255]
out = run("spreadsheet-report", "make_report.py", "s.csv", "r.xlsx", "--group", "region", "--value", "amount")
assert "west     1000" in out, out
book = openpyxl.load_workbook("r.xlsx")
rows = [[cell.value for cell in row] for row in book["Summary"]["A4:B7"]]
assert rows == [["west", 1000], ["north", 17], ["south", 5], ["Total", "=SUM(B4:B6)"]], rows
assert len(book["Summary"]._charts) == 1 and book["Data"]["D2"].data_type == "s"
out = run("data-profile", "profile_data.py", "s.csv", "--out", "p")
profile = json.load(open("p.json"))
assert profile["rows"] == 4 and profile["columns"]["when"]["looks_like"] == "date", profile
assert profile["columns"]["amount"]["outliers"] == 1 and profile["columns"]["odd"]["missing"] == 1, profile
for name, text in (("one.csv", "total\n3\n5\n"), ("two.csv", "total;note\n3;a, b\n5;c\n")):
    open(name, "w").write(text)
    run("data-profile", "profile_data.py", name, "--out", "p")
    profile = json.load(open("p.json"))
    assert profile["columns"]["total"]["max"] == 5 and len(profile["columns"]) == name.count("two") + 1, profile
print("all four")
"#;

#[tokio::test(flavor = "multi_thread")]
async fn our_skills_do_what_they_promise_in_a_sandbox() {
    let (server, _root) = server(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let list = get(&server, "/v1/skills").await;
    let names: Vec<_> = list["skills"].as_array().expect("skills").iter().map(|skill| &skill["name"]).collect();
    assert_eq!(names, ["data-profile", "image-crop-rotate", "pdf-text-replace", "spreadsheet-report"]);
    assert_eq!(printed(&server, TOKEN, "c", "python", OURS).await, "all four\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_see_public_skills_and_their_owners_and_change_none() {
    let (server, root) = server(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let ann = token_of(&server, "ann").await;
    upload(&server, &ann, "hers", "#!/bin/sh\necho hers\n").await;
    upload(&server, TOKEN, "mine", "#!/bin/sh\necho mine\n").await;
    let look = "ls /skills /skills/user; /skills/user/*/scripts/run.sh; ls /skills/public | wc -l\n";
    let expected = |name: &str| format!("/skills:\npublic\nuser\n\n/skills/user:\n{name}\n{name}\n4\n");
    assert_eq!(printed(&server, TOKEN, "c", "bash", look).await, expected("mine"));
    assert_eq!(printed(&server, &ann, "c", "bash", look).await, expected("hers"));
    let attack = "for f in /skills/user /skills/public /skills /skills/user/mine; do touch $f/x 2>&1; \
                  rm -rf $f/* 2>&1; mount -o remount,rw $f 2>&1; done; chmod -R 777 /skills 2>&1; \
                  ls /skills/user/../../ann 2>&1; true\n";
    let words = printed(&server, TOKEN, "c", "bash", attack).await;
    assert!(words.contains("Read-only file system"), "{words}");
    assert!(root.path().join("default/mine/SKILL.md").exists() && root.path().join("public/data-profile").exists());
    assert!(!root.path().join("default/x").exists() && !words.contains("hers"), "{words}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standbys_show_the_skills_of_the_owner_who_takes_them() {
    let more = [("SANDBOX_STANDBY__TOTAL_MAX", "4"), ("SANDBOX_STANDBY__NAMELESS_MAX", "1")];
    let (server, _root) = server(&more).await;
    let look = "cat /skills/user/*/scripts/run.sh 2>/dev/null; ls /skills/public | wc -l\n";
    assert_eq!(printed(&server, TOKEN, "first", "bash", look).await, "4\n");
    let bash = server.catalog.get(&"bash".parse().expect("a language")).expect("bash").image;
    let stands = async || server.standbys.standing_by(&bash) >= 2;
    until("one stands by for the conversation and one for any", stands).await;
    // The conversation's own one has the folder of its owner, in which the skill appears.
    upload(&server, TOKEN, "mine", "mine\n").await;
    assert_eq!(printed(&server, TOKEN, "first", "bash", look).await, "mine\n4\n");
    // The one for any conversation has not, and so serves only owners without skills.
    until("they stand by again", stands).await;
    let taken = server.standbys.taken();
    assert_eq!(printed(&server, TOKEN, "second", "bash", look).await, "mine\n4\n");
    assert_eq!(server.standbys.taken(), taken);
    until("they stand by again", stands).await;
    let ann = token_of(&server, "ann").await;
    assert_eq!(printed(&server, &ann, "first", "bash", look).await, "4\n");
    assert_eq!(server.standbys.taken(), taken + 1);
    server.stop().await;
}

/// Folders of the operator, of which some are an owner's: without a standby, by one of the conversation and by one of
/// none, and in what models are told.
#[tokio::test(flavor = "multi_thread")]
async fn shared_folders_of_owners_are_seen_by_them_alone() {
    let folders = tempfile::tempdir().expect("a folder");
    let [all, hers] = ["all", "hers"].map(|name| {
        let path = folders.path().join(name);
        fs::create_dir_all(path.join(name)).expect("a folder");
        path.display().to_string()
    });
    let hers = format!("{hers}:ro@ann,carl");
    let more = [("SANDBOX_MOUNTS__ALL", all.as_str()), ("SANDBOX_MOUNTS__HERS", &hers)];
    let standbys = [("SANDBOX_STANDBY__TOTAL_MAX", "4"), ("SANDBOX_STANDBY__NAMELESS_MAX", "1")];
    let server = Server::with(&[more, standbys].concat()).await;
    let ann = token_of(&server, "ann").await;
    let look = "ls /mnt/all /mnt/hers 2>/dev/null | xargs\n";
    let bash = server.catalog.get(&"bash".parse().expect("a language")).expect("bash").image;
    let stands = async || server.standbys.standing_by(&bash) >= 2;
    for (conversation, name) in [("first", "alone"), ("first", "by the conversation's"), ("second", "by none's")] {
        let seen = (
            printed(&server, TOKEN, conversation, "bash", look).await,
            printed(&server, &ann, conversation, "bash", look).await,
        );
        assert_eq!(seen, ("/mnt/all: all\n".to_owned(), "/mnt/all: all /mnt/hers: hers\n".to_owned()), "{name}");
        until("two stand by", stands).await;
    }
    // A session begins afresh for the first, and a kernel is started ahead, which shows the second owner too little.
    for (token, seen) in [(TOKEN, "/mnt/all: all"), (ann.as_str(), "/mnt/all: all /mnt/hers: hers")] {
        let session = open_session(&server, token, json!({"conversationId": "third", "language": "bash"})).await;
        assert_eq!(streams(&cell(&server, token, &session, look.trim()).await).0.trim(), seen);
        let waits = async || get(&server, "/readyz").await["standbys"]["bash"]["kernel"] == 1;
        until("a kernel waits", waits).await;
    }
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    for (token, is_told) in [(TOKEN, false), (ann.as_str(), true)] {
        let request = server.http.post(server.url("/mcp")).bearer_auth(token).body(list.clone());
        let request = request.header("content-type", "application/json");
        let answer = request.header("accept", "application/json, text/event-stream").send().await.expect("an answer");
        let told = answer.text().await.expect("text");
        assert!(told.contains("/mnt/all (read-only)"), "{told}");
        assert_eq!(told.contains("/mnt/hers"), is_told, "{told}");
    }
    server.stop().await;
}
