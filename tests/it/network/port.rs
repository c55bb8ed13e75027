//! The port of the channels, where process 1 has to start the interpreter a second time.

use futures_util::StreamExt as _;
use mcp_sandbox_server::ports::engine::{ImageId, SandboxSpec};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::support::engines::{World, build, read_until};

/// The program's file is a pipe, so process 1 waits there for a reader. Before it reads, the interpreter closes the
/// socket by which it would get the program. Process 1 learns of that only by the handover.
const INTERPRETER: &str = r#"
[ "$SANDBOX_CONTROL_FD" ] || { echo started cold; exit; }
mkfifo "$1"
printf u >&"$SANDBOX_CONTROL_FD"
until [ -e /data/gate ]; do sleep 0.01; done
eval "exec $SANDBOX_CONTROL_FD>&-"
exec cat "$1"
"#;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&[kind][..], &length, payload].concat()
}

#[tokio::test]
async fn interpreter_that_cannot_be_reached_is_started_cold_with_the_same_port() {
    let command = ["/sandbox-init", "--program", "/tmp/main", "--warm", "--", "bash", "-c", INTERPRETER, "bash"];
    let command = json!([&command[..], &["/tmp/main"][..]].concat());
    let dockerfile = format!("FROM runner-bash\nLABEL sandbox.runner=false\nENTRYPOINT {command}\n");
    let image = ImageId(build("mcp-sandbox-test-handover:latest", &dockerfile).await);
    let test = async |world: &World| {
        let spec = SandboxSpec { image: image.clone(), own_init: true, ..world.spec() };
        let mut sandbox = world.engine.start(&spec).await.expect("started");
        read_until(&mut sandbox, "protocol").await;
        let gate = [&[1_u8][..], &0o100_644_u32.to_be_bytes(), &0_i64.to_be_bytes(), b"gate"].concat();
        let request = [
            frame(1, br#"{"channels":true}"#),
            frame(9, &gate),
            frame(9, &[4]),
            frame(2, b"a program"),
            frame(5, b""),
            frame(3, b""),
        ];
        sandbox.stdin.write_all(&request.concat()).await.expect("written");
        sandbox.stdin.flush().await.expect("flushed");
        let mut output = Vec::new();
        while let Some(piece) = sandbox.output.next().await {
            output.extend_from_slice(&piece.expect("output").bytes);
        }
        let text = String::from_utf8_lossy(&output);
        assert!(text.contains("started cold\n") && text.contains(r#""status":0"#), "{text}");
        world.engine.destroy(spec.id).await.expect("destroyed");
    };
    World::docker().await.hold(test).await;
}
