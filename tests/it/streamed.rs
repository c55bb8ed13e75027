//! Sandboxes with a `/data` of their own, on the real engine: a program finds the conversation's files, and what it
//! changed is in the conversation when its run or cell has ended.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::support::{
    Server,
    calls::{get, post},
    cluster::has_servers,
    images::Image,
    server::TOKEN,
    socket::Socket,
    sse::Events,
    until::until,
};

const STREAMED: (&str, &str) = ("SANDBOX_ENGINE__FILES", "streamed");

async fn upload(server: &Server, conversation: &str, name: &str, bytes: impl Into<reqwest::Body>) {
    let url = server.url(&format!("/v1/conversations/{conversation}/files/{name}"));
    let answer = server.http.put(url).bearer_auth(TOKEN).body(bytes).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{answer:?}");
}

/// A program, with its limits; the result.
async fn run(server: &Server, conversation: &str, code: &str, limits: Value) -> Value {
    let body = json!({"conversationId": conversation, "language": "bash", "code": code, "limits": limits});
    let run = post(server, "/v1/runs", body).await;
    assert!(run["result"].is_object(), "{run}");
    run["result"].clone()
}

async fn output(server: &Server, conversation: &str, code: &str) -> String {
    let result = run(server, conversation, code, json!({})).await;
    assert_eq!(result["outcome"]["ended"], "exited", "{result}");
    result["stdout"].as_str().expect("text").to_owned()
}

