//! Whether a folder that is renamed stays the `/data` of its sandbox. Probed once with a real sandbox: a bind mount on
//! this machine follows the folder; an engine in a virtual machine or elsewhere may not.

use std::{sync::Arc, time::Duration};

use tokio::{io::AsyncWriteExt, time::timeout};
use tracing::{info, warn};

use super::Inner;
use crate::{
    domain::{ConversationKey, Environment, Limits, Principal},
    services::{
        frames,
        sandbox::{SandboxEvent, Started, attach, send},
    },
};

const WAIT_MAX: Duration = Duration::from_secs(20);

/// Programs that create the file `x` in `/data`, in the languages of the usual runners.
const PROGRAMS: [(&str, &str); 4] = [
    ("bash", ": > x\n"),
    ("python", "open('x', 'w').close()\n"),
    ("javascript", "require('node:fs').writeFileSync('x', '')\n"),
    ("typescript", "import fs from 'node:fs'; fs.writeFileSync('x', '')\n"),
];

impl Inner {
    /// Whether it stays. Probes on each call until there is a result.
    pub(super) async fn assignment_is_supported(self: &Arc<Self>) -> bool {
        // What a sandbox has of its own belongs to no folder.
        if self.parts.sandboxes.volumes.streamed_bytes().is_some() {
            return true;
        }
        let probed = self.assignment_works.get_or_try_init(|| async {
            let supported = timeout(WAIT_MAX, probe(self)).await.unwrap_or(Some(false)).ok_or(())?;
            if supported {
                info!("a renamed folder stays with its sandbox: new conversations get standbys too");
            } else {
                warn!("a renamed folder does not stay with its sandbox: new conversations get no standby");
            }
            Ok::<_, ()>(supported)
        });
        *probed.await.unwrap_or(&false)
    }
}

/// `None` when the engine failed or no runner may be started now, which says nothing about folders.
async fn probe(inner: &Arc<Inner>) -> Option<bool> {
    let all = inner.parts.catalog.all();
    let known = PROGRAMS.iter().filter_map(|(language, program)| {
        all.iter().find(|runner| runner.language.as_str() == *language).map(|runner| (runner.clone(), *program))
    });
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        return Some(false);
    }
    // One that has not passed the isolation check may pass it later.
    let (runner, program) = known.into_iter().find(|(runner, _)| inner.parts.isolation.permits(&runner.image))?;
    let store = Arc::clone(&inner.parts.store);
    let mut folder = tokio::task::spawn_blocking(move || store.create_unassigned()).await.ok()?.ok()?;
    let (lease, spec) = inner.lease(&runner, folder.data(), inner.parts.sandboxes.mounts_of_all());
    let (sandboxes, leased) = (inner.parts.sandboxes.clone(), Arc::clone(&lease));
    // A start is never aborted, and the probe is: when it takes long, and with its caller.
    let started = inner.tasks.spawn(async move { sandboxes.start(&spec, leased).await }).await.ok()?.ok()?;
    let id = format!("assignment-{}", lease.id()).parse().ok()?;
    let id = ConversationKey::new(Principal::self_test(), id);
    let named = id.clone();
    let assigned = tokio::task::spawn_blocking(move || folder.assign(&id).ok().flatten()).await.ok()??;
    let ended = finish(started, program, &inner.parts.sandboxes.limits).await;
    let followed = assigned.data().path.join("x").exists();
    let store = Arc::clone(&inner.parts.store);
    drop(lease);
    drop(tokio::task::spawn_blocking(move || store.remove(&named)).await);
    (followed || ended).then_some(followed)
}

/// Runs the program; whether it ended, with any status.
async fn finish(started: Started, program: &str, limits: &Limits) -> bool {
    let (mut stdin, mut sandbox) = attach(started);
    let framed = sandbox.is_framed();
    let request = if framed {
        let env = Environment::default();
        let start = frames::Start::new(&[], &env, limits.wall(), Duration::ZERO);
        frames::request(program.as_bytes(), &start, &[], false)
    } else {
        program.as_bytes().to_vec().into()
    };
    if send(&mut stdin, &request).await && !framed {
        drop(stdin.shutdown().await);
    }
    loop {
        match sandbox.next().await {
            SandboxEvent::Output(..) | SandboxEvent::Files(_) | SandboxEvent::OutputBroke => {}
            SandboxEvent::ProgramExited(_) | SandboxEvent::ContractBroken(_) => return true,
            SandboxEvent::SandboxExited(exit) => return !framed && exit.is_ok_and(|exit| !exit.broke_off),
        }
    }
}
