//! What conversations may take on disk: before a run, while it goes on, by every way that writes; and how long they are
//! kept.

use std::{fs, sync::Arc, time::Duration};

use mcp_sandbox_server::{
    domain::{
        clock::{Clock, ManualClock, SETTLING, SystemClock},
        outcome::Ended,
        owner::Principal,
    },
    services::{
        retention::{DELETED_MAX, Retention, RetentionOptions},
        runs::RunState,
    },
};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::{FakeServer, Server, server::TOKEN, stepping::SteppingClock, until};

const KIB: usize = 1 << 10;
const SMALL: [(&str, &str); 2] = [("SANDBOX_QUOTA__BYTES_MAX", "1048576"), ("SANDBOX_QUOTA__ENTRIES_MAX", "20")];

async fn send(server: &FakeServer, method: Method, path: &str, body: Vec<u8>) -> Response {
    let call = server.http.request(method, format!("http://{}{path}", server.address)).bearer_auth(TOKEN);
    call.header("content-type", "application/octet-stream").body(body).send().await.expect("an answer")
}

async fn put(server: &FakeServer, conversation: &str, name: &str, bytes: usize, with: u8) -> Response {
    let path = format!("/v1/conversations/{conversation}/files/{name}");
    send(server, Method::PUT, &path, vec![with; bytes]).await
}

async fn refused(response: Response) -> String {
    assert_eq!(response.status(), StatusCode::INSUFFICIENT_STORAGE);
    let problem: Value = response.json().await.expect("JSON");
    assert!(problem["detail"].as_str().expect("a sentence").contains("MiB"), "{problem}");
    problem["code"].as_str().expect("a code").to_owned()
}

