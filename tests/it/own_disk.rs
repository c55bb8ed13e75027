//! Conversations on disks of their own: nothing overfills one, files without a name included, and none is left mounted.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use futures_util::{StreamExt as _, future::join_all, stream};
use reqwest::Body;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::support::{FakeServer, Server, process::Process, server::TOKEN, until};

const MIB: u64 = 1 << 20;
const OWN: [(&str, &str); 3] =
    [("SANDBOX_QUOTA__HARD", "true"), ("SANDBOX_QUOTA__BYTES_MAX", "33554432"), ("SANDBOX_QUOTA__ENTRIES_MAX", "500")];

/// Writes far more than is allowed to a file that it has removed, and says how far it came.
const UNSEEN: &str = "import os
f = os.open('x', os.O_CREAT | os.O_WRONLY)
os.unlink('x')
n = 0
try:
    while n < 100:
        n += os.write(f, bytes(1 << 20)) / (1 << 20)
except OSError as e:
    print(e.errno, int(n), flush=True)
";

/// What is mounted below a folder, by the kernel's own list.
fn mounted(root: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points.filter(|point| Path::new(point).starts_with(root)).map(str::to_owned).collect()
}

/// Loop devices whose image is below a folder.
fn devices(root: &Path) -> Vec<String> {
    let listed = Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output();
    let text = String::from_utf8(listed.expect("losetup").stdout).expect("text");
    text.lines().filter(|image| Path::new(image.trim()).starts_with(root)).map(str::to_owned).collect()
}

/// Asserts that nothing is mounted below a folder, and that no device remains. Any container that is being started
/// holds a copy of all mounts for a moment.
async fn left_alone(root: &Path) {
    assert_eq!(mounted(root), Vec::<String>::new());
    until("no loop device is left", async || devices(root).is_empty()).await;
}

/// What is mounted for a process that has a table of mounts of its own.
fn private_mounts(pid: u32) -> Option<String> {
    let table = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let own = table(&pid.to_string())? != table("self")?;
    own.then(|| fs::read_to_string(format!("/proc/{pid}/mounts")).ok()).flatten()
}

