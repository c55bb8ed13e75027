//! Sessions on the real kernels of the runner images.

use bytes::Bytes;
use mcp_sandbox_server::{
    domain::{
        outcome::{Ended, Limits},
        owner::{ConversationKey, Principal},
    },
    services::runs::{CellSession, Report, RunRequest},
};
use serde_json::json;

use crate::support::{
    calls::{get, post},
    server::Server,
    sheet::Sheet,
    until,
};

/// Announces a frame of 2^40 bytes on every connection to the bridge, which is ended by it and the session with it.
const FRAME_OF_A_TEBIBYTE: &str = "
import os, socket, time
for name in os.listdir('/proc/self/fd'):
    try:
        one = socket.socket(fileno=os.dup(int(name)))
        if one.family == socket.AF_UNIX and one.getsockname():
            one.send(b'\\x02' + (1 << 40).to_bytes(8, 'big'))
    except OSError:
        pass
time.sleep(20)
";

const OK: Ended = Ended::Exited { code: 0 };

fn request(name: &str, language: &str, code: &str) -> RunRequest {
    let conversation = ConversationKey::new(Principal::default(), name.parse().expect("an id"));
    let request = RunRequest::new(conversation, language.parse().expect("a language"), code.to_owned().into());
    RunRequest { session: Some(CellSession::Any), detach: Some(true), ..request }
}

async fn report(server: &Server, request: RunRequest) -> Report {
    let report = server.runs.begin(request).expect("a run").finished().await.expect("a report");
    Report::clone(&report)
}

async fn cell(server: &Server, language: &str, code: &str) -> Report {
    report(server, request(language, language, code)).await
}

