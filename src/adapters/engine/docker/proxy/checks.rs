//! What has to hold of a container, a folder or an image before a call about it is passed on, and what is remembered of
//! that between calls.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::{
    super::{about, call, convert::Profile},
    BODY_BYTES_MAX, Inner, LOOK_MAX, ProxyOptions, RECEIVE_MAX,
    ownership::{self, Folders},
    profile::{self, Form},
    rules::{Act, Denied},
};
use crate::{
    domain::{
        SandboxId,
        clock::{Clock as _, SystemClock},
    },
    ports::{
        engine::{EngineError, ImageId},
        runner::LABEL_RUNNER,
    },
};

/// Containers that are remembered. The oldest is forgotten first; its next call inspects it.
pub(super) const CONTAINERS_MAX: usize = 4096;
pub(super) const RUNNERS_MAX: usize = 256;
/// How long a checked image stays allowed. An image id names its content, so the label cannot change; its names can.
pub(super) const RUNNER_AGE_MAX: Duration = Duration::from_mins(1);

#[derive(Default)]
pub(super) struct Known {
    /// Images that may be runners, and when that was checked.
    pub runners: HashMap<ImageId, Instant>,
    /// The containers that the engine created for this proxy.
    pub containers: BTreeMap<SandboxId, Container>,
}

/// A sandbox's container: the engine's own id of it and its folders, which belong together.
#[derive(Debug, Clone)]
pub(super) struct Container {
    pub id: String,
    pub folders: Folders,
}

impl Known {
    /// The first container of a name stays until it is removed, so that no later answer changes what `start` checks.
    pub(super) fn remember_container(&mut self, id: SandboxId, container: Container) {
        self.containers.entry(id).or_insert(container);
        if self.containers.len() > CONTAINERS_MAX {
            self.containers.pop_first();
        }
    }

    pub(super) fn remember_runner(&mut self, image: ImageId) {
        if self.runners.len() >= RUNNERS_MAX {
            self.runners.clear();
        }
        self.runners.insert(image, Instant::now());
    }

    pub(super) fn is_runner(&self, image: &ImageId) -> bool {
        self.runners.get(image).is_some_and(|checked| checked.elapsed() < RUNNER_AGE_MAX)
    }
}

impl Inner {
    /// The container that a call is about, if the call is allowed.
    pub(super) async fn container(&self, id: SandboxId, act: Act) -> Result<Container, Denied> {
        if let Some(known) = self.known.lock().containers.get(&id).cloned() {
            return Ok(known);
        }
        let found = call::within("inspect", LOOK_MAX, self.docker.inspect_container(&id.to_string(), None)).await?;
        let folders = ownership::folders(&found).filter(|folders| folders.data.starts_with(&self.root.path));
        let left_behind = || act == Act::Remove && ownership::is_left_behind(&found, SystemClock.unix_s());
        match (folders, found.id.clone()) {
            (Some(folders), Some(id)) => Ok(Container { id, folders }),
            (None, Some(id)) if left_behind() => Ok(Container { id, folders: Folders::default() }),
            _ => Err(Denied::new(format!("{id} is not a sandbox of this server's root"))),
        }
    }

    /// The folders and the body of a container, built from the requested one when the two are equal.
    pub(super) async fn vetted(&self, id: SandboxId, body: &[u8]) -> Result<(Folders, Vec<u8>), Denied> {
        let form = self.form.get_or_try_init(|| self.inspect_engine()).await?;
        let (image, folders, made) = profile::vet(form, id, &self.options.users, body)?;
        self.check_folders(&folders)?;
        self.check_image(&image).await?;
        Ok((folders, made))
    }

    /// Whether they are real folders. The engine resolves their paths again, so the answer holds for this moment only.
    pub(super) fn check_folders(&self, folders: &Folders) -> Result<(), Denied> {
        self.root.check(&folders.data)?;
        let root = || self.skills.as_ref().ok_or_else(|| Denied::new("no folder of skills is set"));
        folders.skills.iter().try_for_each(|folder| root()?.check(folder))
    }

    /// The body of an update, built from the requested one when that only lowers the CPU.
    pub(super) async fn vetted_update(&self, container: &str, request: Request<Incoming>) -> Result<Vec<u8>, Denied> {
        let _place = self.bodies.acquire().await;
        let body = received(request).await?;
        // Read each time, so that a lowered limit cannot be raised again.
        let found = call::within("inspect", LOOK_MAX, self.docker.inspect_container(container, None)).await?;
        profile::vet_update(found.host_config.and_then(|host| host.nano_cpus), &body)
    }

    async fn inspect_engine(&self) -> Result<Form, EngineError> {
        let info = call::within("ping", LOOK_MAX, self.docker.info()).await?;
        let ProxyOptions { runtime, cgroup_parent, folders, skills, .. } = &self.options;
        Ok(Form {
            profile: Profile {
                runtime: runtime.standard().map(str::to_owned),
                cgroup_v1: about::is_cgroup_v1(&info),
                podman: None,
                cgroup_parent: cgroup_parent.clone(),
            },
            candidate: runtime.candidate(&info),
            folders: folders.clone(),
            skills: skills.clone(),
            ceiling: profile::ceiling(&info),
        })
    }

    pub(super) async fn check_image(&self, image: &ImageId) -> Result<(), Denied> {
        if self.known.lock().is_runner(image) {
            return Ok(());
        }
        // The adapter reports one that is not found as an image that is gone.
        let found = call::within("inspect", LOOK_MAX, self.docker.inspect_image(&image.0)).await?;
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        if found.id.as_deref() != Some(&image.0) || !labels.contains_key(LABEL_RUNNER) {
            return Err(Denied::new("the image does not have the runner label"));
        }
        let mut names = found.repo_tags.iter().flatten().chain(&found.id);
        if !names.any(|name| self.options.images.allows(name)) {
            return Err(Denied::new("the image is not in SANDBOX_ENGINE__RUNNER_IMAGES"));
        }
        self.known.lock().remember_runner(image.clone());
        Ok(())
    }
}

pub(super) async fn received(request: Request<Incoming>) -> Result<Bytes, Denied> {
    let late = |_| Denied { status: StatusCode::REQUEST_TIMEOUT, why: "the body did not arrive in time".to_owned() };
    let body = timeout(RECEIVE_MAX, Limited::new(request.into_body(), BODY_BYTES_MAX).collect()).await.map_err(late)?;
    Ok(body.map_err(|_| Denied::new("the body is too large or broke off"))?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_container_of_a_name_does_not_replace_the_first() {
        let (mut known, id) = (Known::default(), SandboxId::new());
        for container in ["first", "second"] {
            known.remember_container(id, Container { id: container.to_owned(), folders: Folders::default() });
        }
        assert_eq!(known.containers[&id].id, "first");
    }
}
