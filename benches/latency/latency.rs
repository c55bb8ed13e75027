//! One program at a time.

use mcp_sandbox_server::domain::id::SandboxId;
use std::{process::Command, time::Duration};

use crate::{
    median,
    programs::Program,
    server::Server,
    setting,
    ways::{self, Bare},
};

/// The table's first lines.
pub const HEAD: &str = "| one program, median ms (share of `docker run`) | new conversation | known conversation | no \
                        standby | engine's API | `docker run` | interpreter alone, in the image | host |\n\
                        | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

/// One line of it.
pub async fn table(warm: &Server, cold: &Server, bare: &Bare<'_>, program: &Program) {
    let rounds = setting("BENCH_ROUNDS", 30);
    let runner = warm.runner(program);
    let host = program.host.map(|words| (ways::host_interpreter(words[0]), &words[1..]));
    let mut times: [Vec<Duration>; 7] = Default::default();
    let known = format!("known-{}", SandboxId::new());
    for _ in 0..2 {
        warm.run(&known, program).await;
    }
    for _ in 0..rounds {
        warm.settle(program, 3).await;
        times[0].push(warm.run(&format!("new-{}", SandboxId::new()), program).await);
        warm.settle(program, 3).await;
        times[1].push(warm.run(&known, program).await);
        warm.settle(program, 3).await;
        times[2].push(cold.run(&format!("cold-{}", SandboxId::new()), program).await);
        times[3].push(bare.run(&runner, program.code).await);
        times[4].push(ways::command(&mut ways::docker_run(bare.config, &runner, bare.data), program.code));
        times[5].push(ways::interpreter_alone(bare.config, &runner, bare.data, program.code));
        if let Some((interpreter, arguments)) = &host {
            times[6].push(ways::command(Command::new(interpreter).args(*arguments), program.code));
        }
    }
    let medians = times.map(|mut times| (!times.is_empty()).then(|| median(&mut times)));
    let reference = medians[4].unwrap_or(f64::NAN);
    let cell = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1} (1/{:.1})", reference / ms));
    println!("| {} | {} |", program.name, medians.map(cell).join(" | "));
}
