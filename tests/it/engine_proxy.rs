//! The proxy in front of the engine's socket, with the requests of a compromised server. The contract suite
//! (`engine_contract`) checks that the adapter works behind it.

use std::{os::unix::fs::symlink, path::Path};

use bollard::{
    Docker,
    models::{ContainerCreateBody, HostConfig},
    query_parameters::{CreateContainerOptionsBuilder, ListContainersOptionsBuilder},
};
use mcp_sandbox_server::{
    adapters::engine::docker::{
        DockerEngine, DockerOptions, RuntimeSetting,
        proxy::{Proxy, ProxyOptions},
    },
    domain::{id::SandboxId, users::RunnerUsers},
    ports::engine::{Engine, EngineError, ImageId, SandboxSpec, Volume},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::engines::{World, base_image, docker, docker_host};

struct Front {
    host: String,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Front {
    fn new(world: &World, engine: &str) -> Self {
        Self::at(world.root.path(), engine)
    }

    fn at(root: &Path, engine: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("engine.sock");
        let listener = Proxy::listen(&socket).expect("a socket");
        let root = root.to_owned();
        let proxy = Proxy::new(ProxyOptions {
            engine: engine.to_owned(),
            root,
            users: RunnerUsers::one(1000),
            runtime: RuntimeSetting::Automatic,
            cgroup_parent: None,
            images: "".into(),
            folders: Vec::new(),
            skills: None,
        });
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(proxy.expect("a proxy").serve(listener, shutdown.clone()));
        Self { host: format!("unix://{}", socket.display()), shutdown, serving, _folder: folder }
    }

    async fn adapter(&self, world: &World) -> DockerEngine {
        let options = DockerOptions { host: Some(self.host.clone()), ..DockerOptions::new(world.root.path()) };
        DockerEngine::connect(options).await.expect("an engine")
    }

    fn client(&self) -> Docker {
        let path = self.host.trim_start_matches("unix://");
        Docker::connect_with_unix(path, 10, &bollard::ClientVersion { major_version: 1, minor_version: 41 })
            .expect("a client")
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.expect("it ends");
    }
}

fn status(error: &bollard::errors::Error) -> Option<u16> {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

fn is_refused(error: &EngineError) -> bool {
    let EngineError::Refused { source, .. } = error else { return false };
    source.downcast_ref().and_then(status) == Some(403)
}

#[tokio::test]
async fn proxy_refuses_requests_of_a_compromised_server() {
    let test = async |world: &World| {
        let front = Front::new(world, &docker_host());
        let client = front.client();
        // The machine's root, plainly and behind two megabytes, under one of our own names and under none.
        for padding in [0, 2 << 20] {
            for name in [SandboxId::new().to_string(), "web".to_owned()] {
                let body = ContainerCreateBody {
                    image: Some(world.image.0.clone()),
                    cmd: Some(vec!["x".repeat(padding)]),
                    host_config: Some(HostConfig {
                        privileged: Some(true),
                        binds: Some(vec!["/:/host".to_owned()]),
                        pid_mode: Some("host".to_owned()),
                        ..HostConfig::default()
                    }),
                    ..ContainerCreateBody::default()
                };
                let options = CreateContainerOptionsBuilder::new().name(&name).build();
                let error = client.create_container(Some(options), body).await.expect_err("refused");
                // Of two megabytes the answer may come before all was sent.
                assert!(status(&error) == Some(403) || padding > 0, "{error:?}");
            }
        }
        let all = ListContainersOptionsBuilder::new().all(true).build();
        assert_eq!(status(&client.list_containers(Some(all)).await.expect_err("refused")), Some(403));
        let running = world.start().await;
        let exec = bollard::exec::CreateExecOptions { cmd: Some(vec!["id"]), ..Default::default() };
        let refused = client.create_exec(&running.id.to_string(), exec).await.expect_err("refused");
        assert_eq!(status(&refused), Some(403));
        assert!(!world.listed().await.is_empty());
        world.engine.destroy(running.id).await.expect("destroyed");
        front.stop().await;
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn proxy_requires_a_real_folder_a_runner_image_and_the_configured_user() {
    let test = async |world: &World| {
        let front = Front::new(world, &docker_host());
        let engine = front.adapter(world).await;
        let link = world.root.path().join("link");
        symlink("/", &link).expect("a link");
        let unmarked = docker().await.inspect_image(&base_image()).await.expect("an image").id.expect("an id");
        let wrong = [
            SandboxSpec { data: Volume::HostFolder(link.clone()), ..world.spec() },
            SandboxSpec { data: Volume::HostFolder(link.join("etc")), ..world.spec() },
            SandboxSpec { data: Volume::HostFolder(world.root.path().join("nowhere")), ..world.spec() },
            SandboxSpec { image: ImageId(unmarked), ..world.spec() },
            SandboxSpec { uid: 0, ..world.spec() },
        ];
        for spec in wrong {
            let error = engine.start(&spec).await.expect_err("refused");
            assert!(is_refused(&error), "{spec:?}: {error:?}");
        }
        assert_eq!(world.listed().await, [], "nothing was made");

        front.stop().await;
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn proxy_refuses_calls_about_sandboxes_of_another_root() {
    let test = async |world: &World| {
        let theirs = world.start().await;
        let other = tempfile::tempdir().expect("a folder");
        let front = Front::at(other.path(), &docker_host());
        let options = DockerOptions { host: Some(front.host.clone()), ..DockerOptions::new(other.path()) };
        let engine = DockerEngine::connect(options).await.expect("an engine");
        assert!(is_refused(&engine.kill(theirs.id).await.expect_err("refused")));
        assert!(is_refused(&engine.destroy(theirs.id).await.expect_err("refused")));
        let inspected = front.client().inspect_container(&theirs.id.to_string(), None).await;
        assert_eq!(status(&inspected.expect_err("refused")), Some(403));
        assert!(matches!(&world.listed().await[..], [one] if one.id == theirs.id && one.running));
        // Before a proxy of its own root that did not start it, it is controlled as before.
        let own = Front::new(world, &docker_host());
        own.adapter(world).await.destroy(theirs.id).await.expect("destroyed");
        front.stop().await;
        own.stop().await;
    };
    World::docker().await.hold(test).await;
}

#[tokio::test]
async fn proxy_reports_an_unreachable_engine_and_recovers() {
    let test = async |world: &World| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("engine.sock");
        symlink(docker_host().trim_start_matches("unix://"), &path).expect("a link");
        let front = Front::new(world, &format!("unix://{}", path.display()));
        let engine = front.adapter(world).await;
        std::fs::remove_file(&path).expect("away");
        let error = engine.list().await.expect_err("away");
        assert!(matches!(error, EngineError::Unavailable { .. }), "{error:?}");
        symlink(docker_host().trim_start_matches("unix://"), &path).expect("a link");
        engine.list().await.expect("back");
        front.stop().await;
    };
    World::docker().await.hold(test).await;
}
