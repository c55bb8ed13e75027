//! What is deleted under a program's feet: the program keeps an empty place, and no way out of it. What is deleted
//! during a round of retention: it counts no more.

use std::{fs, io, path::PathBuf, time::Duration};

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{FakeServer, Server, server::TOKEN, until};

/// Deletes a conversation, as another process on the same root does, when the log says that one was deleted.
#[derive(Clone)]
struct DeletesNext(PathBuf);

impl io::Write for DeletesNext {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if String::from_utf8_lossy(line).contains("a conversation was deleted") && self.0.exists() {
            fs::remove_dir_all(&self.0)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// On one thread, so that everything is logged there.
#[tokio::test]
async fn conversation_that_is_deleted_during_a_round_of_retention_does_not_count_in_it() {
    let server = FakeServer::with(&[("SANDBOX_QUOTA__TOTAL_BYTES_MAX", "1048576")]).await;
    let names = ["oldest", "older", "old", "new"];
    for name in names {
        let url = format!("http://{}/v1/conversations/{name}/files/f", server.address);
        let put = server.http.put(url).bearer_auth(TOKEN).header("content-type", "application/octet-stream");
        let answer = put.body(vec![1; 400 << 10]).send().await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::CREATED);
    }
    for (name, days) in [("oldest", 9), ("older", 8), ("old", 7)] {
        server.used_ago(name, Duration::from_hours(24 * days));
    }
    let writer = DeletesNext(server.root.join("new"));
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(move || writer.clone());
    let guard = tracing::subscriber::set_default(log.finish());
    assert_eq!(server.retention.round().await, Ok(1));
    drop(guard);
    assert_eq!(names.map(|name| server.root.join(name).exists()), [false, true, true, false]);
    server.stop().await;
}

/// A deleted folder is moved out of the program's mount while it is the program's working directory: the kernel must
/// not let the program ascend from there.
#[tokio::test(flavor = "multi_thread")]
async fn program_cannot_leave_its_mount_when_its_folder_is_deleted() {
    let server = Server::start().await;
    let climb = "import os,time\n\
        os.makedirs('d/e')\n\
        for i in range(4000): open(f'd/f{i}','w').close()\n\
        os.chdir('d/e')\n\
        open('/data/ready','w').close()\n\
        seen=set(); cut=0; end=time.time()+25\n\
        while cut<300 and time.time()<end:\n \
         for up in ('..','../..','../../..','../../../..'):\n  \
          try: seen.update(os.listdir(up))\n  \
          except OSError: cut+=up=='..'\n\
        inside={'d','e','ready'}|{f'f{i}' for i in range(4000)}\n\
        root=set(os.listdir('/'))\n\
        print(cut>=300, sorted(seen-inside-root))";
    let folder = server.root.join("climb/files");
    let delete = async {
        until("it stands in the folder", async || folder.join("ready").exists()).await;
        let url = server.url("/v1/conversations/climb/files/d");
        server.http.delete(url).bearer_auth(TOKEN).send().await.expect("an answer").status()
    };
    let (result, status) = tokio::join!(server.run("climb", "python", climb), delete);
    assert_eq!(status, StatusCode::NO_CONTENT);
    let content = &result["structuredContent"];
    assert_eq!(content["stdout"], "True []\n", "{result}");
    assert_eq!(content["files"].as_array().expect("files").len(), 1, "{result}");
    let gone = server.call("sandbox.read_file", json!({"conversationId": "climb", "path": "d/f1"})).await;
    assert_eq!(gone["isError"], true);
    until("the trash is empty", async || {
        std::fs::read_dir(server.root.join(".trash")).expect("a folder").next().is_none()
    })
    .await;
    server.stop().await;
}