/// A cell that does not end by itself.
async fn late(server: &Server, language: &str, code: &str) -> Report {
    let limits = Some(Limits { wall_ms: 5000, ..Limits::UNBOUNDED });
    report(server, RunRequest { limits, ..request(language, language, code) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_language_remembers_and_survives_its_time_limit() {
    let server = Server::with(&[("SANDBOX_LIMITS__WALL_MS", "60000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    for (language, set, get, expected, hang) in [
        ("python", "a = 41", "a + 1", "42\n", "while True: pass"),
        ("bash", "a=41", "echo $((a + 1))", "42\n", "while :; do :; done"),
        ("javascript", "let a = 41", "a + 1", "42\n", "while (true) {}"),
        ("typescript", "let a: number = 41", "a + 1", "42\n", "while (true) {}"),
    ] {
        let first = cell(&server, language, set).await;
        assert_eq!(first.outcome.ended, OK, "{language}: {}", first.stderr.text);
        let second = cell(&server, language, get).await;
        assert_eq!((second.stdout.text.as_str(), second.outcome.ended), (expected, OK), "{language}");
        let late = late(&server, language, hang).await;
        assert_eq!(late.outcome.ended, Ended::TimedOut, "{language}: {}", late.stderr.text);
        let after = cell(&server, language, get).await;
        assert_eq!(
            (after.stdout.text.as_str(), after.outcome.ended),
            (expected, OK),
            "{language}: {}",
            after.stderr.text
        );
        let figures = after.outcome.figures;
        assert!(
            figures.cpu.is_some() && figures.memory_peak_bytes.is_some_and(|bytes| bytes > 10 << 20),
            "{figures:?}"
        );
    }
    assert_eq!(server.containers().await, 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_shows_errors_tables_pictures_and_asks() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let failed = cell(&server, "python", "import os\n1/0").await;
    assert_eq!(failed.outcome.ended, Ended::Exited { code: 1 });
    assert!(failed.stderr.text.contains("ZeroDivisionError") && !failed.stderr.text.contains('\u{1b}'));
    let table = cell(&server, "python", "import pandas as pd\npd.DataFrame({'a': [1, 2]})").await;
    assert!(table.stdout.text.contains("   a\n0  1\n1  2"), "{}", table.stdout.text);
    let plot = cell(&server, "python", "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])").await;
    assert_eq!(plot.files.changed, 1, "{}", plot.stderr.text);
    assert!(plot.files.files[0].path.display().contains(".png"));
    let script = cell(&server, "python", "open('bad.py', 'w').write('1/0');\n%run bad.py\nprint('on')").await;
    assert_eq!((script.stdout.text.as_str(), script.outcome.ended), ("on\n", OK), "{}", script.stderr.text);
    assert!(script.stderr.text.contains("ZeroDivisionError"), "{}", script.stderr.text);
    let shell = cell(&server, "python", "!echo from-a-shell\nimport asyncio\nawait asyncio.sleep(0)\n%pwd").await;
    assert!(shell.stdout.text.contains("from-a-shell") && shell.stdout.text.contains("/data"), "{}", shell.stdout.text);
    let asks = RunRequest { stdin: Bytes::from_static(b"Ada\n"), ..request("python", "python", "input('who? ')") };
    assert!(report(&server, asks).await.stdout.text.contains("'Ada'"));
    let none = cell(&server, "python", "input('who? ')").await;
    assert!(none.stderr.text.contains("StdinNotImplementedError"), "{}", none.stderr.text);
    let handled =
        cell(&server, "python", "try:\n    import fitz\nexcept ImportError as error:\n    print(error.name)").await;
    assert_eq!((handled.stdout.text.as_str(), handled.stderr.text.as_str()), ("fitz\n", ""));
    let missing = cell(&server, "python", "import fitz").await.stderr.text;
    let (_, hint) = missing.split_once("ModuleNotFoundError: No module named 'fitz'").expect("a traceback");
    assert!(hint.contains("what is here instead: pypdf, pdfplumber. Installed beside"), "{missing}");
    let network = cell(&server, "python", "import socket\nsocket.create_connection(('1.1.1.1', 80), 2)").await;
    assert_eq!(network.outcome.ended, Ended::Exited { code: 1 });
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_kernel_ends_in_each_way_and_says_so() {
    let server = Server::with(&[("SANDBOX_LIMITS__WALL_MS", "60000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    for (code, ended, said) in [
        ("import os\nos._exit(3)", Ended::Exited { code: 3 }, "status 3"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", Ended::Signaled { signal: 11 }, "signal 11"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", Ended::OutOfMemory, "memory limit"),
        (FRAME_OF_A_TEBIBYTE, Ended::Signaled { signal: 9 }, "signal 9"),
    ] {
        assert_eq!(cell(&server, "python", "a = 41").await.outcome.ended, OK);
        assert_eq!(cell(&server, "python", code).await.outcome.ended, ended, "{code}");
        let next = cell(&server, "python", "print('again')").await;
        assert!(next.stderr.text.contains(said) && next.stdout.text == "again\n", "{code}: {}", next.stderr.text);
    }
    // An `await` on an idle loop is not woken by a signal alone.
    cell(&server, "python", "a = 41").await;
    let idle = late(&server, "python", "import asyncio\nawait asyncio.sleep(600)").await;
    assert_eq!(idle.outcome.ended, Ended::TimedOut);
    assert_eq!(cell(&server, "python", "a").await.stdout.text, "41\n");
    // One that ignores interrupts is ended.
    let ignores = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)";
    let deaf = late(&server, "python", ignores).await;
    assert_eq!(deaf.outcome.ended, Ended::TimedOut);
    assert!(deaf.stderr.text.contains("its variables are gone"), "{}", deaf.stderr.text);
    assert!(cell(&server, "python", "a").await.stderr.text.contains("NameError"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_a_real_kernel_is_bounded_and_the_session_lives() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    cell(&server, "python", "a = 41").await;
    let flood = cell(&server, "python", "for _ in range(64): print('x' * (1 << 20))").await;
    assert_eq!(flood.outcome.ended, Ended::OutputLimit);
    assert_eq!(cell(&server, "python", "a").await.stdout.text, "41\n");
    let lines = cell(&server, "python", "for n in range(2000): print(n, flush=True)").await;
    assert_eq!(lines.outcome.ended, OK);
    assert!(lines.stdout.text.ends_with("1999\n"), "{:?}", lines.stdout);
    server.stop().await;
}

/// A warm interpreter becomes the kernel, so what it has loaded is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_warm_python_becomes_a_session() {
    let server = Server::with(&[("SANDBOX_STANDBY__NAMELESS_MAX", "0")]).await;
    let run = RunRequest { session: None, ..request("warm", "python", "print(1)") };
    report(&server, run).await;
    let image = server.catalog.find(&"python".parse().expect("a language")).expect("python").image;
    until("one has loaded", async || server.standbys.standing_by(&image) > 0 && server.standbys.loading() == 0).await;
    let before = server.standbys.taken();
    let first = report(&server, request("warm", "python", "a = 41")).await;
    assert_eq!(first.outcome.ended, OK, "{}", first.stderr.text);
    assert_eq!(server.standbys.taken(), before + 1);
    assert_eq!(report(&server, request("warm", "python", "a + 1")).await.stdout.text, "42\n");
    server.stop().await;
}

/// The engine's kernel counts it for the container, and begins anew for root alone.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_cell_is_the_most_since_its_sandbox_started() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let large = cell(&server, "python", "len(b'x' * (100 << 20))").await;
    let small = cell(&server, "python", "1").await;
    let [large, small] = [large, small].map(|report| report.outcome.figures.memory_peak_bytes.expect("it is known"));
    assert!(large > 100 << 20 && small >= large, "{large} {small}");
    server.stop().await;
}

/// With the labels of the real images, which are in the description of `run_code`.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_tools_with_sessions_is_at_most_10_kb() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let answer = post(&server, "/mcp", call).await;
    let tools = answer["result"]["tools"].as_array().expect("tools");
    let sizes: Vec<_> = tools.iter().map(|tool| (tool["name"].as_str(), tool.to_string().len())).collect();
    assert!(sizes.iter().any(|(name, _)| *name == Some("sandbox_run_cell")), "{sizes:?}");
    assert!(sizes.iter().map(|(_, size)| size).sum::<usize>() <= 10_000, "{sizes:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_reach_programs_and_sessions_and_no_answer_shows_them() {
    const SECRET: &str = "hidden-3f9a";
    let server = Server::with(&[("SANDBOX_ENV__ALLOWED", "API_KEY,TZ,first")]).await;
    let env = json!({"API_KEY": SECRET, "TZ": "UTC", "first": "1st"});
    let mut answers = String::new();
    for (language, code) in [
        ("python", "from os import environ as env; print(env['API_KEY'][:6], env['TZ'], env['first'])"),
        ("bash", "echo ${API_KEY:0:6} $TZ $first"),
        ("javascript", "console.log(process.env.API_KEY.slice(0, 6), process.env.TZ, process.env.first)"),
    ] {
        // Twice: once in a fresh sandbox, once in one that stood by.
        for _ in 0..2 {
            let body = json!({"conversationId": "env", "language": language, "code": code, "env": env});
            let run = post(&server, "/v1/runs", body.clone()).await;
            assert_eq!(run["result"]["stdout"], "hidden UTC 1st\n", "{language}: {run}");
            let path = format!("/v1/runs/{}", run["runId"].as_str().expect("an id"));
            answers += &get(&server, &path).await.to_string();
            let called = server.call("sandbox_run_code", body).await.to_string();
            assert!(called.contains("hidden UTC 1st"), "{language}: {called}");
            answers += &called;
        }
        let body = json!({"conversationId": format!("env-{language}"), "language": language, "env": env});
        let session = post(&server, "/v1/sessions", body).await;
        let path = format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"));
        for _ in 0..2 {
            let cell = post(&server, &format!("{path}/cells"), json!({"code": code})).await;
            assert_eq!(cell["result"]["stdout"], "hidden UTC 1st\n", "{language}: {cell}");
            answers += &session.to_string();
            answers += &cell.to_string();
            // It keeps them.
            answers += &post(&server, &format!("{path}/restart"), json!({})).await.to_string();
        }
        let again = json!({"conversationId": format!("env-{language}"), "language": language, "env": {"TZ": "CET"}});
        let refused = post(&server, "/v1/sessions", again).await;
        assert!(refused["code"] == "invalid_argument" && refused["detail"].to_string().contains("env"), "{refused}");
    }
    assert!(!answers.contains(SECRET), "{answers}");
    for env in [json!({"PATH": SECRET}), json!({"API_KEY": 1}), json!([SECRET]), json!({"TZ": format!("{SECRET}\0")})] {
        let refused = post(&server, "/v1/runs", json!({"language": "bash", "code": "env", "env": env})).await;
        assert!(refused["code"] == "invalid_argument", "{refused}");
        assert!(refused["detail"].to_string().contains("env") && !refused.to_string().contains(SECRET), "{refused}");
        let call = json!({"language": "bash", "code": "env", "env": env});
        let refused = server.rpc("sandbox_run_code", call).await.to_string();
        assert!(refused.contains("env") && !refused.contains(SECRET), "{refused}");
    }
    server.stop().await;
}

/// What a person sees of the real kernel's tables, pictures and interactive plots.
#[tokio::test(flavor = "multi_thread")]
async fn page_shows_tables_plots_and_interactive_plots() {
    let server = Server::with(&[]).await;
    let sheet = Sheet::open(&server.url("/")).await;
    sheet.write("python", "import pandas as pd\npd.DataFrame({'city': ['Oslo', 'Rome'], 'n': [3, 12]})").await;
    sheet.click("session").await;
    sheet.click("run").await;
    assert_eq!(sheet.ended().await, "exited");
    let elements = "return [...document.querySelectorAll('[data-testid=displays] *')].map(e => e.localName)";
    let table = sheet.browser.script(elements).await.to_string();
    assert!(table.contains("\"table\"") && table.contains("\"td\""), "{table}");
    let plot = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 2])\nplt.show()";
    assert_eq!(sheet.run("python", plot).await, "exited");
    let plot = sheet.browser.script(elements).await.to_string();
    assert!(plot.contains("\"img\""), "{plot}");
    let plot = "import plotly.express as px\npx.bar(x=['a', 'b'], y=[1, 3])";
    assert_eq!(sheet.run("python", plot).await, "exited");
    assert_eq!(sheet.text("terminal").await, "The figure is figure-1.html.\n");
    sheet.says("files", |text| text.contains("figure-1.html")).await;
    assert_eq!(sheet.run("python", "a = 41").await, "exited");
    assert_eq!(sheet.run("python", "a + 1").await, "exited");
    assert_eq!(sheet.text("terminal").await, "42\n");
    assert_eq!(sheet.run("python", "1/0").await, "exited");
    let traceback = sheet.text("terminal").await;
    assert_eq!(traceback.matches("Traceback (most recent call last)").count(), 1, "{traceback}");
    let has_colours = sheet.browser.script("return document.querySelector('#terminal .fg1') !== null").await;
    assert_eq!(has_colours, true, "{traceback}");
    sheet.browser.close().await;
    server.stop().await;
}