fn tar(names: &[&str], bytes: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for name in names {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &vec![b't'; bytes][..]).expect("an entry");
    }
    builder.into_inner().expect("an archive")
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_over_quota_are_refused_and_keep_existing_files() {
    let server = FakeServer::with(&SMALL).await;
    assert_eq!(put(&server, "q", "a", 600 * KIB, b'1').await.status(), 201);
    assert_eq!(refused(put(&server, "q", "b", 600 * KIB, b'2').await).await, "quota_exceeded");
    // The file that is there stays as it is, whole.
    assert_eq!(refused(put(&server, "q", "a", 600 * KIB, b'2').await).await, "quota_exceeded");
    let data = server.root.join("q/files");
    assert!(fs::read(data.join("a")).expect("the file") == vec![b'1'; 600 * KIB]);
    // Of an archive nothing is written, though its first file would fit.
    let archive = "/v1/conversations/q/archive";
    let sent = send(&server, Method::PUT, archive, tar(&["t1", "t2"], 300 * KIB)).await;
    assert_eq!(refused(sent).await, "quota_exceeded");
    let wrote = server
        .call("sandbox.write_file", json!({"conversationId": "q", "path": "c", "content": "x".repeat(600 * KIB)}))
        .await;
    assert_eq!((&wrote["isError"], fs::read_dir(&data).expect("a folder").count()), (&json!(true), 1), "{wrote}");
    let piston = json!({"language": "python", "version": "*", "files": [{"content": "print 1"},
        {"name": "big", "content": "x".repeat(1200 * KIB)}]});
    let call = server.http.post(format!("http://{}/api/v2/execute", server.address)).bearer_auth(TOKEN);
    assert_eq!(call.json(&piston).send().await.expect("an answer").status(), 507);
    // Within the quota everything works on, and what is deleted makes room.
    assert_eq!(server.run("q", "print yes").await["structuredContent"]["stdout"], "yes\n");
    assert_eq!(send(&server, Method::DELETE, "/v1/conversations/q/files/a", vec![]).await.status(), 204);
    assert_eq!(put(&server, "q", "b", 600 * KIB, b'2').await.status(), 201);
    for number in 0..19 {
        assert_eq!(put(&server, "q", &format!("small-{number}"), 0, 0).await.status(), 201, "{number}");
    }
    let many: Value = put(&server, "q", "one-more", 0, 0).await.json().await.expect("JSON");
    assert!(many["code"] == "quota_exceeded" && many["detail"].as_str().expect("text").contains("20"), "{many}");
    let folders =
        fs::read_dir(&server.root).expect("the root").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(folders.filter(|name| !name.starts_with('.')).collect::<Vec<_>>(), ["q"], "what was refused made none");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_an_archive_counts_once() {
    let server = FakeServer::with(&SMALL).await;
    for (conversation, files, status) in [("within", 17, 200_u16), ("beyond", 18, 507)] {
        let names: Vec<_> = (0..files).map(|number| format!("a/b/c/{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let archive = format!("/v1/conversations/{conversation}/archive");
        assert_eq!(send(&server, Method::PUT, &archive, tar(&names, 1)).await.status(), status);
        assert_eq!(server.root.join(conversation).exists(), status == 200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_over_quota_is_stopped_and_the_next_is_refused_until_space_is_free() {
    let server = Server::with(&[("SANDBOX_QUOTA__BYTES_MAX", "8388608"), ("SANDBOX_QUOTA__ENTRIES_MAX", "200")]).await;
    let outcome = |result: &Value| result["structuredContent"]["outcome"].clone();
    // Files, a sparse file with holes that are filled, and many names: each in a conversation of its own, at once.
    let bytes = "import os,time\nfor i in range(100):\n open(str(i),'wb').write(os.urandom(1<<20)); \
                 time.sleep(.02)\ntime.sleep(60)";
    let holes = "import os,time\nf=open('s','wb'); f.truncate(1<<26)\nfor i in range(0,1<<26,1<<20):\n \
                 f.seek(i); f.write(os.urandom(1<<19)); f.flush(); time.sleep(.02)\ntime.sleep(60)";
    let names =
        "import os,time\nfor i in range(400):\n os.mkdir(f'd{i}'); os.symlink('/etc', f'd{i}/l')\ntime.sleep(60)";
    let (bytes, holes, names) = tokio::join!(
        server.run("bytes", "python", bytes),
        server.run("holes", "python", holes),
        server.run("names", "python", names)
    );
    for (result, limit) in [(&bytes, "8 MiB"), (&holes, "8 MiB"), (&names, "200 files")] {
        let outcome = outcome(result);
        assert_eq!(outcome["ended"], "disk_limit", "{result}");
        assert!(outcome["sentence"].as_str().expect("a sentence").contains(limit), "{outcome}");
    }
    // Nothing runs before there is room again; neighbours do not notice.
    let refused = server.run("bytes", "python", "print(1)").await;
    let text = refused["content"][0]["text"].as_str().expect("a text");
    assert!(refused["isError"] == true && text.contains("8 MiB") && text.contains("delete"), "{refused}");
    assert_eq!(outcome(&server.run("beside", "python", "open('x','w').write('1')").await)["ended"], "exited");
    let files = refused_files(&server).await;
    for name in files {
        server.call("sandbox.delete_file", json!({"conversationId": "bytes", "path": name})).await;
    }
    assert_eq!(outcome(&server.run("bytes", "python", "print(1)").await)["ended"], "exited");
    server.settled().await;
    server.stop().await;
}

/// Programs that exceed the quota as their last act, before any look at their files.
#[tokio::test(flavor = "multi_thread")]
async fn program_that_exceeds_the_quota_at_its_end_ends_with_disk_limit() {
    let server = FakeServer::with(&SMALL).await;
    let ended = |result: &Value| result["structuredContent"]["outcome"]["ended"].clone();
    let big = "x".repeat(200 * KIB);
    assert_eq!(put(&server, "bytes", "there", 700 * KIB, 1).await.status(), 201);
    let lines = |line: &dyn Fn(usize) -> String, count| (0..count).map(line).collect::<Vec<_>>().join("\n");
    let names = lines(&|number| format!("write {number} x"), 21);
    let bytes = lines(&|_| format!("append big {big}"), 2);
    for (conversation, code, word) in [
        ("names", names.clone(), "20 files"),
        ("failed", format!("{names}\nexit 3"), "20 files"),
        ("killed", format!("{names}\nsignal 9"), "20 files"),
        ("bytes", bytes, "1 MiB"),
    ] {
        let result = server.run(conversation, &code).await;
        assert_eq!(ended(&result), "disk_limit", "{conversation}: {result}");
        let sentence = result["structuredContent"]["outcome"]["sentence"].as_str().expect("a sentence");
        assert!(result["isError"] == true && sentence.contains(word), "{conversation}: {sentence}");
        let next = server.run(conversation, "print 1").await;
        let text = next["content"][0]["text"].as_str().expect("a text");
        assert!(next["isError"] == true && text.contains("delete"), "{conversation}: {next}");
    }
    for name in ["0", "1"] {
        let path = format!("/v1/conversations/names/files/{name}");
        assert_eq!(send(&server, Method::DELETE, &path, vec![]).await.status(), 204);
    }
    assert_eq!(ended(&server.run("names", "print 1").await), "exited");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_program_over_quota_is_cancelled_and_the_next_is_refused() {
    const TRIES: usize = 10;
    let server = FakeServer::with(&SMALL).await;
    let mut ended = None;
    for number in 0..TRIES {
        let conversation = format!("c{number}");
        let hang = json!({"conversationId": conversation, "language": "python", "code": "hang", "wait": 0});
        let call = server.http.post(format!("http://{}/v1/runs", server.address)).bearer_auth(TOKEN);
        let begun: Value = call.json(&hang).send().await.expect("an answer").json().await.expect("JSON");
        let id = begun["runId"].as_str().expect("an id").parse().expect("an id");
        let run = server.mcp.runs.get(&Principal::default(), id).expect("a run");
        until("it runs", async || run.view().state == RunState::Running).await;
        let data = server.root.join(&conversation).join("files");
        (0..21).for_each(|name| fs::write(data.join(name.to_string()), "x").expect("a file"));
        run.cancel();
        ended = Some(run.finished().await.expect("a report").outcome.ended);
        let next = server.run(&conversation, "print 1").await;
        let text = next["content"][0]["text"].as_str().expect("a text");
        assert!(next["isError"] == true && text.contains("may take 20,"), "{ended:?}: {next}");
        // A look at the files may have come before the cancellation.
        if ended == Some(Ended::Cancelled) {
            break;
        }
    }
    assert_eq!(ended, Some(Ended::Cancelled));
    server.stop().await;
}

/// Files without names are seen by no walk; they get names as the last act.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_linked_at_the_very_end_count() {
    let server = Server::with(&[("SANDBOX_QUOTA__BYTES_MAX", "67108864")]).await;
    let link = "import os\nfds = []\nfor i in range(15):\n fd = os.open('.', os.O_TMPFILE | os.O_RDWR, 0o600)\n \
                os.posix_fallocate(fd, 0, 9 << 20)\n fds.append(fd)\nfor i, fd in enumerate(fds):\n \
                os.link(f'/proc/self/fd/{fd}', str(i), src_dir_fd=fds[0])\nprint('linked', flush=True)\n\
                os.kill(os.getpid(), 9)";
    let result = server.run("linker", "python", link).await;
    assert_eq!(result["structuredContent"]["stdout"], "linked\n", "{result}");
    assert_eq!(result["structuredContent"]["outcome"]["ended"], "disk_limit", "{result}");
    let refused = server.run("linker", "python", "print(1)").await;
    assert!(refused["isError"] == true && refused.to_string().contains("64 MiB"), "{refused}");
    server.settled().await;
    server.stop().await;
}

async fn refused_files(server: &Server) -> Vec<String> {
    let listed = server.call("sandbox.list_files", json!({"conversationId": "bytes"})).await;
    let files = listed["structuredContent"]["files"].as_array().expect("files").clone();
    files.iter().map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
}

/// An unlinked file is in no count, so only the remaining space reveals it.
#[tokio::test(flavor = "multi_thread")]
async fn program_that_fills_the_disk_with_unlinked_files_is_stopped() {
    let memory = std::path::Path::new("/dev/shm");
    let free = rustix::fs::statvfs(memory).expect("a file system in memory");
    let floor = (free.f_bavail * free.f_frsize).saturating_sub(150 << 20).to_string();
    let settings = [
        ("SANDBOX_QUOTA__FREE_BYTES_MIN", floor.as_str()),
        ("SANDBOX_LIMITS__MEMORY_BYTES", "805306368"),
        ("SANDBOX_LIMITS__FILE_BYTES_MAX", "805306368"),
    ];
    let server = Server::in_folder(memory, &settings).await;
    let hidden = "import os,time\nf=open('f','wb'); os.unlink('f')\nfor i in range(400):\n f.write(bytes(1<<20))\n\
                  f.flush()\ntime.sleep(60)";
    let result = server.run("hidden", "python", hidden).await;
    assert_eq!(result["structuredContent"]["outcome"]["ended"], "disk_limit", "{result}");
    assert_eq!(result["structuredContent"]["files"], json!([]));
    // With the program its space is gone, and the next one runs.
    server.settled().await;
    let next = server.run("hidden", "python", "print(1)").await;
    assert_eq!(next["structuredContent"]["stdout"], "1\n", "{next}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_refuses_runs_before_any_change() {
    let server = FakeServer::with(&[("SANDBOX_QUOTA__FREE_BYTES_MIN", "1125899906842624")]).await;
    let run = server.run("full", "print 1").await;
    let text = run["content"][0]["text"].as_str().expect("a text");
    assert!(run["isError"] == true && text.contains("SANDBOX_QUOTA__FREE_BYTES_MIN"), "{run}");
    let wrote: Value = put(&server, "full", "a", 1, 0).await.json().await.expect("JSON");
    assert_eq!(wrote["code"], "no_space", "{wrote}");
    assert!(!server.root.join("full").exists());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn least_recently_used_conversations_are_deleted_first_unless_in_use() {
    const DAY: Duration = Duration::from_hours(24);
    let server = FakeServer::with(&[("SANDBOX_QUOTA__TOTAL_BYTES_MAX", "716800")]).await;
    for conversation in ["busy", "old", "middle", "new"] {
        assert_eq!(put(&server, conversation, "f", 256 * KIB, 1).await.status(), 201);
    }
    // One that cannot be measured keeps none of the others.
    fs::create_dir(server.root.join("broken")).expect("a conversation");
    for name in ["files", "disk"] {
        fs::write(server.root.join("broken").join(name), "no folder").expect("a file");
    }
    let there = || ["busy", "old", "middle", "new"].map(|name| server.root.join(name).exists());
    assert_eq!(server.retention.round().await, Ok(0), "all of them were just used: {:?}", there());
    let owner = Principal::default();
    let hang = json!({"conversationId": "busy", "language": "python", "code": "hang", "wait": 0});
    let call = server.http.post(format!("http://{}/v1/runs", server.address)).bearer_auth(TOKEN);
    let run: Value = call.json(&hang).send().await.expect("an answer").json().await.expect("JSON");
    let run_id = run["runId"].as_str().expect("an id").parse().expect("an id");
    until("it runs", async || {
        let view = server.mcp.runs.get(&owner, run_id).expect("a run").view();
        view.state == RunState::Running
    })
    .await;
    for (conversation, days) in [("busy", 9), ("old", 3), ("middle", 2)] {
        server.used_ago(conversation, DAY * days);
    }
    // Four quarters of a megabyte do not fit: two of them leave, and not the one that is in use.
    assert_eq!(server.retention.round().await, Ok(2));
    assert_eq!(there(), [true, false, false, true]);
    assert_eq!(server.retention.round().await, Ok(0));
    // By age: after the default of thirty days, however little it takes.
    server.used_ago("busy", DAY * 40);
    server.used_ago("new", DAY * 29);
    assert_eq!(server.retention.round().await, Ok(0), "busy runs, new is not old enough");
    assert_eq!(put(&server, "last", "f", 256 * KIB, 1).await.status(), 201);
    assert_eq!(server.retention.round().await, Ok(1), "what is old and in use counts among all bytes");
    assert_eq!(there(), [true, false, false, false]);
    server.mcp.runs.get(&owner, run_id).expect("a run").cancel();
    until("its turn is over", async || {
        server.used_ago("busy", DAY * 40);
        server.retention.round().await == Ok(1)
    })
    .await;
    assert_eq!(there(), [false; 4]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_replaced_each_other_count_once_among_all_bytes() {
    let server = FakeServer::with(&[("SANDBOX_QUOTA__TOTAL_BYTES_MAX", "716800")]).await;
    for conversation in ["old", "new", "new", "new"] {
        assert!(put(&server, conversation, "f", 256 * KIB, 1).await.status().is_success());
    }
    server.used_ago("old", Duration::from_hours(24));
    assert_eq!((server.retention.round().await, server.root.join("old").exists()), (Ok(0), true));
    assert!(put(&server, "more", "f", 256 * KIB, 1).await.status().is_success());
    assert_eq!((server.retention.round().await, server.root.join("old").exists()), (Ok(1), false), "too much");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_deletes_nothing_after_a_step_of_the_clock_and_few_at_once() {
    let server = FakeServer::start().await;
    let names: Vec<_> = (0..DELETED_MAX + 5).map(|number| server.root.join(format!("c{number}"))).collect();
    for name in &names {
        fs::create_dir_all(name.join("files")).expect("a conversation");
        fs::write(name.join(".mark"), "").expect("a mark");
    }
    let clock = Arc::new(ManualClock::at(SystemClock.unix_s()));
    let retention = |clock: Arc<dyn Clock>| {
        let unused_max = Some(Duration::from_hours(24 * 30));
        let (total_bytes_max, in_use) = (Some(0), Duration::from_mins(10));
        let options = RetentionOptions { unused_max, total_bytes_max, in_use, own_disks: false };
        Retention::new(Arc::clone(&server.mcp.files), server.mcp.runs.clone(), clock, options)
    };
    let left = || names.iter().filter(|name| name.exists()).count();
    let stepped = retention(clock.clone());
    assert_eq!(stepped.round().await, Ok(0));
    let stepped_within = retention(Arc::new(SteppingClock::at(SystemClock.unix_s())));
    assert_eq!((stepped_within.round().await, left()), (Ok(0), DELETED_MAX + 5));
    (0..names.len()).for_each(|number| server.used_ago(&format!("c{number}"), Duration::from_hours(24 * 31)));
    clock.set(clock.unix_s() + 365 * 24 * 3600);
    for _ in 0..3 {
        assert_eq!((stepped.round().await, left()), (Ok(0), DELETED_MAX + 5));
    }
    // The clock may have been wrong when the server started, and is set right soon after.
    let started = retention(clock.clone());
    for running in [Duration::ZERO, SETTLING / 2] {
        assert_eq!((started.round_after(running).await, left()), (Ok(0), DELETED_MAX + 5));
    }
    clock.set(clock.unix_s() - 365 * 24 * 3600);
    assert_eq!((started.round_after(SETTLING).await, left()), (Ok(0), DELETED_MAX + 5));
    clock.set(clock.unix_s() + 365 * 24 * 3600);
    // A year later in fact.
    let later = retention(clock.clone());
    assert_eq!((later.round_after(Duration::ZERO).await, left()), (Ok(0), DELETED_MAX + 5));
    assert_eq!((later.round_after(SETTLING).await, left()), (Ok(DELETED_MAX), 5));
    assert_eq!((later.round().await, left()), (Ok(5), 0));
    server.stop().await;
}

/// As on a network, where a file server writes the times of use.
#[tokio::test(flavor = "multi_thread")]
async fn retention_keeps_what_was_just_used_by_the_clock_of_the_disk() {
    let server = FakeServer::start().await;
    let conversation = server.root.join("c");
    fs::create_dir_all(conversation.join("files")).expect("a conversation");
    let unused_max = Some(Duration::from_mins(30));
    let options =
        RetentionOptions { unused_max, total_bytes_max: None, in_use: Duration::from_mins(10), own_disks: false };
    let retention = |ahead_s: i64| {
        let clock = Arc::new(ManualClock::at(SystemClock.unix_s() + ahead_s));
        Retention::new(Arc::clone(&server.mcp.files), server.mcp.runs.clone(), clock, options)
    };
    for ahead_s in [-3600, 0, 3600, 24 * 3600] {
        assert_eq!((retention(ahead_s).round().await, conversation.exists()), (Ok(0), true), "{ahead_s}");
    }
    fs::write(conversation.join(".mark"), "").expect("a mark");
    server.used_ago("c", Duration::from_hours(1));
    assert_eq!((retention(3600).round().await, conversation.exists()), (Ok(1), false), "in fact");
    server.stop().await;
}