fn ended(result: &Value) -> &Value {
    &result["structuredContent"]["outcome"]["ended"]
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_cannot_exceed_their_disk_with_unlinked_files_or_names() {
    let server = Server::with(&OWN).await;
    let unseen = server.run("unseen", "python", UNSEEN).await;
    let printed = unseen["structuredContent"]["stdout"].as_str().expect("its output");
    // It either came to the end of its disk, or was seen to be over its quota before that.
    if ended(&unseen) != "disk_limit" {
        let (errno, written) = printed.trim().split_once(' ').expect("two numbers");
        assert!(errno == "28" && (32..40).contains(&written.parse::<u64>().expect("a number")), "{unseen}");
    }
    let image = fs::metadata(server.root.join("unseen/disk.ext4")).expect("an image");
    assert!(image.len() < 40 * MIB, "{} bytes can be held", image.len());
    // With the program its space is gone, on the host's disk too.
    server.settled().await;
    assert_eq!(server.run("unseen", "python", "print(1)").await["structuredContent"]["stdout"], "1\n");
    until("the space is given back", async || {
        fs::metadata(server.root.join("unseen/disk.ext4")).expect("an image").blocks() * 512 < MIB
    })
    .await;
    // One that goes on is stopped, though a walk would find nothing.
    let held = server.run("held", "python", &format!("{UNSEEN}import time; time.sleep(60)")).await;
    assert_eq!(ended(&held), "disk_limit", "{held}");
    let names = "import os\ntry:\n for i in range(5000): os.mkdir(str(i))\nexcept OSError as e: print(e.errno, i, \
                 flush=True)\nimport time; time.sleep(60)";
    let names = server.run("names", "python", names).await;
    assert_eq!(ended(&names), "disk_limit", "{names}");
    let made = fs::read_dir(server.root.join("names/files")).expect("a folder").count();
    assert!((400..700).contains(&made), "{made} of 500 names");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_operations_use_the_conversations_disk() {
    let server = Server::with(&OWN).await;
    let python = server.catalog.find(&"python".parse().expect("a language")).expect("a Python runner").image;
    server.run("warm-up", "python", "print(1)").await;
    until("a sandbox stands by without a conversation", async || server.standbys.standing_by(&python) >= 2).await;
    let taken = server.standbys.taken();
    // Where the conversation has no disk of its own, the kernel shows the path of its folder.
    let there = "print(open('/proc/self/mounts').read().count(' /data ext4 '))\n\
                 print('c/files' in open('/proc/self/mountinfo').read())\n\
                 open('made', 'w').write('by a program')";
    let first = server.run("c", "python", there).await;
    assert_eq!(first["structuredContent"]["stdout"], "1\nFalse\n", "{first}");
    assert_eq!(server.standbys.taken(), taken + 1, "a disk is assigned with its folder");
    assert_eq!(first["structuredContent"]["files"][0]["change"], "created");
    let url = first["structuredContent"]["files"][0]["url"].as_str().expect("a link");
    assert_eq!(server.http.get(url).send().await.expect("an answer").text().await.expect("text"), "by a program");
    let write = json!({"conversationId": "c", "path": "deep/down", "content": "by a client"});
    assert_eq!(server.call("sandbox.write_file", write).await["isError"], false);
    let second = server.run("c", "bash", "cat made deep/down; mkdir -p many/{1..99}; mv made moved").await;
    assert_eq!(second["structuredContent"]["stdout"], "by a programby a client");
    assert_eq!(second["structuredContent"]["files"][0]["path"], "moved");
    let delete = json!({"conversationId": "c", "path": "many"});
    assert_eq!(server.call("sandbox.delete_file", delete).await["isError"], false);
    // A file that was there before is found where people look for it.
    assert_eq!(fs::read_to_string(server.root.join("c/files/moved")).expect("the file"), "by a program");
    let full = json!({"conversationId": "c", "path": "big", "content": "x".repeat(7 << 20)});
    for _ in 0..6 {
        let mut full = full.clone();
        full["path"] = json!(uuid::Uuid::new_v4().to_string());
        server.call("sandbox.write_file", full).await;
    }
    let refused = server.call("sandbox.write_file", full).await;
    assert!(refused["content"][0]["text"].as_str().expect("a text").contains("32 MiB"), "{refused}");
    // Deleted it leaves neither a mount nor a device, whatever was in it.
    let gone =
        server.http.delete(server.url("/v1/conversations/c")).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(gone.status(), 204);
    server.settled().await;
    let of_c = |point: &String| point.ends_with("/c/disk");
    until("its disk is unmounted", async || !mounted(&server.root).iter().any(of_c)).await;
    assert!(!server.root.join("c").exists());
    let root = server.root.clone();
    server.stop().await;
    left_alone(&root).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_survive_a_crash_and_a_reboot() {
    let mut server = Process::start(&OWN).await;
    let url = server.url("/v1/runs");
    let run = async |conversation: &str, code: &str| -> Value {
        let body = json!({"conversationId": conversation, "language": "bash", "code": code, "wait": 60});
        let client = crate::support::http::client();
        let answer = client.post(&url).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
        let run: Value = answer.json().await.expect("JSON");
        run["result"].clone()
    };
    for conversation in ["crash", "boot"] {
        let made = run(conversation, "echo kept > kept; echo made").await;
        assert_eq!(made["stdout"], "made\n", "{made}");
    }
    server.crash();
    let root = server.root();
    assert_eq!(mounted(&root).iter().filter(|point| point.ends_with("/crash/disk")).count(), 1);
    // As after the machine was started again: nothing is mounted, and the disk was not unmounted in order.
    assert!(Command::new("umount").arg(root.join("boot/disk")).status().expect("umount").success());
    let unclean = Command::new("debugfs").args(["-w", "-R", "dirty"]).arg(root.join("boot/disk.ext4")).status();
    assert!(unclean.expect("debugfs").success());
    // One that was there before disks were asked for stays a plain folder.
    fs::create_dir_all(root.join("plain/files")).expect("a folder");
    fs::write(root.join("plain/files/kept"), "plain\n").expect("a file");
    server.start_again();
    server.ready().await;
    for (conversation, kept) in [("crash", "kept\n"), ("boot", "kept\n"), ("plain", "plain\n")] {
        let found = run(conversation, "cat kept; touch more").await;
        assert_eq!(found["stdout"], kept, "{found}");
    }
    assert!(!root.join("plain/disk").exists() && root.join("plain/files/more").exists());
    let (before, conversations) = (mounted(&root).len(), ["crash", "boot"]);
    assert!(before >= conversations.len(), "{before} are mounted");
    server.stop_and(async || left_alone(&root).await).await;
}

/// What a server or `doctor` says that may not mount: root, but as in a container.
fn output_without_mount_privilege(command: &str, root: &Path) -> String {
    let mut process = Command::new("setpriv");
    process.args([
        "--bounding-set=-sys_admin",
        "--inh-caps=-sys_admin",
        env!("CARGO_BIN_EXE_mcp-sandbox-server"),
        command,
    ]);
    process.env_clear().envs(OWN).env("SANDBOX_ROOT", root).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    // The default address may be that of a server that runs on this machine.
    process.env("MCP_HTTP_ADDR", "127.0.0.1:0").current_dir(std::env::temp_dir());
    process.env("MCP_API_TOKEN", TOKEN).env("FILE_SECRET", "another-secret-of-the-tests");
    let output = process.output().expect("setpriv");
    assert!(!output.status.success(), "{output:?}");
    [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat()
}

#[test]
fn missing_mount_privilege_is_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    for command in ["serve", "doctor"] {
        let said = output_without_mount_privilege(command, &root);
        assert!(said.contains("SANDBOX_QUOTA__HARD") && said.contains("as root"), "{said}");
    }
}

/// A folder that something is mounted on cannot be moved to the trash.
#[tokio::test(flavor = "multi_thread")]
async fn conversation_that_cannot_be_deleted_keeps_no_other() {
    let server = FakeServer::start().await;
    for (conversation, days) in [("stuck", 50), ("old", 40)] {
        let file = json!({"conversationId": conversation, "path": "a", "content": "kept"});
        assert_eq!(server.call("sandbox.write_file", file).await["isError"], false);
        server.used_ago(conversation, Duration::from_hours(24) * days);
    }
    let there = || ["stuck", "old"].map(|name| server.root.join(name).exists());
    let stuck = server.root.join("stuck");
    rustix::mount::mount_bind(&stuck, &stuck).expect("mounted");
    let round = server.retention.round().await;
    let after = there();
    rustix::mount::unmount(&stuck, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    assert_eq!((round, after), (Ok(1), [true, false]));
    assert_eq!((server.retention.round().await, there()), (Ok(1), [false, false]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_disk_is_unmounted_and_mounted_again_on_use() {
    let kept = [OWN.as_slice(), &[("SANDBOX_QUOTA__KEPT_UNUSED_S", "0")]].concat();
    let server = FakeServer::with(&kept).await;
    let write = |path: &str| json!({"conversationId": "c", "path": path, "content": "kept"});
    assert_eq!(server.call("sandbox.write_file", write("a")).await["isError"], false);
    assert_eq!(server.retention.round().await, Ok(0));
    assert_eq!(mounted(&server.root).len(), 1, "it was just used");
    server.used_ago("c", Duration::from_hours(1));
    let image = server.root.join("c/disk.ext4");
    let reader = fs::File::open(server.root.join("c/files/a")).expect("the file");
    assert_eq!(server.retention.round().await, Ok(0));
    assert_eq!(mounted(&server.root).len(), 1, "a file of it is open");
    drop(reader);
    assert_eq!(server.retention.round().await, Ok(0));
    left_alone(&server.root).await;
    // Many come back to it at once: it is mounted once.
    let read = json!({"conversationId": "c", "path": "a"});
    let reads = join_all((0..8).map(|_| server.call("sandbox.read_file", read.clone()))).await;
    assert!(reads.iter().all(|read| read["structuredContent"]["content"] == "kept"), "{reads:?}");
    assert_eq!((mounted(&server.root).len(), devices(&server.root).len()), (1, 1));
    // A sandbox that still has it when it is unmounted has the very disk that is mounted again.
    let mut holder = Command::new("unshare").args(["--mount", "sleep", "600"]).spawn().expect("unshare");
    until("it has the mount", async || private_mounts(holder.id()).is_some_and(|mounts| mounts.contains("/c/disk")))
        .await;
    server.used_ago("c", Duration::from_hours(1));
    assert_eq!(server.retention.round().await, Ok(0));
    assert_eq!((mounted(&server.root).len(), devices(&server.root).len()), (0, 1));
    assert_eq!(server.call("sandbox.write_file", write("b")).await["isError"], false);
    assert_eq!((mounted(&server.root).len(), devices(&server.root).len()), (1, 1));
    let seen = format!("/proc/{}/root{}", holder.id(), server.root.join("c/disk/files/b").display());
    assert_eq!(fs::read_to_string(seen).expect("the file"), "kept");
    holder.kill().expect("it is there");
    holder.wait().expect("it is gone");
    server.call("sandbox.delete_file", json!({"conversationId": "c", "path": "b"})).await;
    // It is unmounted again and again while files are written.
    let rounds = tokio::spawn({
        let (retention, root) = (Arc::clone(&server.retention), server.root.clone());
        let used_ago = move || fs::File::open(root.join("c/.mark")).and_then(|mark| mark.set_modified(UNIX_EPOCH));
        async move {
            for _ in 0..40 {
                used_ago().expect("a time");
                retention.round().await.expect("a round");
            }
        }
    });
    for n in 0..40 {
        let answer = server.call("sandbox.write_file", write(&format!("f-{n}"))).await;
        assert_eq!(answer["isError"], false, "{answer}");
    }
    rounds.await.expect("the rounds ended");
    let listed = server.call("sandbox.list_files", json!({"conversationId": "c"})).await;
    assert_eq!(listed["structuredContent"]["files"].as_array().expect("files").len(), 41, "{listed}");
    assert!(image.exists());
    server.stop().await;
}

/// The conversation has another disk then, and the deleted one is gone with the upload.
#[tokio::test(flavor = "multi_thread")]
async fn upload_whose_conversation_is_deleted_meanwhile_is_written_to_a_new_one() {
    let server = FakeServer::with(&OWN).await;
    let url = format!("http://{}/v1/conversations/c", server.address);
    let (deleted, is_deleted) = oneshot::channel();
    let last = stream::once(async move {
        is_deleted.await.expect("a deletion");
        Ok::<_, std::io::Error>(b"end".to_vec())
    });
    let body = Body::wrap_stream(stream::iter([Ok(vec![1_u8; 3 << 20])]).chain(last));
    let upload = server.http.put(format!("{url}/files/d/f")).bearer_auth(TOKEN).body(body).send();
    let delete = async {
        let incoming = server.root.join("c/disk/.incoming");
        until("the upload has begun", async || {
            fs::read_dir(&incoming)
                .is_ok_and(|names| names.flatten().any(|name| name.metadata().is_ok_and(|file| file.len() > 0)))
        })
        .await;
        let answer = server.http.delete(&url).bearer_auth(TOKEN).send().await.expect("an answer");
        deleted.send(()).expect("the upload goes on");
        answer.status()
    };
    let (uploaded, gone) = tokio::join!(upload, delete);
    assert_eq!((uploaded.expect("an answer").status().as_u16(), gone.as_u16()), (201, 204));
    let there = fs::read(server.root.join("c/disk/files/d/f")).expect("the file");
    assert!(there.len() == (3 << 20) + 3 && there.ends_with(b"end"), "{} bytes", there.len());
    until("the deleted disk is gone", async || devices(&server.root).len() == 1).await;
    let left = fs::read_dir(server.root.join("c/disk/.incoming")).expect("a folder").count();
    assert_eq!((mounted(&server.root).len(), left), (1, 0));
    let root = server.root.clone();
    server.stop().await;
    left_alone(&root).await;
}
