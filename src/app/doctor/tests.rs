//! Every check that can fail fails on the fake engine, with a fix.

use std::{io, sync::Arc, time::Duration};

use tempfile::TempDir;

use super::{Finding, Findings, Level, engine::check, machine};
#[cfg(feature = "kubernetes")]
use crate::adapters::engine::ClusterError;
use crate::{
    adapters::{
        engine::{
            ConnectError,
            fake::{FakeEngine, Offered, StartFault},
        },
        storage::DiskStorage,
    },
    app::StartError,
    config::{self, Config, Sources},
    domain::RunnerUsers,
    ports::{
        engine::{Engine, EngineError, ImageId},
        runner::RunnerImage,
        storage::Storage,
    },
    services::isolation_check::inspection::PASSING_REPORT,
};

fn config(root: &TempDir, more: &[(&str, &str)]) -> Config {
    let path = root.path().join("root").display().to_string();
    let usual = [("MCP_API_TOKEN", "0123456789abcdef-of-the-tests"), ("FILE_SECRET", "fedcba9876543210-of-the-tests")];
    let addresses = [("SANDBOX_ROOT", path.as_str()), ("MCP_HTTP_ADDR", "127.0.0.1:0")];
    let pairs = usual.iter().chain(&addresses).chain(more).map(|(name, value)| ((*name).into(), (*value).into()));
    config::load(&Sources::environment_only(pairs.collect())).expect("settings")
}

fn store(config: &Config) -> Arc<dyn Storage> {
    let users = RunnerUsers::one(rustix::process::getuid().as_raw());
    Arc::new(DiskStorage::at(&config.root, users).expect("a root"))
}

async fn of_engine(engine: &FakeEngine) -> Findings {
    let root = tempfile::tempdir().expect("a folder");
    of_engine_with(engine, &config(&root, &[])).await
}

async fn of_engine_with(engine: &FakeEngine, config: &Config) -> Findings {
    let mut findings = Findings::default();
    let found = match engine.probe().await {
        Ok(probe) => Ok((Arc::new(engine.clone()) as Arc<dyn Engine>, probe)),
        Err(error) => Err(StartError::Engine(error)),
    };
    check(config, Some(store(config)), found, false, &mut findings).await;
    assert_eq!(engine.live(), [], "nothing is left behind");
    findings
}

fn honest() -> FakeEngine {
    let engine = FakeEngine::default();
    engine.add_runner("bash");
    engine.answer("== ", PASSING_REPORT);
    engine
}

fn line<'a>(findings: &'a Findings, check: &str, level: Level) -> &'a str {
    let found = findings.0.iter().find(|finding| finding.check == check && finding.level == level);
    let found = found.unwrap_or_else(|| panic!("no {level:?} for {check} in\n{}", findings.text()));
    assert!(level == Level::Ok || found.fix.as_ref().is_some_and(|fix| !fix.is_empty()), "{found:?}");
    &found.detail
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_fails_no_check_on_a_healthy_engine() {
    let findings = of_engine(&honest()).await;
    assert!(!findings.failed(), "{}", findings.text());
    assert!(line(&findings, "isolation", Level::Ok).contains("the required user"));
    assert!(line(&findings, "standby", Level::Warn).contains("renamed"), "the fake engine's Bash is no Bash");
    let json: serde_json::Value = serde_json::from_str(&findings.json().expect("JSON")).expect("JSON");
    assert_eq!(json[0], serde_json::json!({"level": "ok", "check": "engine", "detail": findings.0[0].detail}));
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_keeps_expired_conversations_and_the_trash() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(&folder, &[("SANDBOX_QUOTA__KEPT_UNUSED_S", "1")]);
    let conversation = store(&config).create(&"old".parse().expect("an id")).expect("a conversation");
    drop(conversation);
    let marker = config.root.join("old/.mark");
    std::fs::write(&marker, "").expect("a marker");
    let marker = std::fs::File::open(&marker).expect("a marker");
    marker.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1)).expect("a time");
    let deleted = config.root.join(".trash/deleted/file");
    std::fs::create_dir_all(deleted.parent().expect("a folder")).expect("a folder");
    std::fs::write(&deleted, "").expect("a file");
    let findings = of_engine_with(&honest(), &config).await;
    assert!(!findings.failed(), "{}", findings.text());
    assert!(config.root.join("old/files").exists(), "the expired conversation is left");
    assert!(deleted.exists(), "the trash is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_a_language_that_is_not_served() {
    let engine = honest();
    engine.faults().forbidden.push(([192, 0, 2, 1], 443).into());
    engine.add_runner("ruby");
    let findings = of_engine(&engine).await;
    assert!(line(&findings, "isolation", Level::Ok).contains("the required user"));
    assert!(line(&findings, "isolation", Level::Fail).starts_with("ruby is not served"), "{}", findings.text());
}

