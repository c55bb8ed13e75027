//! Starting a sandbox: create, attach, start, in this order, so that no byte of output is missed.
//!
//! Spawns nothing. When a step fails or the future is dropped, the container already has its labels and its name, by
//! which the caller destroys it.

use std::{path::PathBuf, task::Poll, time::Duration};

use bollard::{
    Docker,
    container::{AttachContainerResults, LogOutput},
    errors::Error,
    query_parameters::{AttachContainerOptionsBuilder, CreateContainerOptionsBuilder},
};
use futures_util::{
    FutureExt, StreamExt,
    future::ready,
    stream::{self, BoxStream},
};
use tokio_util::sync::CancellationToken;

use super::{DockerEngine, call, convert, ending::ExitWatch};
use crate::{
    domain::{event::StreamKind, id::SandboxId, skills::SkillFolders},
    ports::engine::{EngineError, Output, Sandbox, SandboxSpec, Volume},
};

pub(super) async fn start(engine: &DockerEngine, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
    let (docker, time) = (&engine.docker, &engine.time);
    let name = spec.id.to_string();
    let runtime = engine.runtime.now();
    let container = create(engine, spec, &name, runtime.name.clone()).await?;
    runtime.ensure_applied(engine, &name).await?;
    let AttachContainerResults { output, input } = attach(docker, &name, time.start).await?;
    let refusals = engine.forks.watch(spec.id);
    call::within("start", time.start, docker.start_container(&name, None)).await?;
    refusals.follow_group(&container);
    let look = refusals.looker();
    let output = output.inspect(move |_| look());
    let streams_over = CancellationToken::new();
    let watch =
        ExitWatch { docker: docker.clone(), id: spec.id, time: *time, refusals, streams_over: streams_over.clone() };
    Ok(Sandbox {
        id: spec.id,
        stdin: input,
        output: demultiplexed(spec.id, output, streams_over),
        exit: watch.exit().boxed(),
    })
}

/// Creates the container and returns the engine's own id of it.
async fn create(
    engine: &DockerEngine,
    spec: &SandboxSpec,
    name: &str,
    runtime: Option<String>,
) -> Result<String, EngineError> {
    let on_host = |path: &PathBuf| {
        let host = engine.mounts.to_host(path);
        host.ok_or_else(|| EngineError::refused("create", "a folder for the sandbox is not below a root"))
    };
    let source = match &spec.data {
        Volume::HostFolder(folder) => Some(on_host(folder)?),
        Volume::Streamed { .. } => None,
        Volume::Claim { .. } => return Err(EngineError::refused("create", "the data folder is not below the root")),
    };
    let SkillFolders { public, user } = &spec.skills;
    let skills = SkillFolders {
        public: public.as_ref().map(on_host).transpose()?,
        user: user.as_ref().map(on_host).transpose()?,
    };
    let profile = convert::Profile { runtime, ..engine.profile.clone() };
    let body = convert::create_body(&profile, &SandboxSpec { skills, ..spec.clone() }, source.as_deref());
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    let created = engine.docker.create_container(Some(options), body);
    match call::within("create", engine.time.start, created).await {
        Ok(created) => {
            for warning in created.warnings {
                // The same for every sandbox; `probe` reports them once.
                tracing::debug!(sandbox = name, warning, "the engine does not apply the whole profile");
            }
            Ok(created.id)
        }
        Err(error) if call::status(&error) == Some(404) => Err(EngineError::ImageGone { image: spec.image.clone() }),
        Err(error) => Err(error),
    }
}

async fn attach(docker: &Docker, name: &str, limit: Duration) -> Result<AttachContainerResults, EngineError> {
    let options = AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).build();
    call::within("attach", limit, docker.attach_container(name, Some(options))).await
}

/// The two streams as the port defines them. Buffers at most one frame, ends after an error, and cancels `over` at the
/// end.
fn demultiplexed(
    id: SandboxId,
    frames: impl futures_util::Stream<Item = Result<LogOutput, Error>> + Send + 'static,
    over: CancellationToken,
) -> BoxStream<'static, Result<Output, EngineError>> {
    let mut broken = false;
    let (at_error, at_end) = (over.clone(), over);
    frames
        .map(move |frame| match frame {
            Ok(LogOutput::StdOut { message }) => Ok(Output { stream: StreamKind::Stdout, bytes: message }),
            Ok(LogOutput::StdErr { message }) => Ok(Output { stream: StreamKind::Stderr, bytes: message }),
            // The connection broke within a frame.
            Ok(LogOutput::StdIn { .. } | LogOutput::Console { .. }) => Err(EngineError::Lost { id }),
            Err(error) => Err(call::map_error("read", Duration::ZERO, error)),
        })
        .filter(|output| ready(!matches!(output, Ok(output) if output.bytes.is_empty())))
        .take_while(move |output| {
            let go_on = !broken;
            broken |= output.is_err();
            if broken {
                at_error.cancel();
            }
            ready(go_on)
        })
        .chain(stream::poll_fn(move |_| {
            at_end.cancel();
            Poll::Ready(None)
        }))
        .boxed()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn out(text: &'static str) -> LogOutput {
        LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) }
    }

    #[tokio::test]
    async fn demultiplexed_yields_output_until_the_connection_breaks() {
        let frames = vec![
            out("a"),
            out(""),
            LogOutput::StdErr { message: Bytes::from_static(b"b") },
            LogOutput::Console { message: Bytes::from_static(b"\x01\0") },
            out("never"),
        ];
        let frames = frames.into_iter().map(Ok::<_, Error>);
        let (id, over) = (SandboxId::new(), CancellationToken::new());
        let seen: Vec<_> = demultiplexed(id, stream::iter(frames), over.clone()).collect().await;
        let [Ok(first), Ok(second), Err(EngineError::Lost { id: lost })] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((first.stream, &first.bytes[..]), (StreamKind::Stdout, &b"a"[..]));
        assert_eq!((second.stream, &second.bytes[..]), (StreamKind::Stderr, &b"b"[..]));
        assert_eq!(*lost, id);
        assert!(over.is_cancelled());
    }
}
