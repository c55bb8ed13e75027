//! A database in a file whose disk becomes read-only under a running server, a start on such a disk, and a start in a
//! folder in which no other file can be made.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use mcp_sandbox_server::{adapters::database::Database, app::StartError, domain::text::chain};
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;

use super::{ask, get, history, run};
use crate::{
    history::failing::{Disk, mount},
    support::{FakeServer, calls::metric, until},
};

/// A disk that the kernel makes read-only at its first error.
struct Ext4 {
    folder: TempDir,
    at: PathBuf,
}

impl Ext4 {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("disk");
        fs::create_dir(&at).expect("a folder");
        let disk = Self { folder, at };
        fs::File::create(disk.image()).and_then(|image| image.set_len(64 << 20)).expect("an image");
        let made = Command::new("mkfs.ext4").arg("-q").arg(disk.image()).status().expect("mkfs.ext4");
        assert!(made.success());
        disk.mount();
        disk
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn mount(&self) {
        mount(&["-o", "loop,errors=remount-ro", self.image().to_str().expect("text")], &self.at);
    }

    /// Reports an error to the kernel.
    fn fail(&self) {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let at = self.at.to_str().expect("text");
        let device = mounts.lines().find(|line| line.split(' ').nth(1) == Some(at)).expect("it is mounted");
        let device = device.split(' ').next().and_then(|device| device.strip_prefix("/dev/")).expect("a device");
        fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").expect("an error");
        fs::write(self.at.join("probe"), "x").expect_err("it is read-only");
    }

    /// What an operator does, who has stopped the server.
    fn repair(&self) {
        assert!(Command::new("umount").arg(&self.at).status().expect("umount").success(), "nothing has it open");
        // It says by its status that it changed something.
        drop(Command::new("e2fsck").arg("-fy").arg(self.image()).output().expect("e2fsck"));
        self.mount();
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.at).output());
    }
}

fn url(folder: &Path) -> String {
    format!("sqlite://{}/state.db", folder.display())
}

/// Runs go on with their keys, the server is ready, and a key that is not stored is counted.
async fn goes_on(server: &FakeServer) {
    let body = json!({"conversationId": "d", "language": "python", "code": "print once"});
    let (_, is_replayed, keyed) = ask(server, Method::POST, "/v1/runs", Some(body.clone()), "k").await;
    assert_eq!((is_replayed, &keyed["outcome"]["exitCode"]), (false, &json!(0)), "{keyed}");
    let (_, is_replayed, again) = ask(server, Method::POST, "/v1/runs", Some(body), "k").await;
    assert_eq!((is_replayed, &again["runId"]), (true, &keyed["runId"]), "known in memory");
    assert_eq!(metric(server, "sandbox_idempotency_keys_unstored_total").await, 1);
    let ready = server.http.get(format!("http://{}/readyz", server.address)).send().await.expect("an answer");
    assert_eq!(ready.status(), 200, "runs start without the database");
    let (status, _, why) = ask(server, Method::POST, "/v1/tokens", Some(json!({"name": "b"})), "").await;
    assert_eq!((status.as_u16(), &why["code"]), (503, &json!("database_unavailable")), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_on_a_disk_that_becomes_read_only_keeps_what_it_has() {
    let (folder, disk) = (tempfile::tempdir().expect("a folder"), Ext4::new());
    let (root, url) = (folder.path().join("root"), url(&disk.at));
    let server = FakeServer::again(&root, &[("DATABASE_URL", &url)]).await;
    let before = run(&server, "c", "print before").await;
    history(&server, "", 1).await;
    disk.fail();
    goes_on(&server).await;
    until("it is counted", async || metric(&server, "sandbox_history_errors_total").await > 0).await;
    let (status, page) = get(&server, "/v1/history").await;
    assert_eq!((status.as_u16(), &page["runs"][0]["runId"]), (200, &before["runId"]), "it is read as before: {page}");
    server.stop().await;

    let refused = Database::connect(&url).map(drop).expect_err("nothing can be stored there");
    let file = format!("{}/state.db", disk.at.display());
    let expected = format!("DATABASE_URL cannot be used: {file}: Read-only file system (os error 30)");
    assert_eq!(chain(&StartError::from(refused)), expected);

    disk.repair();
    let server = FakeServer::again(&root, &[("DATABASE_URL", &url)]).await;
    let (status, after) = get(&server, &format!("/v1/runs/{}", before["runId"].as_str().expect("an id"))).await;
    assert_eq!((status.as_u16(), &after["outcome"]), (200, &before["outcome"]), "{after}");
    run(&server, "c", "print after").await;
    history(&server, "conversation=c", 2).await;
    server.stop().await;
}

/// The file can be written, and no file beside it.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_in_a_read_only_folder_is_waited_for() {
    let (folder, disk) = (tempfile::tempdir().expect("a folder"), Disk::new());
    let (file, at) = (folder.path().join("state.db"), disk.0.path());
    for file in [&file, &at.join("state.db")] {
        fs::File::create(file).expect("a file");
    }
    mount(&["--bind", file.to_str().expect("text")], &at.join("state.db"));
    mount(&["-o", "remount,bind,ro"], at);
    let server = FakeServer::again(&folder.path().join("root"), &[("DATABASE_URL", &url(at))]).await;
    // Lines wait until there are tables for them.
    goes_on(&server).await;
    assert_eq!(get(&server, "/v1/history").await.1["code"], "database_unavailable");
    mount(&["-o", "remount,bind,rw"], at);
    until("it is prepared", async || get(&server, "/v1/history").await.0 == 200).await;
    history(&server, "", 1).await;
    server.stop().await;
}
