//! The engine: what it is, which runners it has, and whether its sandboxes isolate.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::finding::{Findings, Level};
use crate::{
    app::{App, StartError},
    config::Config,
    ports::{
        engine::{Engine, Probe},
        runner::{Protocol, Runner},
        store::Store,
    },
    services::isolation_check::{Isolation, Rejection},
};

/// How long the self-test may take.
const TEST_MAX: Duration = Duration::from_mins(1);

/// Everything that needs the engine.
pub(super) async fn check(
    config: &Config,
    store: Option<Arc<Store>>,
    found: Result<(Arc<dyn Engine>, Probe), StartError>,
    findings: &mut Findings,
) {
    let (engine, probe) = match found {
        Ok(found) => found,
        Err(error) => {
            let text = format!("{:#}", anyhow::Error::from(error));
            return findings.sentence(Level::Fail, "engine", &text);
        }
    };
    findings
        .ok("engine", format!("{}, API {}, {}, {}", probe.engine, probe.api_version, probe.runtime, probe.platform));
    for detail in &probe.details {
        findings.ok("engine", detail);
    }
    for warning in &probe.warnings {
        findings.sentence(Level::Warn, "engine", warning);
    }
    if runners(engine.as_ref(), findings).await
        && let Some(store) = store
    {
        isolation(config, store, engine, probe, findings).await;
    }
}

/// Answers whether there is one.
async fn runners(engine: &dyn Engine, findings: &mut Findings) -> bool {
    let images = match engine.runners().await {
        Ok(images) => images,
        Err(error) => {
            findings.fail("runners", error, "look at the engine's own log");
            return false;
        }
    };
    let mut usable = false;
    for image in &images {
        let name = image.reference.clone().unwrap_or_else(|| image.id.0.clone());
        match Runner::from_image(image) {
            Ok(runner) => {
                usable = true;
                let protocol = match runner.protocol {
                    Protocol::Framed => "protocol 1",
                    Protocol::Plain => "the plain contract",
                };
                findings.ok("runner", format!("{} ({name}, {protocol})", runner.language));
            }
            Err(why) => {
                findings.warn("runner", format!("{name}: {why}"), "correct the image's labels and build it again");
            }
        }
    }
    if !usable {
        findings.fail("runners", "no image is a runner", "build them with ./build.sh runners");
    }
    usable
}

/// Starts what a server starts, without what it would keep running, and asks it.
async fn isolation(config: &Config, store: Arc<Store>, engine: Arc<dyn Engine>, probe: Probe, findings: &mut Findings) {
    let mut quiet = config.clone();
    quiet.standby.total_max = 0;
    quiet.audit.file.clear();
    quiet.metrics.http_addr.clear();
    let mut app = match App::assemble(&quiet, store, Arc::clone(&engine), probe).await {
        Ok(app) => app,
        Err(error) => {
            let text = format!("{:#}", anyhow::Error::from(error));
            return findings.sentence(Level::Fail, "isolation", &text);
        }
    };
    app.test_the_engine();
    match timeout(TEST_MAX, app.isolation.tried()).await {
        Ok(Isolation::Verified { notes, rejected }) => {
            findings.ok("isolation", "a sandbox saw its user, limits and walls as they should be");
            for note in notes {
                findings.sentence(Level::Warn, "isolation", &note);
            }
            runtime(engine.as_ref(), &rejected, findings).await;
            assignment(&app, findings).await;
        }
        Ok(Isolation::Violated(why) | Isolation::NoProgram(why)) => findings.sentence(Level::Fail, "isolation", &why),
        Ok(Isolation::Pending { why }) => findings.fail(
            "isolation",
            format!("it could not be tested: {}", why.unwrap_or_default()),
            "look at the engine's own log, then run this again",
        ),
        Err(_) => findings.fail("isolation", "the test took too long", "look at the engine's own log"),
    }
    app.stop().await;
}

/// Which runtime starts sandboxes, and why.
async fn runtime(engine: &dyn Engine, rejected: &[Rejection], findings: &mut Findings) {
    let Ok(Probe { runtime, runtime_reason, .. }) = engine.probe().await else { return };
    let rejected = rejected.iter().map(|Rejection { candidate, why }| {
        format!("the engine has {candidate} too, which did not pass the isolation check ({why})")
    });
    let reason = rejected.reduce(|all, one| format!("{all}; {one}")).unwrap_or(runtime_reason);
    findings.ok("runtime", format!("{runtime}: {reason}"));
}

async fn assignment(app: &App, findings: &mut Findings) {
    if app.standbys.assignment_is_supported().await {
        findings.ok("standby", "a renamed folder stays with its sandbox: new conversations find one that stands by");
    } else {
        findings.warn(
            "standby",
            "a renamed folder does not stay with its sandbox here, so sandboxes stand by for known conversations only",
            "for quicker first runs, let the engine and SANDBOX_ROOT be on the same Linux machine",
        );
    }
}
