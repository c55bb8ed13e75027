//! What is deleted under a program's feet: the program keeps an empty place, and no way out of it.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{Server, server::TOKEN, until};

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
