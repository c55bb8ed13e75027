//! The engine: its versions, its runners, and whether its sandboxes isolate.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Findings, Level, machine::open_descriptors};
use crate::{
    app::{self, Parts, StartError, observability::Observability},
    config::Config,
    domain::text::chain,
    ports::{
        engine::{Engine, Probe},
        runner::Runner,
        storage::Storage,
    },
    services::isolation_check::{Isolation, Rejection},
};

/// How long the test may take: longer than a start, in which an image is fetched for up to a minute.
const TEST_MAX: Duration = Duration::from_secs(90);
/// How long destroying the sandboxes of the test may take.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Every check that needs the engine.
pub(super) async fn check(
    config: &Config,
    store: Option<Arc<dyn Storage>>,
    found: Result<(Arc<dyn Engine>, Probe), StartError>,
    in_container: bool,
    findings: &mut Findings,
) {
    let (engine, probe) = match found {
        Ok(found) => found,
        Err(error) => return unusable(&error, in_container, findings),
    };
    findings
        .ok("engine", format!("{}, API {}, {}, {}", probe.engine, probe.api_version, probe.runtime, probe.platform));
    for detail in &probe.details {
        findings.ok("engine", detail);
    }
    open_descriptors(app::descriptors::raise(), config, app::slots(config, &probe), findings);
    for warning in &probe.warnings {
        findings.sentence(Level::Warn, "engine", warning);
    }
    if runners(engine.as_ref(), findings).await
        && let Some(store) = store
    {
        isolation(config, store, engine, probe, findings).await;
    }
}

/// Reports why the engine cannot be used. What a start advises is to start the engine of this machine, which a
/// container cannot, or to run these checks.
fn unusable(error: &StartError, in_container: bool, findings: &mut Findings) {
    match error {
        StartError::Connect(cause) if in_container => findings.fail(
            "engine",
            chain(cause),
            "on the host, start the engine and what passes its socket on to this container (the service `engine` of \
             the compose files, whose DOCKER_SOCKET must be the engine's socket)",
        ),
        #[cfg(feature = "kubernetes")]
        StartError::Cluster(cause) => findings.fail(
            "engine",
            chain(cause),
            "let the server reach the API server and its credentials: the service account of its pod, or KUBECONFIG",
        ),
        StartError::Engine(cause) => findings.fail("engine", chain(cause), "start the engine, and read its log"),
        _ => findings.sentence(Level::Fail, "engine", &chain(error)),
    }
}

/// Returns whether there is a runner.
async fn runners(engine: &dyn Engine, findings: &mut Findings) -> bool {
    let images = match engine.runners().await {
        Ok(images) => images,
        Err(error) => {
            findings.fail("runners", chain(&error), "read the log of the engine");
            return false;
        }
    };
    let mut usable = false;
    for image in &images {
        let name = image.reference.clone().unwrap_or_else(|| image.id.0.clone());
        match Runner::from_image(image) {
            Ok(runner) => {
                usable = true;
                let protocol = if runner.is_framed { "protocol 1" } else { "the plain contract" };
                findings.ok("runner", format!("{} ({name}, {protocol})", runner.language));
            }
            Err(why) => {
                let fix =
                    "correct the labels of the image and build it again; with Kubernetes, correct the pod template";
                findings.warn("runner", format!("{name}: {why}"), fix);
            }
        }
    }
    if !usable {
        let fix = "build them with ./build.sh runners; with Kubernetes, make their pod templates";
        findings.fail("runners", "no image is a runner", fix);
    }
    usable
}

/// Runs the isolation test. Of the background tasks only the janitor starts, which destroys the sandboxes of the test.
async fn isolation(
    config: &Config,
    store: Arc<dyn Storage>,
    engine: Arc<dyn Engine>,
    probe: Probe,
    findings: &mut Findings,
) {
    let (signer, unobserved) = (app::signer(config), Observability::default());
    let mut parts = match Parts::build(config, signer, store, Arc::clone(&engine), &probe, &unobserved, None).await {
        Ok(parts) => parts,
        Err(error) => {
            let why = chain(&error);
            let fix = "correct what this names, then run this again";
            return findings.fail("isolation", format!("it could not be tested: {}", why.trim_end_matches('.')), fix);
        }
    };
    parts.shared.sandboxes.janitor.start();
    let check = parts.check.take().map(|check| tokio::spawn(check.run(parts.stop.clone())));
    match timeout(TEST_MAX, parts.shared.isolation.tried()).await {
        Ok(Isolation::Verified { notes, rejected }) => {
            findings.ok("isolation", "a sandbox has the required user, limits and isolation");
            for note in notes {
                findings.sentence(Level::Warn, "isolation", &note);
            }
            unserved(&parts, findings);
            runtime(engine.as_ref(), &rejected, findings).await;
            assignment(&parts, findings).await;
        }
        Ok(Isolation::Violated(why) | Isolation::NoProgram(why)) => findings.sentence(Level::Fail, "isolation", &why),
        Ok(Isolation::Pending { why }) => findings.fail(
            "isolation",
            format!("it could not be tested: {}", why.unwrap_or_default()),
            "read the log of the engine, then run this again",
        ),
        Err(_) => {
            findings.fail("isolation", "the test took too long", "read the log of the engine");
            unserved(&parts, findings);
            for language in parts.shared.isolation.unchecked(&parts.shared.catalog.all()) {
                let fix = "see that its image is on the nodes or soon fetched, then run this again";
                findings.fail("isolation", format!("the check of {language} has not ended"), fix);
            }
        }
    }
    parts.api.runs.stop(Duration::ZERO).await;
    parts.stop.cancel();
    if let Some(check) = check {
        drop(check.await);
    }
    // The probe of folders may have been given up while its sandbox starts.
    parts.shared.standbys.stop().await;
    parts.shared.sandboxes.janitor.drain(DRAIN_MAX).await;
}

/// Reports the languages that are refused, and why.
fn unserved(parts: &Parts, findings: &mut Findings) {
    for (language, why) in parts.shared.isolation.unserved() {
        findings.sentence(Level::Fail, "isolation", &format!("{language} is not served. {why}"));
    }
}

/// Reports which runtime starts sandboxes, and why.
async fn runtime(engine: &dyn Engine, rejected: &[Rejection], findings: &mut Findings) {
    let Ok(Probe { runtime, runtime_reason, .. }) = engine.probe().await else { return };
    let rejected = rejected.iter().map(|Rejection { candidate, why }| {
        format!("the engine has {candidate} too, which did not pass the isolation check ({why})")
    });
    let reason = rejected.reduce(|all, one| format!("{all}; {one}")).unwrap_or(runtime_reason);
    findings.ok("runtime", format!("{runtime}: {reason}"));
}

async fn assignment(parts: &Parts, findings: &mut Findings) {
    if parts.shared.standbys.assignment_is_supported().await {
        findings.ok("standby", "a renamed folder stays with its sandbox, so new conversations get a standby");
    } else {
        findings.warn(
            "standby",
            "a renamed folder does not stay with its sandbox here, so only known conversations get a standby",
            "for faster first runs, put the engine and SANDBOX_ROOT on the same Linux machine",
        );
    }
}
