//! Backups: of a running server, restored on an empty machine, on each kind of database and from one to the other; and
//! archives that are no backups.

mod hostile;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    FakeServer,
    calls::call,
    postgres::Postgres,
    server::{FILE_SECRET, TOKEN},
    until,
};

/// A machine: where the root and the database are.
struct Machine {
    folder: TempDir,
    url: String,
    _cluster: Option<Postgres>,
}

impl Machine {
    fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite://{}/root/.state/sandbox.db", folder.path().display());
        Self { folder, url, _cluster: None }
    }

    async fn postgres() -> Self {
        let (folder, cluster) = (tempfile::tempdir().expect("a folder"), Postgres::start().await);
        Self { folder, url: cluster.url(), _cluster: Some(cluster) }
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("root")
    }

    async fn serve(&self) -> FakeServer {
        // A program that hangs does so until its backup was made.
        FakeServer::again(&self.root(), &[("DATABASE_URL", &self.url), ("SANDBOX_LIMITS__WALL_MS", "600000")]).await
    }

    /// The command line with the settings of this machine.
    fn cli(&self, arguments: &[&str]) -> Output {
        let uid = rustix::process::getuid().as_raw().max(1);
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"));
        command.args(["--env-file", "/dev/null", "--config", "/dev/null"]);
        for (name, value) in [
            ("SANDBOX_ROOT", self.root().display().to_string().as_str()),
            ("DATABASE_URL", &self.url),
            ("MCP_API_TOKEN", TOKEN),
            ("FILE_SECRET", FILE_SECRET),
            ("SANDBOX_ENGINE__RUNNER_UID", &uid.to_string()),
        ] {
            command.arg("--set").arg(format!("{name}={value}"));
        }
        command.args(arguments).output().expect("it runs")
    }

    fn backup(&self, file: &Path) -> String {
        let done = self.cli(&["backup", &file.display().to_string()]);
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{told}");
        told
    }

    fn restore(&self, file: &Path, more: &[&str]) -> (bool, String) {
        let done = self.cli(&[&["restore", &file.display().to_string()], more].concat());
        let told = [&*done.stdout, &*done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&told).into_owned())
    }
}

async fn wrote(server: &FakeServer, token: &str, conversation: &str, code: &str) -> Value {
    let run = json!({"conversationId": conversation, "language": "python", "code": code});
    let (status, done) = call(server, token, Method::POST, "/v1/runs", Some(run)).await;
    assert_eq!(status, 200, "{done}");
    done
}

/// What a link gives on this server, whatever address it names.
async fn linked(http: &Client, server: &FakeServer, url: &str) -> (u16, String) {
    let path = &url[url.find("/files/").expect("a link")..];
    let answer = http.get(format!("http://{}{path}", server.address)).send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("text"))
}

async fn begun(server: &FakeServer) -> BTreeMap<String, Value> {
    let (mut all, mut path) = (BTreeMap::new(), "/v1/history?limit=200".to_owned());
    loop {
        let (status, page) = call(server, TOKEN, Method::GET, &path, None).await;
        assert_eq!(status, 200, "{page}");
        let runs = page["runs"].as_array().expect("a list").iter();
        all.extend(runs.map(|run| (run["runId"].as_str().expect("an id").to_owned(), run.clone())));
        let Some(cursor) = page["cursor"].as_str() else { return all };
        path = format!("/v1/history?limit=200&cursor={cursor}");
    }
}

