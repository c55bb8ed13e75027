//! The proxy before a scripted engine: what it remembers, and whose sandboxes it controls.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bollard::{
    errors::Error,
    models::ContainerSummary,
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, ListContainersOptionsBuilder,
        RemoveContainerOptionsBuilder, WaitContainerOptionsBuilder,
    },
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use self::scripted::ScriptedEngine;
use super::{
    super::{
        super::labels,
        convert::{self, Profile},
    },
    checks::{CONTAINERS_MAX, RUNNER_AGE_MAX, RUNNERS_MAX},
    ownership::Folders,
    *,
};
use crate::{
    domain::{InstanceId, skills::SkillFolders, test_scale::until},
    ports::engine::{ImageId, SandboxSpec, Volume},
};

pub(in super::super) mod scripted;
mod unread;

struct Scene {
    root: TempDir,
    engine: ScriptedEngine,
    proxy: Proxy,
    client: Docker,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn image() -> String {
    format!("sha256:{}", "5d".repeat(32))
}

fn options(engine: String, root: &Path) -> ProxyOptions {
    ProxyOptions {
        engine,
        root: root.to_owned(),
        users: RunnerUsers::one(1000),
        runtime: RuntimeSetting::Default,
        cgroup_parent: None,
        images: "sha256:5*".into(),
        folders: Vec::new(),
        skills: None,
    }
}

/// A proxy before an engine that creates each name once and shows every container as `inspected`.
fn scene(root: TempDir, inspected: Value) -> Scene {
    let (created, names) = (AtomicUsize::new(0), Mutex::new(HashSet::new()));
    let engine = ScriptedEngine::start(move |call| match call {
        "GET /info" => (200, json!({})),
        create if create.starts_with("POST /containers/create") => {
            if !names.lock().insert(create.to_owned()) {
                return (409, json!({"message": "the name is taken"}));
            }
            (201, json!({"Id": format!("container-{}", created.fetch_add(1, Ordering::Relaxed)), "Warnings": []}))
        }
        image if image.starts_with("GET /images/") => {
            let id = image.trim_start_matches("GET /images/").trim_end_matches("/json").replace("%3A", ":");
            (200, json!({"Id": id, "Config": {"Labels": {"sandbox.runner": "true"}}}))
        }
        inspect if inspect.ends_with("/json") => (200, inspected.clone()),
        _ => (204, Value::Null),
    });
    before(root, engine)
}

/// A proxy before an engine.
fn before(root: TempDir, engine: ScriptedEngine) -> Scene {
    let skills = root.path().join("skills");
    fs::create_dir_all(skills.join("ann")).expect("a folder");
    let options = ProxyOptions { skills: Some(skills), ..options(engine.host(), root.path()) };
    let proxy = Proxy::new(options).expect("a proxy");
    let socket = root.path().join("proxy.sock");
    let listener = Proxy::listen(&socket).expect("a socket");
    let serving = tokio::spawn(proxy.clone().serve(listener, CancellationToken::new()));
    let client = scripted::client(&format!("unix://{}", socket.display()));
    Scene { root, engine, proxy, client, serving }
}

impl Scene {
    async fn create(&self, id: SandboxId, folder: &str) -> Result<(), Error> {
        self.create_with(id, folder, None).await
    }

    /// With the skills of an owner.
    async fn create_with(&self, id: SandboxId, folder: &str, owner: Option<&str>) -> Result<(), Error> {
        let user = owner.map(|owner| self.root.path().join("skills").join(owner));
        let folder = self.root.path().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        let spec = SandboxSpec {
            id,
            own_init: true,
            skills: SkillFolders { public: None, user },
            ..SandboxSpec::example(ImageId(image()), Volume::HostFolder(folder.clone()))
        };
        let profile = Profile { runtime: None, cgroup_v1: true, podman: None, cgroup_parent: None };
        let body = convert::create_body(&profile, &spec, Some(&folder));
        let options = CreateContainerOptionsBuilder::new().name(&id.to_string()).build();
        self.client.create_container(Some(options), body).await.map(drop)
    }

