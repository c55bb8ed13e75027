//! Programs in, output and links out, on real Docker, through the bare call of `tools/call`.

use serde_json::{Value, json};

use crate::support::{Server, until};

fn ended(result: &Value) -> &str {
    result["structuredContent"]["outcome"]["ended"].as_str().unwrap_or("(none)")
}

fn stdout(result: &Value) -> &str {
    result["structuredContent"]["stdout"].as_str().unwrap_or("(none)")
}

#[tokio::test(flavor = "multi_thread")]
async fn run_code_answers_hello_in_every_language() {
    let server = Server::start().await;
    for (language, code) in [
        ("python", "print(\"Hello!\")"),
        ("typescript", "const who: string = \"Hello!\"; console.log(who)"),
        ("javascript", "console.log('Hello!')"),
        ("bash", "echo 'Hello!'"),
        ("PY", "print('Hello!')"),
    ] {
        let result = server.run("test", language, code).await;
        assert_eq!(stdout(&result), "Hello!\n", "{language}: {result}");
        assert_eq!(result["isError"], false);
        assert_eq!(result["structuredContent"]["outcome"]["exitCode"], 0);
        let text = result["content"][0]["text"].as_str().expect("text");
        assert!(text.contains("Hello!"), "{text}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_program_is_a_result_with_its_own_traceback() {
    let server = Server::start().await;
    let result = server.run("test", "python", "x = 1\n\ndef f():\n    return 1 / 0\n\nf()\n").await;
    assert_eq!(result["isError"], true);
    assert_eq!(ended(&result), "exited");
    let stderr = result["structuredContent"]["stderr"].as_str().expect("stderr");
    assert!(stderr.contains("line 4, in f") && stderr.contains("ZeroDivisionError"), "{stderr}");
    assert!(!stderr.contains("runner"), "{stderr}");
    let result = server.run("test", "bash", "kill -SEGV $$").await;
    assert_eq!((ended(&result), &result["structuredContent"]["outcome"]["signal"]), ("signaled", &json!("SIGSEGV")));
    for code in [0, 1, 2, 77, 126, 127, 128, 255] {
        let result = server.run("test", "bash", &format!("exit {code}")).await;
        assert_eq!(result["structuredContent"]["outcome"]["exitCode"], code, "{result}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_picture_of_a_program_is_shown_smaller_and_linked_whole() {
    let server = Server::start().await;
    let code = "import numpy as np\nfrom PIL import Image\n\
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (1500, 1500, 3), np.uint8)).save('noise.png')";
    let result = server.run("picture", "python", code).await;
    let blocks = result["content"].as_array().expect("content");
    let kinds: Vec<_> = blocks.iter().map(|block| (block["type"].as_str(), block["mimeType"].as_str())).collect();
    let expected = [(Some("image"), Some("image/jpeg")), (Some("resource_link"), Some("image/png"))];
    assert_eq!(kinds[1..], expected, "{result:.500}");
    let text = blocks[0]["text"].as_str().expect("text");
    assert!(text.contains("[Pictures that are smaller here than their files: 1]"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn written_file_is_downloaded_by_link_without_token() {
    let server = Server::start().await;
    let code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'ÿ']}).to_csv('out.csv', index=False)";
    let result = server.run("files-1", "python", code).await;
    assert_eq!(result["isError"], false, "{result}");
    let file = &result["structuredContent"]["files"][0];
    assert_eq!((&file["path"], &file["change"]), (&json!("out.csv"), &json!("created")));
    let link = result["content"]
        .as_array()
        .and_then(|content| content.iter().find(|block| block["type"] == "resource_link"))
        .expect("a link");
    let url = link["uri"].as_str().expect("a URL");
    assert_eq!(link["uri"], file["url"]);
    let response = crate::support::http::get(url).await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let bytes = response.bytes().await.expect("bytes");
    let on_disk = std::fs::read(server.root.join("files-1/files/out.csv")).expect("the file");
    assert_eq!((&bytes[..], on_disk.as_slice()), ("a,b\n1,x\n2,ÿ\n".as_bytes(), "a,b\n1,x\n2,ÿ\n".as_bytes()));
    altered_links_are_refused(&server, url).await;
    // The next run sees the file and does not report it.
    let result = server.run("files-1", "bash", "cat out.csv | head -1; echo more > second.txt").await;
    assert_eq!(stdout(&result), "a,b\n");
    let files = result["structuredContent"]["files"].as_array().expect("files");
    let named: Vec<_> = files.iter().map(|f| (f["path"].as_str(), f["change"].as_str())).collect();
    assert_eq!(named, [(Some("second.txt"), Some("created"))]);
    // Another conversation sees none of it.
    let result = server.run("files-2", "bash", "ls -A").await;
    assert_eq!(stdout(&result), "");
    server.stop().await;
}

async fn altered_links_are_refused(server: &Server, url: &str) {
    let path = url.strip_prefix(&server.url("")).expect("our own address");
    let mut tried = 0;
    for at in 1..path.len() {
        for other in ['A', '0', '_'] {
            let mut altered: Vec<char> = path.chars().collect();
            if altered[at] == other {
                continue;
            }
            altered[at] = other;
            let altered: String = altered.into_iter().collect();
            if !altered.starts_with("/files/") {
                continue;
            }
            let response = server.http.get(server.url(&altered)).send().await.expect("an answer");
            assert_eq!(response.status(), 403, "{altered}");
            tried += 1;
        }
    }
    assert!(tried > 200, "only {tried} links were tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_figure_is_saved_and_shown() {
    let server = Server::start().await;
    let code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])";
    let result = server.run("chart", "python", code).await;
    assert_eq!(result["isError"], false, "{result}");
    let image = result["content"]
        .as_array()
        .and_then(|content| content.iter().find(|block| block["type"] == "image"))
        .expect("an image");
    assert_eq!(image["mimeType"], "image/png");
    assert!(image["data"].as_str().is_some_and(|data| data.starts_with("iVBOR")), "a PNG in base64");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_limit_ends_the_program_and_leaves_nothing() {
    // At 256 MiB the processes of a Python program can take all the memory before they reach their limit.
    let (none, memory) = (("SANDBOX_STANDBY__TOTAL_MAX", "0"), ("SANDBOX_LIMITS__MEMORY_BYTES", "536870912"));
    let server = Server::with(&[("SANDBOX_LIMITS__WALL_MS", "60000"), none, memory]).await;
    let run = async |language: &str, code: &str, seconds: u32| {
        let arguments =
            json!({"conversationId": "limits", "language": language, "code": code, "timeoutSeconds": seconds});
        server.call("sandbox.run_code", arguments).await
    };
    for (language, code, expected) in [
        ("python", "import time\nprint('first', flush=True)\ntime.sleep(1000)", "timed_out"),
        ("python", "import sys\nfor _ in range(50): sys.stdout.write('x' * 1048576)", "output_limit"),
        ("bash", "head -c 52428800 /dev/zero", "output_limit"),
        ("python", "import os\nwhile True: os.fork()", "process_limit"),
        ("bash", "f() { f | f & }; f; wait; while :; do f; done", "process_limit"),
        ("python", "x = []\nwhile True: x.append(bytearray(1 << 20))", "out_of_memory"),
        ("javascript", "const x = []; while (true) x.push(Buffer.alloc(1 << 20, 1))", "out_of_memory"),
        ("bash", "trap '' TERM INT HUP; (setsid sleep 1000 &); while :; do :; done", "timed_out"),
    ] {
        // Memory is filled in a time that depends on the machine.
        let seconds = if expected == "out_of_memory" { 60 } else { 5 };
        let result = run(language, code, seconds).await;
        assert_eq!(ended(&result), expected, "{code}: {result:.2000}");
        assert_eq!(result["isError"], true);
        server.janitor.idle().await;
        assert_eq!(server.containers().await, 0, "{code}");
    }
    let result = run("python", "import time\nprint('kept', flush=True)\ntime.sleep(1000)", 5).await;
    assert_eq!(stdout(&result), "kept\n", "what was printed before the end is kept");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_cancels_the_run() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox.run_code",
        "arguments": {"conversationId": "gone", "language": "bash", "code": "touch begun; sleep 1000"}}});
    let request =
        server.http.post(server.url("/mcp?structured=on")).bearer_auth(super::support::server::TOKEN).json(&call);
    let begun = server.root.join("gone/files/begun");
    tokio::select! {
        answer = request.send() => panic!("answered: {answer:?}"),
        () = until("the program runs", async || begun.exists()) => {}
    }
    // The request is dropped here, and with it the connection.
    until("the run holds no sandbox", async || server.janitor.leased() == 0).await;
    server.janitor.idle().await;
    assert_eq!(server.containers().await, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_contains_nothing_of_the_host() {
    let server = Server::start().await;
    let code = "id -u; id -g; env | sort; ls /sys/class/net; touch /x 2>&1; pwd; \
                grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status";
    let result = server.run("inside", "bash", code).await;
    let text = stdout(&result);
    let ids: Vec<&str> = text.lines().take(2).collect();
    assert!(ids[0] == ids[1] && !["", "0"].contains(&ids[0]), "{text}");
    assert!(text.contains("\nlo\n") && !text.contains("eth0"), "{text}");
    assert!(text.contains("Read-only file system") && text.contains("\n/data\n"), "{text}");
    for fact in ["CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(text.contains(fact), "{fact}: {text}");
    }
    for secret in [super::support::server::TOKEN, super::support::server::FILE_SECRET] {
        assert!(!result.to_string().contains(secret));
    }
    server.stop().await;
}