#[tokio::test(start_paused = true)]
async fn doctor_names_the_languages_whose_check_does_not_end() {
    let engine = honest();
    engine.faults().forbidden.push(([192, 0, 2, 1], 443).into());
    engine.faults().start_delay = Duration::from_hours(1);
    engine.add_runner("ruby");
    let text = of_engine(&engine).await.text();
    for expected in ["the test took too long", "ruby is not served", "the check of bash has not ended"] {
        assert!(text.contains(&format!("FAIL  isolation: {expected}")), "{text}");
    }
    assert!(!text.contains("the check of ruby"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn doctor_leaves_no_sandbox_whose_start_outlasts_the_probe_of_folders() {
    let engine = honest();
    engine.faults().start_delay = Duration::from_secs(21);
    assert!(line(&of_engine(&engine).await, "standby", Level::Warn).contains("renamed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_the_runtime_and_the_reason() {
    let found = async |behaviour: Option<Offered>| {
        let engine = honest();
        if let Some(behaviour) = behaviour {
            engine.offer("crun", behaviour);
        }
        let findings = of_engine(&engine).await;
        assert!(!findings.failed(), "{}", findings.text());
        line(&findings, "runtime", Level::Ok).to_owned()
    };
    assert_eq!(found(None).await, "none: on command");
    assert!(found(Some(Offered::Sound)).await.starts_with("crun: "));
    let refused = found(Some(Offered::Refusing)).await;
    assert!(refused.starts_with("none: ") && refused.contains("does not work here"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_fails_without_engine_runner_or_isolation() {
    let away = honest();
    away.faults().away = true;
    assert!(line(&of_engine(&away).await, "engine", Level::Fail).contains("engine"));

    assert_eq!(line(&of_engine(&FakeEngine::default()).await, "runners", Level::Fail), "no image is a runner");

    let lying = FakeEngine::default();
    lying.add_runner("bash");
    lying.answer("== ", &PASSING_REPORT.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0"));
    assert_eq!(line(&of_engine(&lying).await, "isolation", Level::Fail), "programs may gain privileges");

    // Where each runner is checked, a finding names its language.
    for (forbidden, of) in [(vec![], ""), (vec![([192, 0, 2, 1], 443).into()], "[bash] ")] {
        let piped = FakeEngine::default();
        piped.faults().forbidden = forbidden;
        piped.add_runner("bash");
        piped.answer("== ", &PASSING_REPORT.replace("\ncore\n", "\n|/usr/share/apport/apport %p\n"));
        let findings = of_engine(&piped).await;
        let found = line(&findings, "isolation", Level::Warn);
        assert!(found.starts_with(of) && found.contains("core_pattern") && !findings.failed(), "{found}");
    }

    let unlimited = FakeEngine::default();
    unlimited.add_runner("bash");
    unlimited.answer("== ", &PASSING_REPORT.replace("268435456", "max"));
    assert_eq!(line(&of_engine(&unlimited).await, "isolation", Level::Fail), "the limit on memory does not hold");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_fails_without_a_test_and_warns_of_a_bad_image() {
    let refusing = honest();
    refusing.fail_next_start(StartFault::Unavailable);
    assert!(line(&of_engine(&refusing).await, "isolation", Level::Fail).contains("could not be tested"));

    let folder = tempfile::tempdir().expect("a folder");
    let findings = of_engine_with(&honest(), &config(&folder, &[("SANDBOX_OPENED__CA_FILE", "/nowhere/a.pem")])).await;
    let why = line(&findings, "isolation", Level::Fail);
    assert!(why.contains("SANDBOX_OPENED__CA_FILE /nowhere/a.pem") && why.ends_with("(os error 2)"), "{why}");

    let odd = honest();
    let labels = [("sandbox.runner", "true")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let unnamed =
        RunnerImage { id: ImageId("sha256:odd".to_owned()), reference: None, created_unix_s: 0, labels, flaw: None };
    let mut images = odd.runners().await.expect("images");
    images.push(unnamed);
    odd.set_runners(images);
    let findings = of_engine(&odd).await;
    assert!(line(&findings, "runner", Level::Warn).contains("sandbox.language"));
    assert!(!findings.failed());
}

#[tokio::test]
async fn doctor_reports_what_the_machine_lacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = async |more: &[(&str, &str)]| {
        let (config, mut findings) = (config(&folder, more), Findings::default());
        machine::root(&config, &mut findings);
        machine::addresses(&config, false, &mut findings).await;
        machine::public_address(&config, false, &mut findings);
        machine::audit(&config, &mut findings);
        machine::traces(&config, &mut findings).await;
        findings
    };
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let file = file.to_str().expect("text");
    line(&found(&[("SANDBOX_ROOT", file)]).await, "files", Level::Fail);
    line(&found(&[("SANDBOX_AUDIT__FILE", &format!("{file}/audit"))]).await, "audit", Level::Fail);
    let log = folder.path().join("audit.jsonl");
    line(&found(&[("SANDBOX_AUDIT__FILE", log.to_str().expect("text"))]).await, "audit", Level::Ok);
    assert!(!log.exists() && !folder.path().join("audit.jsonl.head").exists(), "the server makes them, as its user");
    let collector = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", collector.local_addr().expect("an address"));
    let endpoint = [("SANDBOX_TRACES__OTLP_ENDPOINT", endpoint.as_str())];
    line(&found(&endpoint).await, "traces", Level::Ok);
    drop(collector);
    line(&found(&endpoint).await, "traces", Level::Warn);
    let holder = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let taken = holder.local_addr().expect("an address").to_string();
    assert!(line(&found(&[("MCP_HTTP_ADDR", &taken)]).await, "address", Level::Warn).contains(&taken));
    drop(holder);
    let clear = found(&[("PUBLIC_BASE_URL", "http://sandbox.example.com")]).await;
    assert!(line(&clear, "links", Level::Warn).contains("unencrypted"));
    let every_interface = found(&[("MCP_HTTP_ADDR", ":0")]).await;
    assert!(line(&every_interface, "links", Level::Warn).contains("only this machine"));
    assert!(line(&found(&[]).await, "links", Level::Ok).contains("localhost"));
}

/// As under Compose: the server of the container has the address, and listens on all interfaces of the container.
#[tokio::test]
async fn doctor_does_not_warn_of_the_addresses_of_its_container() {
    let holder = tokio::net::TcpListener::bind("0.0.0.0:0").await.expect("a port");
    let port = holder.local_addr().expect("an address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let all = format!("0.0.0.0:{port}");
    let config = config(&folder, &[("MCP_HTTP_ADDR", &all), ("PUBLIC_BASE_URL", "http://localhost:8080")]);
    let found = async |in_container: bool| {
        let mut findings = Findings::default();
        machine::addresses(&config, in_container, &mut findings).await;
        machine::public_address(&config, in_container, &mut findings);
        findings.0.iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>()
    };
    assert_eq!(found(true).await, [("address", Level::Ok), ("links", Level::Ok)]);
    assert_eq!(found(false).await, [("address", Level::Warn), ("links", Level::Warn)]);
}

/// In a container only the server can have an address, but not one of the host.
#[tokio::test]
async fn doctor_fails_an_address_that_this_machine_does_not_have() {
    let folder = tempfile::tempdir().expect("a folder");
    // Of a network for documentation (RFC 5737).
    let config = config(&folder, &[("MCP_HTTP_ADDR", "192.0.2.1:8080")]);
    for in_container in [false, true] {
        let mut findings = Findings::default();
        machine::addresses(&config, in_container, &mut findings).await;
        assert!(line(&findings, "address", Level::Fail).starts_with("192.0.2.1:8080 cannot be listened on"));
    }
}

#[tokio::test]
async fn doctor_in_a_container_says_how_its_host_offers_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = config(&folder, &[]);
    let found = async |error: StartError, in_container: bool| {
        let mut findings = Findings::default();
        check(&config, None, Err(error), in_container, &mut findings).await;
        let Finding { level, check, detail, fix } = findings.0.remove(0);
        assert_eq!((level, check), (Level::Fail, "engine"));
        (detail, fix.expect("a fix"))
    };
    let away = || {
        let source = EngineError::unavailable("ping", "no such file");
        StartError::Connect(ConnectError::Engine { host: "unix:///run/x.sock".to_owned(), source })
    };
    let (detail, fix) = found(away(), true).await;
    assert!(detail.contains("unix:///run/x.sock") && detail.contains("no such file"), "{detail}");
    assert!(fix.contains("the service `engine`") && !fix.contains("systemctl"), "{fix}");
    let (_, fix) = found(away(), false).await;
    assert!(fix.contains("systemctl start docker"), "{fix}");
    #[cfg(feature = "kubernetes")]
    {
        let source = EngineError::unavailable("ping", "no route");
        let cause = ClusterError::Api { host: "https://10.0.0.1/".to_owned(), source };
        let (detail, fix) = found(StartError::Cluster(cause), true).await;
        assert_eq!(detail.matches("https://10.0.0.1/ does not answer").count(), 1, "{detail}");
        assert!(detail.contains("no route") && fix.contains("KUBECONFIG"), "{detail}: {fix}");
    }
    let lost = StartError::Engine(EngineError::unavailable("ping", "no such file"));
    let (detail, fix) = found(lost, false).await;
    assert!(detail.contains("cannot be reached") && !fix.contains("doctor"), "{detail}: {fix}");
    let elsewhere = ConnectError::RootNotMounted { root: "/var/sandboxes".into() };
    let (detail, fix) = found(StartError::EngineSetting(elsewhere), true).await;
    assert_eq!(detail, "/var/sandboxes is inside this container only");
    assert!(fix.contains("SANDBOX_ENGINE__HOST_ROOT"), "{fix}");
}

#[test]
fn containers_of_every_engine_are_recognized() {
    for file in [".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io/serviceaccount/token"] {
        let root = tempfile::tempdir().expect("a folder");
        assert!(!super::in_container(root.path()));
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, "").expect("written");
        assert!(super::in_container(root.path()), "{file}");
    }
}

#[test]
fn doctor_warns_and_then_fails_when_the_disk_fills_up() {
    let level = |bytes| {
        let mut findings = Findings::default();
        machine::free(bytes, &mut findings);
        findings.0[0].level
    };
    assert_eq!((level(1 << 20), level(1 << 30), level(1 << 40)), (Level::Fail, Level::Warn, Level::Ok));
}

#[test]
fn doctor_warns_when_the_root_is_mounted_without_nosuid_or_nodev() {
    use rustix::fs::StatVfsMountFlags as Flags;
    let level = |flags| {
        let mut findings = Findings::default();
        machine::mount(flags, &mut findings);
        findings.0[0].level
    };
    let both = Flags::NOSUID | Flags::NODEV;
    assert_eq!((level(both), level(both | Flags::RELATIME)), (Level::Ok, Level::Ok));
    assert_eq!([Flags::NOSUID, Flags::NODEV, Flags::empty()].map(level), [Level::Warn; 3]);
}

#[test]
fn a_sentence_is_split_into_detail_and_fix() {
    let source = Box::new(io::Error::from(io::ErrorKind::NotConnected));
    let error = StartError::Engine(EngineError::Unavailable { act: "probe", source });
    let mut findings = Findings::default();
    findings.sentence(Level::Fail, "engine", &error.to_string());
    assert_eq!(findings.0[0].detail, "the container engine failed in a call that the start needs");
    assert!(findings.failed() && findings.text().starts_with("FAIL  engine: "));
}
