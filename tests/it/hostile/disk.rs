//! Hostile programs that act on the server by their files, each without a program beside it.

use serde_json::{Value, json};

use super::{
    SETTINGS,
    corpus::{self, Attack},
};
use crate::support::{Server, server::TOKEN, until};

/// They write 1.2 GiB or more where walks hardly find it. With the time in which one is stopped, in seconds: two looks
/// at the free space a quarter of a second apart, and the end of its sandbox. Looks at the slow tree are up to two
/// seconds apart.
const HIDING: [(&str, u64); 5] =
    [("quota-linker", 2), ("quota-relinker", 2), ("quota-dancer", 2), ("quota-slow-tree", 4), ("quota-closed", 2)];
/// A quota and a reserve of the disk that they exceed early.
const SMALL: [(&str, &str); 2] =
    [("SANDBOX_QUOTA__BYTES_MAX", "104857600"), ("SANDBOX_QUOTA__FREE_BYTES_MIN", "67108864")];
/// Both, in MiB. A loss of free space up to so much may be another user's.
const ALLOWED: u64 = 164;
/// What one writes in a second at most, in MiB: a file of 30 MiB, and then it waits.
const RATE: u64 = 150;
/// How often each is tried: another process may free as much of the disk as it takes.
const TRIES: usize = 3;

async fn run(server: &Server, conversation: &str, language: &str, program: &str) -> Value {
    let body = json!({"conversationId": conversation, "language": language, "code": program});
    let request = server.http.post(server.url("/v1/runs")).bearer_auth(TOKEN).json(&body);
    request.send().await.expect("an answer").json().await.expect("JSON")
}

/// How much a program had written when it was stopped, in MiB.
async fn written(server: &Server, attack: &Attack) -> u64 {
    let name = attack.full_name();
    let paced = attack.program.replace("my $PACE = 0;", "my $PACE = 0.2;");
    let answer = run(server, &name, attack.language, &paced).await;
    assert_eq!(corpus::ending(&answer), "disk_limit", "{name}: {answer}");
    let url = server.url(&format!("/v1/conversations/{name}"));
    let deleted = server.http.delete(url).bearer_auth(TOKEN).send().await.expect("an answer");
    assert!(deleted.status().is_success(), "{name}: {deleted:?}");
    let stdout = answer["result"]["stdout"].as_str().unwrap_or_default();
    let counts = stdout.lines().filter_map(|line| line.strip_prefix("written: ")?.parse().ok());
    counts.max().unwrap_or_else(|| panic!("{name} does not print what it writes: {answer}"))
}

/// Among others, the measurement at its end would be enough for the ending in the table.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hides_what_it_writes_is_stopped_long_before_its_end() {
    let server = Server::with(&[&SETTINGS[..], &SMALL[..]].concat()).await;
    for attack in corpus::attacks(true).into_iter().filter(|attack| attack.language == "bash") {
        let Some((_, seconds)) = HIDING.iter().find(|(name, _)| *name == attack.name) else { continue };
        let (most, mut tries) = (ALLOWED + seconds * RATE, Vec::new());
        while tries.len() < TRIES && tries.last().is_none_or(|written| *written > most) {
            tries.push(written(&server, &attack).await);
        }
        println!("{} was stopped after {tries:?} MiB", attack.full_name());
        assert!(tries.last().is_some_and(|written| *written <= most), "{}: {tries:?} MiB", attack.full_name());
    }
    server.settled().await;
    server.stop().await;
}

/// How many files `quota-leases` holds.
const LEASED: usize = 200;
/// Waits with the leases until the test has looked.
const HOLD: &str = "open(my $holding, '>', '/data/holding') or die \"$!\";\nclose $holding;\n\
                    until (-e '/data/release') { select undef, undef, undef, 0.05 }\ndone();\n";

#[tokio::test(flavor = "multi_thread")]
async fn files_with_leases_are_listed_and_hold_up_no_download_and_no_archive() {
    let server = Server::with(&SETTINGS).await;
    let perl = corpus::perl("quota-leases");
    let (begin, _) = perl.rsplit_once("done();").expect("its end");
    let program = corpus::started("bash", &format!("{begin}{HOLD}"));
    let url = |path: &str| server.url(&format!("/v1/conversations/leases/{path}"));
    let get = async |path: &str| {
        let answer = server.http.get(url(path)).bearer_auth(TOKEN).send().await.expect("an answer");
        (answer.status().as_u16(), answer.bytes().await.expect("its body"))
    };
    let archived = async || {
        let (status, bytes) = get("archive").await;
        assert_eq!(status, 200);
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().expect("entries").map(|entry| entry.expect("an entry"));
        entries.map(|entry| entry.path().expect("a path").display().to_string()).collect::<Vec<_>>()
    };
    let look = async {
        until("it holds its files", async || server.root.join("leases/files/holding").exists()).await;
        let (status, list) = get("files").await;
        assert!(status == 200 && String::from_utf8_lossy(&list).contains("\"leased1\""), "{status} {list:?}");
        assert_eq!(archived().await, ["holding"]);
        for name in ["leased1", "leased200"] {
            assert_eq!(get(&format!("files/{name}")).await.0, 423, "{name}");
        }
        let release = server.http.put(url("files/release")).bearer_auth(TOKEN).body("");
        let release = release.header("content-type", "application/octet-stream").send().await.expect("an answer");
        assert_eq!(release.status(), 201);
    };
    let (answer, ()) = tokio::join!(run(&server, "leases", "bash", &program), look);
    assert_eq!(answer["result"]["stdout"], format!("held: {LEASED} attempts\n"), "{answer}");
    let (status, read) = get("files/leased1").await;
    assert_eq!((status, &read[..]), (200, &b"x\n"[..]));
    assert_eq!(archived().await.len(), LEASED + 2);
    server.settled().await;
    server.stop().await;
}
