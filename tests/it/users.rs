//! The users that programs run as: each conversation has its own, and what the kernel counts for a user is not shared.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use serde_json::{Value, json};

use crate::support::{Server, server::TOKEN, until};

/// Who runs, and what it can do with the files that are there.
const WHO: &str = r#"id -u; id -un; eval echo "~$(id -un)"; echo program >> file && stat -c %u file"#;

/// Takes inotify instances, in as many processes as necessary, until the kernel refuses one, and holds them.
const TAKE_ALL: &str = "import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
per_user = int(open('/proc/sys/fs/inotify/max_user_instances').read())
taken = 0
while taken <= per_user:
    reading, writing = os.pipe()
    if os.fork() == 0:
        mine = 0
        while mine < 900 and libc.inotify_init() >= 0:
            mine += 1
        os.write(writing, b'%d' % mine)
        time.sleep(600)
    mine = int(os.read(reading, 9))
    taken += mine
    if mine < 900:
        break
print(taken, per_user, flush=True)
open('taken', 'w').close()
while not os.path.exists('/data/enough'):
    time.sleep(0.05)
os.killpg(0, signal.SIGKILL)
";

/// Takes one.
const TAKE_ONE: &str = "import ctypes
print(ctypes.CDLL(None).inotify_init() >= 0)
";

fn lines(result: &Value) -> Vec<String> {
    assert_eq!(result["isError"], false, "{result}");
    result["structuredContent"]["stdout"].as_str().expect("text").lines().map(str::to_owned).collect()
}

fn owner(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").uid()
}

async fn upload(server: &Server, conversation: &str) {
    let url = server.url(&format!("/v1/conversations/{conversation}/files/file"));
    let answer = server.http.put(url).bearer_auth(TOKEN).body("client\n").send().await.expect("an answer");
    assert!(answer.status().is_success(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_conversation_has_a_user_that_stays_and_owns_its_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let settings = [("SANDBOX_ROOT", root.to_str().expect("text"))];
    let server = Server::with(&settings).await;
    upload(&server, "one").await;
    let mut seen = Vec::new();
    for conversation in ["one", "other"] {
        let told = lines(&server.run(conversation, "bash", WHO).await);
        let uid: u32 = told[0].parse().expect("a number");
        assert!((70_000..=70_999).contains(&uid), "{told:?}");
        let known = [format!("sandbox{uid}"), "/tmp".to_owned(), uid.to_string()];
        assert_eq!(told[1..], known, "its name and home in the image, and who owns its files");
        assert_eq!(owner(&root.join(conversation).join("files")), uid);
        seen.push(told);
    }
    assert_ne!(seen[0][0], seen[1][0]);
    server.stop().await;

    let server = Server::with(&settings).await;
    for (conversation, told) in ["one", "other"].iter().zip(&seen) {
        assert_eq!(&lines(&server.run(conversation, "bash", WHO).await), told);
    }
    let text = fs::read_to_string(root.join("one/files/file")).expect("the file");
    assert_eq!(text, "client\nprogram\nprogram\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_that_began_with_one_user_for_all_keeps_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let place = ("SANDBOX_ROOT", root.to_str().expect("text"));
    let server = Server::with(&[place, ("SANDBOX_ENGINE__RUNNER_UIDS", "off")]).await;
    assert_eq!(lines(&server.run("old", "bash", WHO).await), ["1000", "sandbox", "/tmp", "1000"]);
    server.stop().await;
    let server = Server::with(&[place]).await;
    assert_eq!(lines(&server.run("old", "bash", WHO).await), ["1000", "sandbox", "/tmp", "1000"]);
    server.stop().await;
    let moved = Server::with(&[place, ("SANDBOX_ENGINE__RUNNER_UID", "1001")]).await;
    let told = lines(&moved.run("old", "bash", "id -u; echo more >> file && stat -c %u file").await);
    assert!(told[0] != "1000" && told[0] == told[1], "the files follow the setting: {told:?}");
    moved.stop().await;
}

/// Whether a program gets an inotify instance while one of another conversation has taken all that it can.
async fn neighbour_gets_one(range: &str) -> String {
    let wall = ("SANDBOX_LIMITS__WALL_MS", "120000");
    let settings = [("SANDBOX_STANDBY__TOTAL_MAX", "0"), ("SANDBOX_ENGINE__RUNNER_UIDS", range), wall];
    let server = Server::with(&settings).await;
    let taken = server.root.join("greedy/files/taken");
    let neighbour = async {
        until("all instances are taken", async || taken.exists()).await;
        let told = lines(&server.run("calm", "python", TAKE_ONE).await);
        fs::write(server.root.join("greedy/files/enough"), "").expect("written");
        told.concat()
    };
    let (_, told) = tokio::join!(server.run("greedy", "python", TAKE_ALL), neighbour);
    server.stop().await;
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbour_that_takes_all_inotify_instances_hinders_only_itself() {
    assert_eq!(neighbour_gets_one("off").await, "False", "with one user for all, so the test means something");
    assert_eq!(neighbour_gets_one("").await, "True");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_runs_as_the_user_of_its_conversation() {
    let server = Server::start().await;
    let post = async |path: &str, body: Value| -> Value {
        let request = server.http.post(server.url(path)).bearer_auth(TOKEN).json(&body);
        request.send().await.expect("an answer").json().await.expect("JSON")
    };
    let session = post("/v1/sessions", json!({"conversationId": "kept", "language": "python"})).await;
    let path = format!("/v1/sessions/{}/cells", session["sessionId"].as_str().expect("an id"));
    let told = post(&path, json!({"code": "import os; print(os.getuid())"})).await;
    let told = told["result"]["stdout"].as_str().expect("text").trim().to_owned();
    assert_eq!(told, owner(&server.root.join("kept/files")).to_string());
    assert_eq!(lines(&server.run("kept", "bash", "id -u").await), [told]);
    server.stop().await;
}
