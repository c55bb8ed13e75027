//! Lines of standard error that a program draws again: the text has the last drawing, all else has each.

use serde_json::{Value, json};

use super::{call, program, raw, text};
use crate::support::FakeServer;

const BAR: &str = "10%\r50%\r100%";

#[tokio::test(flavor = "multi_thread")]
async fn text_shows_the_last_drawing_of_a_progress_bar() {
    let server = FakeServer::start().await;
    let program = program(&format!("print {BAR}\nstderr {BAR}\nstderr done"));
    let answer = raw(&server, "?structured=on", "sandbox_run_code", &program).await;
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let result = &answer["result"];
    assert!(text(result).starts_with(&format!("{BAR}\n[standard error]\n100%\ndone\n[")), "{result}");
    let report = &result["structuredContent"];
    assert_eq!((&report["stdout"], &report["stderr"]), (&json!(format!("{BAR}\n")), &json!(format!("{BAR}\ndone\n"))));
    // Offsets count every drawing.
    let rest = json!({"runId": report["runId"], "outputOffset": BAR.len() + 1});
    let rest = text(&call(&server, "sandbox_get_run", &rest).await);
    assert!(rest.starts_with(&format!("[standard error]\n{BAR}\ndone\n")), "{rest}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_show_it_too_wherever_their_text_is_cut() {
    let server = FakeServer::with_kernel(&[]).await;
    let shown = async |query: &str, tool: &str, arguments: Value| {
        let answer = raw(&server, query, tool, &arguments).await;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        text(&answer["result"])
    };
    let code = format!("print {BAR}\nstderr {BAR}");
    let whole = format!("{BAR}\n[standard error]\n100%\n");
    for (query, tool, member) in [
        ("?tools=coderunner", "execute_python_code", "command"),
        ("?tools=ipybox", "execute_ipython_cell", "code"),
        ("?tools=session", "sandbox_run_cell", "code"),
    ] {
        let shown = shown(query, tool, json!({ member: code })).await;
        assert!(shown.starts_with(&whole), "{tool}: {shown}");
    }
    let long = "x".repeat(200);
    for (code, begin, end) in [
        (format!("print {long}\nstderr {BAR}"), "xxx", "x\n[standard error]\n100%\n"),
        (format!("print {BAR}\nstderr {BAR}\nstderr {long}"), whole.as_str(), "xxx\n"),
        (format!("print {long}\nstderr {long}\nstderr {BAR}"), "xxx", "xxx\n100%\n"),
    ] {
        let cell = json!({"code": code, "max_output_chars": 100});
        let shown = shown("?tools=ipybox", "execute_ipython_cell", cell).await;
        assert!(shown.starts_with(begin) && shown.ends_with(end), "{shown}");
        assert!(shown.contains(" bytes are left out here: "), "{shown}");
    }
    server.stop().await;
}
