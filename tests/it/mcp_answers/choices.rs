//! What clients choose that refuse links or pictures: the text has both as addresses.

use serde_json::{Value, json};

use super::{count, program, raw, text};
use crate::support::FakeServer;

const GIF: &str = "GIF89a\u{1}\u{1}\u{1}\u{1}end";

#[tokio::test(flavor = "multi_thread")]
async fn links_and_pictures_are_left_out_where_a_client_chooses_so() {
    let server = FakeServer::start().await;
    let call = async |query: &str, tool: &str, arguments: &Value| -> Value {
        let answer: Value = serde_json::from_str(&raw(&server, query, tool, arguments).await).expect("JSON");
        answer["result"].clone()
    };
    let write = json!({"conversationId": "c", "path": "b.txt", "content": "x"});
    let read = json!({"conversationId": "c", "path": "a.gif"});
    let urls = |result: &Value| text(result).matches("http://").count();
    let chosen = [("", 2, 1), ("?links=off", 0, 1), ("?images=off", 2, 0), ("?links=off&images=off", 0, 0)];
    for (query, links, images) in chosen {
        let code = format!("write a.gif {GIF}\nwrite b.txt x");
        let ran = call(query, "sandbox_run_code", &program(&code)).await;
        let shown = (count(&ran, "resource_link"), count(&ran, "image"), urls(&ran));
        assert_eq!(shown, (links, images, 2), "{query}: {ran}");
        let written = call(query, "sandbox_write_file", &write).await;
        let shown = (count(&written, "resource_link"), urls(&written));
        assert_eq!(shown, (links / 2, 1), "{query}: {written}");
        let seen = call(query, "sandbox_read_file", &read).await;
        assert_eq!((count(&seen, "image"), urls(&seen)), (images, 1 - images), "{query}: {seen}");
        assert!(!text(&seen).contains("base64"), "{query}: {seen}");
    }
    // A file that only has the name of a picture is read as what it is.
    let named = json!({"conversationId": "c", "path": "t.png", "content": "only text"});
    call("", "sandbox_write_file", &named).await;
    let seen = call("?images=off", "sandbox_read_file", &json!({"conversationId": "c", "path": "t.png"})).await;
    assert_eq!(text(&seen), "only text");
    // Wider than models take it: still a picture.
    std::fs::write(server.root.join("c/files/w.gif"), b"GIF89a\xff\xff\x01\0end").expect("written");
    let seen = call("?images=off", "sandbox_read_file", &json!({"conversationId": "c", "path": "w.gif"})).await;
    assert!(urls(&seen) == 1 && !text(&seen).contains("base64"), "{seen}");
    for query in ["?links=no", "?images="] {
        let refused = raw(&server, query, "sandbox_list_runners", &json!({})).await;
        assert!(refused.contains("-32600") && refused.contains("it must be `off` or `on`"), "{query}: {refused}");
    }
    server.stop().await;
}