fn changes(result: &Value) -> Vec<(&str, &str)> {
    let text = |file: &'_ Value, name| file[name].as_str().expect("text").to_owned().leak() as &str;
    let files = result["files"].as_array().expect("files").iter();
    files.map(|file| (text(file, "path"), text(file, "change"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn program_finds_the_files_and_its_changes_are_kept() {
    let server = Server::with(&[STREAMED]).await;
    upload(&server, "c", "in/a.txt", "one\n").await;
    upload(&server, "c", "gone.txt", "x").await;
    let code = "df --output=fstype /data | tail -1; cat in/a.txt; echo two >> in/a.txt; rm gone.txt; mkdir -p out/deep
        printf '\\0\\377' > out/deep/b.bin; echo '#!/bin/sh' > tool; chmod 755 tool; touch -d @1000000000 old
        ln -s tool link";
    let result = run(&server, "c", code, json!({})).await;
    let stdout = result["stdout"].as_str().expect("text");
    // On a cluster it is a folder on the disk of the node.
    assert!(stdout == "tmpfs\none\n" || (has_servers() && stdout.ends_with("\none\n")), "{result}");
    assert!(result["stderr"].as_str().is_some_and(|text| text.contains("Left out of /data: 1 links")), "{result}");
    let expected = [("in/a.txt", "changed"), ("old", "created"), ("out/deep/b.bin", "created"), ("tool", "created")];
    assert_eq!(changes(&result), expected);
    let files = server.root.join("c/files");
    assert_eq!(fs::read_to_string(files.join("in/a.txt")).expect("a file"), "one\ntwo\n");
    assert_eq!(fs::read(files.join("out/deep/b.bin")).expect("a file"), [0, 0xff]);
    assert_eq!(fs::metadata(files.join("tool")).expect("a file").permissions().mode() & 0o777, 0o755);
    assert!(!files.join("gone.txt").exists() && !files.join("link").exists());

    let again = "ls -R; stat -c %Y old; ./tool; cat in/a.txt";
    let seen = output(&server, "c", again).await;
    assert!(seen.contains("1000000000\none\ntwo\n") && seen.contains("b.bin") && !seen.contains("gone"), "{seen}");
    assert_eq!(changes(&run(&server, "c", "cat old", json!({})).await)[0].1, "unchanged", "nothing was changed");
    assert_eq!(output(&server, "other", "ls -A").await, "", "another conversation has none of it");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_kept_however_the_program_ends() {
    let server = Server::with(&[STREAMED]).await;
    for (name, code, ended) in [
        ("late", "echo kept > late; sleep 100", "timed_out"),
        ("signal", "echo kept > signal; kill -9 $$", "signaled"),
        ("noisy", "echo kept > noisy; yes", "output_limit"),
        ("memory", "echo kept > memory; tail /dev/zero", "out_of_memory"),
        ("child", "echo kept > child; (sleep 100; echo late > child) & disown", "exited"),
        ("shut", "echo kept > shut; chmod 0 /data", "exited"),
        ("closed", "mkdir -m 700 d; echo kept > closed; mv closed d; chmod 0 d/closed d", "exited"),
    ] {
        // Memory is filled in a time that depends on the machine.
        let wall_ms = if ended == "timed_out" { 8000 } else { 30_000 };
        let result = run(&server, name, code, json!({"wallMs": wall_ms, "outputBytesMax": 100_000})).await;
        assert_eq!(result["outcome"]["ended"], ended, "{result}");
        let kept = output(
            &server,
            name,
            &format!("chmod 700 d 2>/dev/null; chmod 700 d/* 2>/dev/null; cat {name} d/* 2>/dev/null || true"),
        )
        .await;
        assert_eq!(kept, "kept\n", "{name}: {result}");
    }
    // Process 1 reads no signal while the program does not read its input.
    let body = json!({"conversationId": "unread", "language": "bash", "code": "echo kept > unread; sleep 100",
        "stdin": "x".repeat(1_000_000), "limits": {"wallMs": 5000}});
    let run = post(&server, "/v1/runs", body).await;
    assert_eq!(run["result"]["outcome"]["ended"], "timed_out", "{run}");
    assert_eq!(output(&server, "unread", "cat unread").await, "kept\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_whose_sandbox_was_killed_says_that_its_files_are_lost() {
    let server = Server::with(&[STREAMED]).await;
    let code = "echo lost > a; echo there; sleep 100";
    let run =
        post(&server, "/v1/runs", json!({"conversationId": "c", "language": "bash", "code": code, "wait": 0})).await;
    let run = run["runId"].as_str().unwrap_or_else(|| panic!("{run}"));
    let mut events = Events::open(&server.http, &server.url(""), run).await;
    events.printed("there").await;
    let run = format!("/v1/runs/{run}");
    for sandbox in server.sandboxes().await {
        server.engine.kill(sandbox).await.expect("killed");
    }
    let mut told = Value::Null;
    until("it is over", async || {
        told = get(&server, &run).await;
        told["state"] != "running"
    })
    .await;
    let is_told = told.to_string().contains("engine_lost") || told.to_string().contains("changes are lost");
    assert!(is_told, "{told}");
    assert_eq!(output(&server, "c", "ls").await, "", "nothing of it is there");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_sizes_of_all_kinds_travel_both_ways() {
    let server = Server::with(&[STREAMED]).await;
    let make = "import os
names = [b'n' * 255, bytes(range(1, 47)), bytes(range(48, 128)), bytes(range(128, 256)), b' ', b'-rf', b'...']
for size, name in enumerate(names):
    open(name, 'wb').write(bytes([size]) * size * 70001)
deep = b'/'.join([b'd' * 60] * 30)
os.makedirs(deep)
open(deep + b'/' + b'x' * 255, 'wb').write(b'deep')
";
    let look = "import hashlib, os
seen = hashlib.sha256()
for folder, folders, files in os.walk(b'.'):
    folders.sort()
    for name in sorted(files):
        path = os.path.join(folder, name)
        seen.update(path + b'\\0' + open(path, 'rb').read())
print(seen.hexdigest())
";
    let first = server.run("c", "python", &format!("{make}{look}")).await;
    let second = server.run("c", "python", look).await;
    let text = |result: &Value| result["structuredContent"]["stdout"].as_str().expect("text").to_owned();
    assert_eq!(first["isError"], false, "{first}");
    assert_eq!((text(&first), text(&first).len()), (text(&second), 65));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn room_and_quota_hold() {
    let quota = ("SANDBOX_QUOTA__BYTES_MAX", "12000000");
    let server = Server::with(&[STREAMED, ("SANDBOX_ENGINE__STREAMED_BYTES", "16777216"), quota]).await;
    let result = run(&server, "c", "head -c 20M /dev/zero > big; stat -c %s big", json!({})).await;
    assert!(result["stderr"].as_str().is_some_and(|text| text.contains("No space left")), "{result}");
    assert_eq!(result["outcome"]["ended"], "disk_limit", "{result}");
    assert!(!server.root.join("c/files/big").exists());
    // Beside it stands what fits.
    let result = run(&server, "c", "echo kept > a; head -c 13M /dev/zero > z", json!({})).await;
    assert_eq!(result["outcome"]["ended"], "disk_limit", "{result}");
    assert_eq!(output(&server, "c", "ls; cat a").await, "a\nkept\n");
    server.stop().await;

    let server = Server::with(&[STREAMED, ("SANDBOX_ENGINE__STREAMED_BYTES", "2097152")]).await;
    upload(&server, "c", "large", vec![0; 3 << 20]).await;
    let body = json!({"conversationId": "c", "language": "bash", "code": "echo never"});
    let refused = post(&server, "/v1/runs", body).await;
    assert!(refused.to_string().contains("SANDBOX_ENGINE__STREAMED_BYTES"), "{refused}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_could_not_store_comes_once_there_is_room() {
    let server = Server::with(&[STREAMED, ("SANDBOX_QUOTA__BYTES_MAX", "12000000")]).await;
    let session = post(&server, "/v1/sessions", json!({"conversationId": "c", "language": "bash"})).await;
    let cells = format!("/v1/sessions/{}/cells", session["sessionId"].as_str().unwrap_or_else(|| panic!("{session}")));
    for (code, ended) in [("head -c 13M /dev/zero > big; echo kept > z", "disk_limit"), ("rm big", "exited")] {
        let cell = post(&server, &cells, json!({"code": code})).await;
        assert_eq!(cell["result"]["outcome"]["ended"], ended, "{cell}");
    }
    assert_eq!(output(&server, "c", "ls; cat z").await, "z\nkept\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_and_runs_and_clients_see_each_others_files() {
    let server = Server::with(&[STREAMED]).await;
    let open = async |language: &str| {
        let body = json!({"conversationId": "c", "language": language});
        let session = post(&server, "/v1/sessions", body).await;
        format!("/v1/sessions/{}/cells", session["sessionId"].as_str().unwrap_or_else(|| panic!("{session}")))
    };
    let cell = async |cells: &str, code: &str| {
        let run = post(&server, cells, json!({"code": code})).await;
        run["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned()
    };
    upload(&server, "c", "up", "client").await;
    let (python, bash) = (open("python").await, open("bash").await);
    assert_eq!(cell(&python, "a = 41; print(open('up').read()); open('py', 'w').write('python')").await, "client\n6\n");
    assert_eq!(cell(&bash, "cat py up; echo -n bash > sh; rm up").await.trim_end(), "pythonclient");
    assert_eq!(output(&server, "c", "cat py sh; ls; echo -n run > py").await, "pythonbashpy\nsh\n");
    upload(&server, "c", "more", "later").await;
    let seen = "import os; print(a + 1, sorted(os.listdir()), open('py').read(), open('more').read())";
    assert_eq!(cell(&python, seen).await, "42 ['more', 'py', 'sh'] run later\n");
    // A cell that is interrupted has changed what it changed.
    let late = json!({"code": "open('late', 'w').write('kept')\nwhile True: pass", "limits": {"wallMs": 3000}});
    let run = post(&server, &python, late).await;
    assert_eq!(run["outcome"]["ended"], "timed_out", "{run}");
    assert_eq!(cell(&bash, "cat late").await.trim_end(), "kept");
    // What a session does between its cells comes with the next one.
    cell(&bash, "(sleep 0.3; echo -n later > background) & disown").await;
    until("it comes with a cell", async || {
        cell(&bash, "true").await;
        output(&server, "c", "cat background 2>&1; true").await == "later"
    })
    .await;
    server.stop().await;
}

/// A thread prints more than a follower of the kernel has room for while the files travel.
#[tokio::test(flavor = "multi_thread")]
async fn output_after_a_cell_does_not_hold_up_its_files() {
    let server = Server::with(&[STREAMED, ("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "1000000000000")]).await;
    let session = json!({"conversationId": "c", "language": "python"});
    let session = post(&server, "/v1/sessions", session).await;
    let cells = format!("/v1/sessions/{}/cells", session["sessionId"].as_str().unwrap_or_else(|| panic!("{session}")));
    let code = "import os, threading, time\nuntil = time.time() + 4\ndef flood():\n    \
                while time.time() < until: print('x' * 100_000); time.sleep(0.01)\n\
                open('large', 'wb').write(os.urandom(20 << 20))\nthreading.Thread(target=flood).start()";
    let cell = post(&server, &cells, json!({"code": code})).await;
    assert_eq!(cell["result"]["outcome"]["ended"], "exited", "{}", cell["result"]["outcome"]);
    assert_eq!(changes(&cell["result"]), [("large", "created")]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_of_a_notebook_has_the_files_too() {
    let server = Server::with(&[STREAMED]).await;
    let url = server.url("/jupyter/api/kernels");
    let request = server.http.post(url).header("authorization", format!("token {TOKEN}"));
    let answer = request.body(json!({"name": "python3"}).to_string()).send().await.expect("an answer");
    let kernel: Value = answer.json().await.expect("JSON");
    let id = kernel["id"].as_str().unwrap_or_else(|| panic!("{kernel}"));
    let sessions = get(&server, "/v1/sessions").await;
    let conversation = sessions["sessions"][0]["conversationId"].as_str().unwrap_or_else(|| panic!("{sessions}"));
    upload(&server, conversation, "up", "client").await;
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{id}/channels?session_id=x");
    let mut socket = Socket::connect(server.address, &path, &[]).await.expect("a connection");
    assert_eq!(socket.run("print(open('made', 'w').write(open('up').read() + '!'))").await.trim(), "7");
    let file = server.root.join(conversation).join("files/made");
    until("the file is stored", async || fs::read_to_string(&file).is_ok_and(|text| text == "client!")).await;
    let ended = socket.run("open('lost', 'w').write('x')\nimport os; os._exit(3)").await;
    assert!(ended.contains("what the cell changed in /data is not stored"), "{ended}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_at_once_keep_their_files_apart() {
    let server = Server::with(&[STREAMED]).await;
    let runs = (0..24).map(|n| {
        let server = &server;
        async move {
            let conversation = format!("c{}", n % 6);
            let code = format!(
                "cat [0-9]* 2>/dev/null | sort -u; echo {conversation} > {n}; head -c 300000 /dev/urandom > r{n}"
            );
            let seen = output(server, &conversation, &code).await;
            assert!(seen.is_empty() || seen == format!("{conversation}\n"), "{seen}");
        }
    });
    futures_util::future::join_all(runs).await;
    for n in 0..6 {
        assert_eq!(output(&server, &format!("c{n}"), "ls | wc -l; cat [0-9]* | sort -u").await, format!("8\nc{n}\n"));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_runner_is_refused_with_the_setting() {
    let image = Image::new("streamed");
    image.build("ruby-style");
    let server = Server::with(&[STREAMED]).await;
    let body = json!({"conversationId": "c", "language": image.language, "code": "echo never"});
    let refused = post(&server, "/v1/runs", body).await;
    assert!(refused.to_string().contains("SANDBOX_ENGINE__FILES"), "{refused}");
    server.stop().await;
}