async fn goes_on_elsewhere(here: Machine, there: Machine) {
    let server = here.serve().await;
    let made = json!({"name": "Ann's", "owner": "ann", "limits": {"runsAtOnce": 4}});
    let (_, made) = call(&server, TOKEN, Method::POST, "/v1/tokens", Some(made)).await;
    let ann = made["token"].as_str().expect("a token").to_owned();
    let gone = Some(json!({"name": "gone", "owner": "ann"}));
    let (_, revoked) = call(&server, TOKEN, Method::POST, "/v1/tokens", gone).await;
    call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{}", revoked["id"].as_str().expect("id")), None).await;
    let mine = wrote(&server, TOKEN, "c", "write f mine").await;
    let of_ann = wrote(&server, &ann, "c", "write f hers").await;
    let hang = json!({"language": "python", "code": "hang", "wait": 0, "detach": true});
    let (_, open) = call(&server, &ann, Method::POST, "/v1/runs", Some(hang)).await;
    let open = open["runId"].as_str().expect("an id").to_owned();
    until("three runs are in the history", async || begun(&server).await.len() == 3).await;

    // Programs run and write all the while.
    let server = Arc::new(server);
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (server, stop, written) = (Arc::clone(&server), Arc::clone(&stop), Arc::clone(&written));
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let code = format!("write f{number} {number}");
                    wrote(&server, TOKEN, &format!("busy-{writer}"), &code).await;
                    written.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    until("they write", async || written.load(Ordering::Relaxed) > 5).await;
    let before = begun(&server).await;
    let file = here.folder.path().join("backup.tar");
    let (here, to) = (Arc::new(here), file.clone());
    let machine = Arc::clone(&here);
    let told = tokio::task::spawn_blocking(move || machine.backup(&to)).await.expect("a backup");
    assert!(told.contains("Backed up"), "{told}");
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("it wrote");
    }
    assert_eq!(fs::metadata(&file).expect("the archive").permissions().mode() & 0o777, 0o600);
    call(&server, &ann, Method::POST, &format!("/v1/runs/{open}/cancel"), None).await;
    Arc::try_unwrap(server).unwrap_or_else(|_| panic!("the writers ended")).stop().await;

    let (worked, told) = there.restore(&file, &[]);
    assert!(worked && told.contains("of 2 owners") && told.contains("server_lost"), "{told}");
    let server = there.serve().await;
    until("the tokens are known", async || call(&server, &ann, Method::GET, "/v1/runs", None).await.0 == 200).await;
    let (_, listed) = call(&server, TOKEN, Method::GET, "/v1/tokens", None).await;
    let is_hers = |token: &Value| token["name"] == "Ann's" && token["limits"] == json!({"runsAtOnce": 4});
    assert!(listed["tokens"].as_array().is_some_and(|tokens| tokens.iter().any(is_hers)), "{listed}");
    let revoked = revoked["token"].as_str().expect("a token");
    assert_eq!(call(&server, revoked, Method::GET, "/v1/runs", None).await.0, 401);
    for (done, text) in [(&mine, "mine"), (&of_ann, "hers")] {
        let url = done["result"]["files"][0]["url"].as_str().expect("a link");
        assert_eq!(linked(&server.http, &server, url).await, (200, text.to_owned()));
    }
    let after = begun(&server).await;
    assert!(before.keys().all(|run| after.contains_key(run)), "{} and {}", before.len(), after.len());
    assert!(after.values().all(|run| run["ended"].is_string()), "none is told as running");
    assert_eq!(after[&open]["ended"], "server_lost");
    let (_, sums) = call(&server, TOKEN, Method::GET, "/v1/usage", None).await;
    assert!(sums["usage"].as_array().is_some_and(|sums| !sums.is_empty()), "{sums}");
    // And it goes on.
    wrote(&server, &ann, "c", "write g more").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_goes_on_elsewhere() {
    goes_on_elsewhere(Machine::sqlite(), Machine::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_goes_on_elsewhere() {
    goes_on_elsewhere(Machine::postgres().await, Machine::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_goes_on_as_sqlite() {
    goes_on_elsewhere(Machine::postgres().await, Machine::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_goes_on_as_postgres() {
    goes_on_elsewhere(Machine::sqlite(), Machine::postgres().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_kept_unless_it_is_forced() {
    let (here, there) = (Machine::sqlite(), Machine::sqlite());
    let server = here.serve().await;
    wrote(&server, TOKEN, "c", "write f here").await;
    server.stop().await;
    let file = here.folder.path().join("backup.tar");
    here.backup(&file);

    let server = there.serve().await;
    wrote(&server, TOKEN, "d", "write f there").await;
    let (worked, told) = there.restore(&file, &["--force"]);
    assert!(!worked && told.contains("in use by a server"), "{told}");
    server.stop().await;
    let (worked, told) = there.restore(&file, &[]);
    assert!(!worked && told.contains("--force"), "{told}");
    assert_eq!(fs::read_to_string(there.root().join("d/files/f")).expect("kept"), "there");

    let (worked, told) = there.restore(&file, &["--force"]);
    assert!(worked && told.contains("Deleted 1 conversations first"), "{told}");
    assert!(!there.root().join("d").exists());
    assert_eq!(fs::read_to_string(there.root().join("c/files/f")).expect("restored"), "here");
    let server = there.serve().await;
    let runs = begun(&server).await;
    assert_eq!(runs.values().map(|run| &run["conversationId"]).collect::<Vec<_>>(), ["c"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_and_times_and_folders_are_restored_and_links_are_told() {
    let (here, there) = (Machine::sqlite(), Machine::sqlite());
    let server = here.serve().await;
    wrote(&server, TOKEN, "c", "write f x").await;
    server.stop().await;
    let files = here.root().join("c/files");
    let long = format!("{}/{}", "n".repeat(200), "m".repeat(200));
    for folder in ["empty/in/it", "closed", &long] {
        fs::create_dir_all(files.join(folder)).expect("a folder");
    }
    let set = |name: &str, mode| fs::set_permissions(files.join(name), fs::Permissions::from_mode(mode)).expect("set");
    fs::write(files.join(&long).join("deep"), "deep").expect("written");
    fs::write(files.join("closed/tool"), "#!").expect("written");
    fs::write(files.join(std::ffi::OsStr::new("a\u{e4} \n")), "odd").expect("written");
    set("closed/tool", 0o4755);
    set("closed", 0o500);
    let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_600_000_000);
    fs::File::open(files.join("f")).and_then(|file| file.set_modified(modified)).expect("a time");
    fs::File::open(here.root().join("c/.mark")).and_then(|file| file.set_modified(modified)).expect("a time");
    fs::hard_link(files.join("f"), files.join("same")).expect("a second name");
    symlink("/etc/passwd", files.join("link")).expect("a link");
    symlink("..", files.join("empty/up")).expect("a link");
    assert!(Command::new("mkfifo").arg(files.join("pipe")).status().is_ok_and(|made| made.success()));

    let archive = here.cli(&["backup", "-"]);
    assert!(archive.status.success());
    let told = String::from_utf8_lossy(&archive.stderr);
    assert!(told.contains("link: 2, pipe: 1"), "{told}");
    let file = here.folder.path().join("backup.tar");
    fs::write(&file, archive.stdout).expect("written");
    let (worked, told) = there.restore(&file, &[]);
    assert!(worked, "{told}");

    let back = there.root().join("c/files");
    let mode = |name: &str| fs::symlink_metadata(back.join(name)).expect(name).permissions().mode() & 0o7777;
    assert_eq!((mode("closed"), mode("closed/tool"), mode("empty/in/it")), (0o500, 0o755, 0o755));
    for (name, text) in [("f", "x"), ("same", "x"), ("a\u{e4} \n", "odd"), (&format!("{long}/deep"), "deep")] {
        assert_eq!(fs::read_to_string(back.join(name)).expect(name), text);
    }
    assert!(["link", "empty/up", "pipe"].iter().all(|name| fs::symlink_metadata(back.join(name)).is_err()));
    for name in ["files/f", ".mark", "files"] {
        assert_eq!(fs::metadata(there.root().join("c").join(name)).expect(name).mtime(), 1_600_000_000, "{name}");
    }
    if rustix::process::geteuid().is_root() {
        let user = fs::metadata(&back).expect("the folder").uid();
        assert_eq!(fs::metadata(back.join("f")).expect("f").uid(), user, "it is the sandboxes'");
        assert!((70_000..=70_999).contains(&user), "{user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_and_further_names_take_no_room() {
    const MIB: u64 = 1 << 20;
    let (here, there) = (Machine::sqlite(), Machine::sqlite());
    let server = here.serve().await;
    wrote(&server, TOKEN, "c", "write f x").await;
    server.stop().await;
    let files = here.root().join("c/files");
    let sparse = |name: &str, parts: &[(u64, &str)], length: u64| {
        let file = fs::File::create(files.join(name)).expect("a file");
        file.set_len(length).expect("a hole");
        for (at, text) in parts {
            file.write_all_at(text.as_bytes(), *at).expect("written");
        }
    };
    sparse("hole", &[], 100 * MIB);
    sparse("both", &[(0, "begin"), (500 * MIB, "end")], 500 * MIB + 3);
    sparse("middle", &[(9 * MIB, "middle")], 1 << 33);
    // Its parts do not fit into a header, and the holes between them not into the archive.
    let many: Vec<_> = (0..9).map(|part| (part * 100 * MIB, "x")).collect();
    sparse("many", &many, 800 * MIB + 1);
    let few: Vec<_> = (0..9).map(|part| (part * MIB, "x")).collect();
    sparse("few", &few, 8 * MIB + 1);
    fs::write(files.join("large"), vec![b'x'; 1 << 20]).expect("written");
    let deep = format!("{}/{}", "n".repeat(200), "m".repeat(200));
    fs::create_dir_all(files.join(&deep)).expect("a folder");
    for name in (0..50).map(|number| format!("{deep}/{number}")) {
        for of in ["large", "hole", "many"] {
            fs::hard_link(files.join(of), files.join(format!("{name}-{of}"))).expect("a further name");
        }
    }

    let file = here.folder.path().join("backup.tar");
    let told = here.backup(&file);
    assert!(told.contains("Left out: sparse: 51."), "{told}");
    let length = fs::metadata(&file).expect("the archive").len();
    assert!(length < 20 * MIB, "{length}");
    let (worked, told) = there.restore(&file, &[]);
    assert!(worked, "{told}");

    let back = there.root().join("c/files");
    let about = |name: &str| fs::metadata(back.join(name)).expect(name);
    for (name, length, at, text) in [
        ("hole", 100 * MIB, 50 * MIB, "\0"),
        ("both", 500 * MIB + 3, 0, "begin\0"),
        ("both", 500 * MIB + 3, 500 * MIB, "end"),
        ("middle", 1 << 33, 9 * MIB - 1, "\0middle\0"),
        ("few", 8 * MIB + 1, 5 * MIB - 1, "\0x\0"),
        ("few", 8 * MIB + 1, 8 * MIB - 1, "\0x"),
    ] {
        let mut read = vec![1; text.len()];
        fs::File::open(back.join(name)).and_then(|file| file.read_exact_at(&mut read, at)).expect(name);
        assert_eq!((about(name).len(), read.as_slice()), (length, text.as_bytes()), "{name} at {at}");
        assert!(about(name).blocks() * 512 < 10 * MIB, "{name} has its holes again");
    }
    for (name, of) in [("49-large", "large"), ("0-hole", "hole")] {
        let (one, other) = (about(&format!("{deep}/{name}")), about(of));
        assert_eq!((one.ino(), one.nlink(), one.len()), (other.ino(), 51, other.len()), "{name}");
    }
    assert_eq!(fs::read(back.join("large")).expect("restored"), vec![b'x'; 1 << 20]);
}