    /// The status of each call about a container: attach, start, inspect, wait, kill, remove.
    async fn statuses(&self, id: SandboxId) -> [Option<u16>; 6] {
        let name = id.to_string();
        let attach = AttachContainerOptionsBuilder::new().stream(true).build();
        let wait = WaitContainerOptionsBuilder::new().build();
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        [
            status(self.client.attach_container(&name, Some(attach)).await.err()),
            status(self.client.start_container(&name, None).await.err()),
            status(self.client.inspect_container(&name, None).await.err()),
            status(self.client.wait_container(&name, Some(wait)).next().await.and_then(Result::err)),
            status(self.client.kill_container(&name, None).await.err()),
            status(self.client.remove_container(&name, Some(remove)).await.err()),
        ]
    }
}

fn status(error: Option<Error>) -> Option<u16> {
    match error? {
        Error::DockerResponseServerError { status_code, .. } => Some(status_code),
        _ => None,
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A container that runs with this folder and has all labels of a sandbox.
fn running(id: SandboxId, source: &Path) -> Value {
    json!({
        "Id": "found",
        "State": {"Status": "running", "Running": true, "FinishedAt": "0001-01-01T00:00:00Z"},
        "Config": {"Labels": {
            "sandbox.managed": "true", "sandbox.id": id.to_string(), "sandbox.deadline": i64::MAX.to_string(),
            "sandbox.instance": InstanceId::new().to_string()
        }},
        "Mounts": [{"Type": "bind", "Source": source, "Destination": "/data"}]
    })
}

#[tokio::test]
async fn second_create_of_a_name_does_not_change_what_start_checks() {
    let scene = scene(folder(), json!({}));
    let id = SandboxId::new();
    scene.create(id, "swapped").await.expect("created");
    // The engine refuses the second, for a folder that stays as it is; the first one's becomes a link.
    assert_eq!(status(scene.create(id, "sound").await.err()), Some(409));
    fs::remove_dir(scene.root.path().join("swapped")).expect("removed");
    symlink("/", scene.root.path().join("swapped")).expect("a link");
    let started = scene.client.start_container(&id.to_string(), None).await;
    assert_eq!(status(started.err()), Some(403));
    assert!(!scene.engine.calls().iter().any(|call| call.ends_with("/start")));
}

#[tokio::test]
async fn folder_of_skills_that_is_a_link_is_refused_at_creation_and_at_start() {
    let scene = scene(folder(), json!({}));
    let skills = scene.root.path().join("skills");
    symlink("/", skills.join("bob")).expect("a link");
    fs::write(skills.join("carl"), "").expect("a file");
    for owner in ["bob", "carl", "dora"] {
        let created = scene.create_with(SandboxId::new(), "c", Some(owner)).await;
        assert_eq!(status(created.err()), Some(403), "{owner}");
    }
    assert!(!scene.engine.calls().iter().any(|call| call.contains("/create")));
    let ids = [SandboxId::new(), SandboxId::new()];
    for id in ids {
        scene.create_with(id, "c", Some("ann")).await.expect("created");
    }
    assert_eq!(status(scene.client.start_container(&ids[0].to_string(), None).await.err()), None);
    fs::remove_dir(skills.join("ann")).expect("removed");
    symlink("/", skills.join("ann")).expect("a link");
    assert_eq!(status(scene.client.start_container(&ids[1].to_string(), None).await.err()), Some(403));
    assert_eq!(scene.engine.calls().iter().filter(|call| call.ends_with("/start")).count(), 1);
}

#[tokio::test]
async fn links_among_skills_are_found_after_a_restart_of_the_proxy() {
    let (id, root) = (SandboxId::new(), folder());
    let (data, link) = (root.path().join("c/files"), root.path().join("skills/bob"));
    fs::create_dir_all(&data).expect("a folder");
    let mut inspected = running(id, &data);
    let skills = json!({"Type": "bind", "Source": link, "Destination": "/skills/user"});
    inspected["Mounts"].as_array_mut().expect("mounts").push(skills);
    let scene = scene(root, inspected);
    symlink("/", link).expect("a link");
    assert_eq!(status(scene.client.start_container(&id.to_string(), None).await.err()), Some(403));
    assert!(!scene.engine.calls().iter().any(|call| call.ends_with("/start")));
}

#[tokio::test]
async fn folder_of_skills_that_cannot_be_opened_is_named() {
    let scene = scene(folder(), json!({}));
    let skills = Some(scene.root.path().join("nowhere"));
    let opened = Proxy::new(ProxyOptions { skills, ..options(scene.engine.host(), scene.root.path()) });
    let error = opened.err().expect("refused").to_string();
    assert!(error.contains("nowhere") && error.contains("SANDBOX_SKILLS__ROOT"), "{error}");
}

#[tokio::test]
async fn calls_name_the_created_container_by_the_engines_own_id() {
    let scene = scene(folder(), json!({}));
    let id = SandboxId::new();
    scene.create(id, "c").await.expect("created");
    assert_eq!(scene.statuses(id).await.iter().flatten().count(), 0);
    let calls = scene.engine.calls();
    let about: Vec<_> = calls.iter().filter(|call| call.contains("/containers/") && !call.contains("create")).collect();
    assert!(about.len() == 6 && about.iter().all(|call| call.contains("/containers/container-0")), "{calls:?}");
    assert!(scene.proxy.0.known.lock().containers.is_empty(), "what was removed is forgotten");
}

#[tokio::test]
async fn sandboxes_of_another_root_are_refused() {
    let (id, root, other) = (SandboxId::new(), folder(), folder());
    let scene = scene(root, running(id, other.path()));
    assert_eq!(scene.statuses(id).await, [Some(403); 6]);
    let changing = |call: &String| !call.starts_with("GET ");
    assert_eq!(scene.engine.calls().into_iter().filter(changing).count(), 0);
}

#[tokio::test]
async fn lists_show_of_other_roots_only_what_was_left_behind() {
    let (root, other) = (folder(), folder());
    let ids: [SandboxId; 4] = std::array::from_fn(|_| SandboxId::new());
    let listed = |id: SandboxId, root: &Path, state: &str, deadline: i64| {
        json!({
            "Id": "found", "Names": [format!("/{id}")], "Created": 0, "State": state,
            "Labels": {
                "sandbox.managed": "true", "sandbox.id": id.to_string(), "sandbox.deadline": deadline.to_string(),
                "sandbox.instance": InstanceId::new().to_string()
            },
            "Mounts": [{"Type": "bind", "Source": root.join("c/files"), "Destination": "/data"}]
        })
    };
    let all = json!([
        listed(ids[0], root.path(), "running", i64::MAX),
        listed(ids[1], other.path(), "running", i64::MAX),
        listed(ids[2], other.path(), "exited", i64::MAX),
        listed(ids[3], other.path(), "running", 0),
    ]);
    let scene = before(root, ScriptedEngine::start(move |_| (200, all.clone())));
    for label in [labels::SELECTOR.to_owned(), convert::id_filter(ids[1])] {
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found = scene.client.list_containers(Some(options)).await.expect("listed");
        let read = |one: &ContainerSummary| Some((convert::listed(one)?.id, one.mounts.is_some()));
        let found: Vec<_> = found.iter().filter_map(read).collect();
        assert_eq!(found, [(ids[0], true), (ids[2], false), (ids[3], false)]);
    }
}

#[tokio::test]
async fn sandboxes_of_this_root_are_found_after_a_restart_of_the_proxy() {
    let (id, root) = (SandboxId::new(), folder());
    let data = root.path().join("c/files");
    fs::create_dir_all(&data).expect("a folder");
    let inspected = running(id, &data);
    let scene = scene(root, inspected);
    assert_eq!(scene.statuses(id).await.iter().flatten().count(), 0);
}

#[tokio::test]
async fn attached_stream_copies_both_ways_and_ends_with_the_proxy() {
    let root = folder();
    let path = |name: &str| root.path().join(name);
    let engine = UnixListener::bind(path("engine.sock")).expect("a socket");
    let proxy = Proxy::new(options(format!("unix://{}", path("engine.sock").display()), root.path()));
    let (proxy, id, shutdown) = (proxy.expect("a proxy"), SandboxId::new(), CancellationToken::new());
    let container = Container { id: "c".to_owned(), folders: Folders::default() };
    proxy.0.known.lock().remember_container(id, container);
    let listener = Proxy::listen(&path("proxy.sock")).expect("a socket");
    let serving = tokio::spawn(proxy.serve(listener, shutdown.clone()));
    let mut client = UnixStream::connect(path("proxy.sock")).await.expect("a connection");
    let upgrade = "host: x\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n";
    client.write_all(format!("POST /containers/{id}/attach HTTP/1.1\r\n{upgrade}").as_bytes()).await.expect("sent");
    let (mut engine, _) = engine.accept().await.expect("a connection");
    assert!(read_to(&mut engine, "\r\n\r\n").await.starts_with("POST /containers/c/attach?"));
    engine.write_all(format!("HTTP/1.1 101 UPGRADED\r\n{upgrade}out").as_bytes()).await.expect("sent");
    read_to(&mut client, "\r\n\r\nout").await;
    client.write_all(b"in").await.expect("sent");
    read_to(&mut engine, "in").await;
    shutdown.cancel();
    serving.await.expect("it ends");
    assert_eq!(client.read(&mut [0; 1]).await.expect("the end"), 0);
}

#[tokio::test]
async fn head_and_bodies_of_requests_are_bounded() {
    let scene = scene(folder(), json!({}));
    let connect = || UnixStream::connect(scene.root.path().join("proxy.sock"));
    let mut long = connect().await.expect("a connection");
    let head = format!("GET /info HTTP/1.1\r\nx: {}", "x".repeat(2 * HEAD_BYTES_MAX));
    // The answer may come before all is read.
    let _ = long.write_all(head.as_bytes()).await;
    assert!(read_to(&mut long, "\r\n").await.contains("431"));
    let mut slow = connect().await.expect("a connection");
    let head = format!("POST /containers/create?name={} HTTP/1.1\r\nhost: x\r\n", SandboxId::new());
    slow.write_all(format!("{head}content-length: 9\r\n\r\n{{").as_bytes()).await.expect("sent");
    let left = || scene.proxy.0.bodies.available_permits();
    until("its body is read", || left() < BODIES_MAX).await;
    drop(slow);
    until("it is given up", || left() == BODIES_MAX).await;
}

#[tokio::test(start_paused = true)]
async fn unfinished_head_and_body_are_given_up() {
    let scene = scene(folder(), json!({}));
    let connect = || UnixStream::connect(scene.root.path().join("proxy.sock"));
    let mut head = connect().await.expect("a connection");
    head.write_all(b"GET /info HTTP/1.1\r\nhost: x").await.expect("sent");
    assert_eq!(head.read(&mut [0; 1]).await.expect("the end"), 0);
    let mut body = connect().await.expect("a connection");
    let start = format!("POST /containers/create?name={} HTTP/1.1\r\nhost: x\r\n", SandboxId::new());
    body.write_all(format!("{start}content-length: 9\r\n\r\n{{").as_bytes()).await.expect("sent");
    assert!(read_to(&mut body, "\r\n").await.contains("408"));
    assert_eq!(scene.proxy.0.bodies.available_permits(), BODIES_MAX);
}

/// What arrives until the text ends in `end`.
async fn read_to(stream: &mut UnixStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        text.push(char::from(stream.read_u8().await.expect("a byte")));
    }
    text
}

#[test]
fn what_is_remembered_has_a_bound() {
    let mut known = Known::default();
    for n in 0..2 * CONTAINERS_MAX {
        known.remember_container(SandboxId::new(), Container { id: String::new(), folders: Folders::default() });
        known.remember_runner(ImageId(n.to_string()));
        assert!(known.containers.len() <= CONTAINERS_MAX && known.runners.len() <= RUNNERS_MAX);
    }
    assert_eq!(known.containers.len(), CONTAINERS_MAX);
}

#[tokio::test]
async fn image_outside_of_the_allowed_ones_is_refused() {
    let scene = scene(folder(), json!({}));
    for (digit, allowed) in [("5", true), ("f", false)] {
        let checked = scene.proxy.0.check_image(&ImageId(format!("sha256:{}", digit.repeat(64)))).await;
        assert_eq!(checked.is_ok(), allowed, "{checked:?}");
    }
}

#[tokio::test]
async fn image_whose_name_was_removed_is_refused_within_a_minute() {
    let (root, named) = (folder(), Arc::new(AtomicBool::new(true)));
    let is_named = Arc::clone(&named);
    let engine = ScriptedEngine::start(move |_| {
        let tags: &[&str] = if is_named.load(Ordering::Relaxed) { &["runner-python:latest"] } else { &[] };
        (200, json!({"Id": image(), "RepoTags": tags, "Config": {"Labels": {"sandbox.runner": "true"}}}))
    });
    let options = ProxyOptions { images: "runner-*".into(), ..options(engine.host(), root.path()) };
    let (proxy, image) = (Proxy::new(options).expect("a proxy"), ImageId(image()));
    proxy.0.check_image(&image).await.expect("it has an allowed name");
    named.store(false, Ordering::Relaxed);
    proxy.0.check_image(&image).await.expect("it was checked a moment ago");
    assert_eq!(engine.calls().len(), 1);
    tokio::time::pause();
    tokio::time::advance(RUNNER_AGE_MAX).await;
    tokio::time::resume();
    proxy.0.check_image(&image).await.expect_err("it has no name any more");
}
