//! Sessions of two owners on the real Python kernel, alive at once and one after the other in the same conversations,
//! each with a secret: none finds that of another one.

use std::sync::Arc;

use futures_util::future::join_all;
use mcp_sandbox_server::{
    domain::owner::{ConversationKey, Principal},
    services::runs::{CellSession, Report, RunRequest},
};
use reqwest::Method;
use serde_json::json;

use crate::support::{
    calls::{call, create, open_session},
    scale::how_many,
    server::{Server, TOKEN},
};

/// Conversations of each owner, all with a session at once. They fit into the memory that sessions have.
const OF_AN_OWNER: usize = 6;
const REMEMBER: &str = r#"
import os, pathlib
secret = "SECRET"
os.environ["MARK"] = secret
for folder in ("/tmp", "/dev/shm"): pathlib.Path(folder, "secret").write_text(secret)
secret
"#;
/// Prints whether enough was read, and each secret that is found: in the memory of every process that can be read, in
/// what the interpreter holds, in its history and environment, and in files.
const SEARCH: &str = r#"
def search():
    import gc, glob, os, re
    shape, found, read, step = re.compile(rb"Zq7-[0-9a-f]{32}"), set(), 0, 4 << 20
    def look(piece):
        nonlocal read
        read += len(piece)
        if b"Zq7-" in piece: found.update(shape.findall(piece))
    for process in glob.glob("/proc/[0-9]*"):
        try:
            with open(process + "/maps") as maps, open(process + "/mem", "rb", 0) as memory:
                for line in maps:
                    span, mode = line.split()[:2]
                    # What a file has, nothing was written to.
                    if "r" not in mode or "[v" in line or "w" not in mode and "/" in line: continue
                    at, end = (int(edge, 16) for edge in span.split("-"))
                    while at < end:
                        try:
                            memory.seek(at)
                            look(memory.read(min(end - at, step)))
                        except OSError: pass
                        at += step - 64
        except OSError: pass
    shell = get_ipython().user_ns
    held = [*os.environ.values(), *shell["In"], *map(str, shell["Out"].values())]
    for one in gc.get_objects():
        if type(one) is dict: held += list(one.values())
        if type(one) in (list, tuple): held += one
    for one in held:
        if type(one) is str and "Zq7-" in one: look(one.encode(errors="replace"))
    for folder in ("/data", "/tmp", "/dev/shm", "/home", "/run", "/var"):
        for path in glob.glob(folder + "/**", recursive=True, include_hidden=True):
            try:
                if os.path.isfile(path): look(open(path, "rb").read())
            except OSError: pass
    print(read > 10_000_000, sorted(one.decode() for one in found))
search()
"#;

/// A conversation of one owner.
struct Place<'a> {
    key: ConversationKey,
    token: &'a str,
    number: usize,
}

impl Place<'_> {
    /// Of its session in this round.
    fn secret(&self, round: usize) -> String {
        let owner = usize::from(self.key.owner.is_default());
        format!("Zq7-{:032x}", (round * OF_AN_OWNER + self.number) * 2 + owner)
    }

    async fn open(&self, server: &Server) -> String {
        let wanted = json!({"language": "python", "conversationId": self.key.id.as_str()});
        open_session(server, self.token, wanted).await
    }

    async fn cell(&self, server: &Server, code: String) -> Arc<Report> {
        let request = RunRequest::new(self.key.clone(), "python".parse().expect("a language"), code.into());
        let request = RunRequest { session: Some(CellSession::Any), detach: Some(true), ..request };
        server.runs.begin(request).expect("a run").finished().await.expect("a report")
    }

    /// Closed, restarted, or its kernel ends: what is opened next takes its place.
    async fn end(&self, server: &Server, path: &str) {
        let (method, path) = match self.number % 3 {
            0 => (Method::DELETE, path.to_owned()),
            1 => (Method::POST, format!("{path}/restart")),
            _ => {
                self.cell(server, "import os\nos._exit(0)".to_owned()).await;
                return;
            }
        };
        let (status, ended) = call(server, self.token, method, &path, None).await;
        assert_eq!(status, 200, "{ended}");
    }
}

/// The same cell in all of them at once.
async fn everywhere(server: &Server, places: &[Place<'_>], code: &str, round: usize, shown: impl Fn(&str) -> String) {
    let shown = &shown;
    let cells = places.iter().map(|place| async move {
        let secret = place.secret(round);
        let report = place.cell(server, code.replace("SECRET", &secret)).await;
        assert_eq!(report.stdout.text, shown(&secret), "{} in round {round}: {}", place.key, report.stderr.text);
    });
    join_all(cells).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_real_session_is_found_in_another_one() {
    let settings = [("SANDBOX_LIMITS__WALL_MS", "240000"), ("SANDBOX_ADMISSION__QUEUE_WAIT_MS", "240000")];
    // Many wait for their turn on few cores.
    let server = Server::with(&settings).await;
    let (_, token) = create(&server, json!({"name": "ann", "owner": "ann", "scopes": ["run", "files"]})).await;
    let ann: Principal = "ann".parse().expect("an owner");
    let owners = [(Principal::default(), TOKEN), (ann, token.as_str())];
    // Two conversations of each name, one after the other, so that the sessions of the owners are interleaved.
    let places: Vec<_> = (0..OF_AN_OWNER)
        .flat_map(|number| owners.iter().map(move |(owner, token)| (number, owner.clone(), *token)))
        .map(|(number, owner, token)| {
            let key = ConversationKey::new(owner, format!("c-{number}").parse().expect("an id"));
            Place { key, token, number }
        })
        .collect();
    for round in 0..how_many(2, 20) {
        let sessions = join_all(places.iter().map(|place| place.open(&server))).await;
        everywhere(&server, &places, SEARCH, round, |_| "True []\n".to_owned()).await;
        everywhere(&server, &places, REMEMBER, round, |secret| format!("'{secret}'\n")).await;
        everywhere(&server, &places, "print(secret)", round, |secret| format!("{secret}\n")).await;
        everywhere(&server, &places, SEARCH, round, |secret| format!("True ['{secret}']\n")).await;
        join_all(places.iter().zip(&sessions).map(|(place, path)| place.end(&server, path))).await;
    }
    server.stop().await;
}
