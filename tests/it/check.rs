//! Programs that are formatted and checked by the tools of the images, and what is refused. The page's button is tested
//! with the page, by `page_state`.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{FakeServer, Server, calls, server::TOKEN};

async fn ask(server: &Server, language: &str, code: &str) -> (u16, Value) {
    let body = json!({"language": language, "code": code});
    calls::ask(server, Method::POST, "/v1/check", body).await
}

async fn check(server: &Server, language: &str, code: &str) -> Value {
    let (status, body) = ask(server, language, code).await;
    assert_eq!(status, 200, "{language}: {body}");
    body
}

/// The line, the rule and the severity of each problem.
fn found(answer: &Value) -> Vec<(u64, &str, &str)> {
    let problems = answer["problems"].as_array().expect("a list").iter();
    let text = |problem: &'_ Value, name: &str| problem[name].as_str().is_some_and(|text| !text.is_empty());
    problems
        .map(|problem| {
            assert!(text(problem, "message"), "{answer}");
            let line = problem["line"].as_u64().expect("a line");
            (line, problem["rule"].as_str().expect("a rule"), problem["severity"].as_str().expect("a severity"))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_formatted_and_their_problems_are_named() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    for (language, code, formatted, problems) in [
        ("py", "x=[1,\n2]\nimport os\n", "x = [1, 2]\nimport os\n", vec![(2, "E402"), (2, "F401")]),
        ("javascript", "f( 1 )\ndebugger", "f(1);\ndebugger;\n", vec![(2, "suspicious/noDebugger")]),
        (
            "typescript",
            "const a:number=1;export{a}\nif(a==2){f()}",
            "const a: number = 1;\nexport { a };\nif (a == 2) {\n  f();\n}\n",
            vec![(3, "suspicious/noDoubleEquals")],
        ),
        ("bash", "if true;then\necho 'ä'   b\nfi", "if true; then\n  echo 'ä' b\nfi\n", vec![]),
    ] {
        let answer = check(&server, language, code).await;
        assert_eq!(answer["code"], formatted, "{language}: {answer}");
        let found: Vec<_> = found(&answer).into_iter().map(|(line, rule, _)| (line, rule)).collect();
        assert_eq!(found, problems, "{language}: {answer}");
        let again = check(&server, language, formatted).await;
        assert_eq!(again["code"], formatted, "{language}: formatting it again changes nothing");
    }
    server.settled().await;
    assert_eq!(server.containers().await, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_cannot_be_parsed_are_answers_and_nothing_of_them_is_run() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    for (language, code, line) in [
        ("python", "import os\nx = = 1\n", 2),
        ("javascript", "let b = 2;\nconst a = ;\n", 2),
        ("typescript", "enum A { B }\ntype = 1 +;\n", 2),
        ("bash", "echo 'é'; true\nif true; then\necho 1\n", 2),
        // Neither ends the program of ours, nor is executed by it.
        ("bash", "exit 3\necho $(touch /data/x; kill -9 0) 'a\n", 2),
    ] {
        let answer = check(&server, language, code).await;
        assert_eq!(answer["code"], Value::Null, "{language}: {answer}");
        let found = found(&answer);
        assert!(found.iter().all(|(_, rule, severity)| (*rule, *severity) == ("syntax", "error")), "{answer}");
        assert_eq!(found.first().map(|first| first.0), Some(line), "{language}: {answer}");
    }
    let code = "import os,sys\nos.kill(os.getppid(),9)\nprint(sys.argv)\n";
    let answer = check(&server, "python", code).await;
    assert!(answer["code"].as_str().is_some_and(|code| code.starts_with("import os, sys\n\n")), "{answer}");
    server.stop().await;
}

/// Lines and programs longer than the tools count, and nesting that makes them crash.
#[tokio::test(flavor = "multi_thread")]
async fn longest_lines_and_deepest_nesting_are_answered_and_blame_the_program() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let long = "x".repeat(500_000);
    for (code, line, column) in [
        (format!("echo é{long} ; ) a\n"), 1, 1),
        (format!("echo é{} ; ) a\n", &long[..16_000]), 1, 16_010),
        (format!("{} ) a\n", ":\n".repeat(300_000)), 262_143, 2),
        (format!("{long} )\n"), 1, 1),
    ] {
        let answer = check(&server, "bash", &code).await;
        let problem = &answer["problems"][0];
        let place = (problem["line"].as_u64(), problem["column"].as_u64());
        assert_eq!(place, (Some(line), Some(column)), "{answer}");
    }
    for language in ["python", "javascript", "typescript", "bash"] {
        let (status, answer) = ask(&server, language, &"(".repeat(200_000)).await;
        let blames = answer["code"] == "invalid_argument" && answer["detail"].to_string().contains("code");
        assert!((status == 200 && !answer["problems"].is_null()) || (status == 422 && blames), "{language}: {answer}");
    }
    for language in ["python", "javascript", "typescript"] {
        let (status, answer) = ask(&server, language, &format!("x = = {long}")).await;
        assert_eq!((status, &answer["code"]), (200, &Value::Null), "{language}: {answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn checks_of_other_languages_and_answers_of_hostile_tools_are_refused() {
    let server = FakeServer::start().await;
    let refused = async |body: &Value, token: &str| {
        let url = format!("http://{}/v1/check", server.address);
        let answer = server.http.post(url).bearer_auth(token).json(body).send().await.expect("an answer");
        let body: Value = answer.json().await.expect("JSON");
        (body["code"].as_str().unwrap_or_default().to_owned(), body["detail"].as_str().unwrap_or_default().to_owned())
    };
    let (code, why) = refused(&json!({"language": "cobol", "code": "x"}), TOKEN).await;
    assert_eq!(code, "runner_not_found", "{why}");
    let long = "x".repeat((1 << 20) + 1);
    for (body, name) in [
        (json!({"language": "python", "code": ""}), "code"),
        (json!({"language": "python", "code": long}), "code"),
        (json!({"language": "python"}), "code"),
        (json!({"language": "python", "code": "x", "more": 1}), "more"),
    ] {
        let (code, why) = refused(&body, TOKEN).await;
        assert!(code == "invalid_argument" && why.contains(name), "{code}: {why}");
    }
    assert_eq!(refused(&json!({"language": "python", "code": "x"}), "no token").await.0, "unauthorized");
    assert!(server.engine.live().is_empty());

    // The first answer that fits counts, so each has a server of its own.
    server.stop().await;
    for printed in ["", "no JSON", r#"{"code":null,"problems":[],"more":1}"#, r#"{"code":7,"problems":[]}"#] {
        let server = FakeServer::start().await;
        server.engine.answer("by ruff", printed);
        let url = format!("http://{}/v1/check", server.address);
        let body = json!({"language": "python", "code": "x"});
        let answer = server.http.post(url).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
        assert_eq!(answer.json::<Value>().await.expect("JSON")["code"], "runner_failed", "{printed}");
        server.stop().await;
    }
}

/// Its group is listed when a client chooses it; the tool can be called in any case.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_mcp_checks_programs_too() {
    let server = FakeServer::start().await;
    let listed = async |query: &str| {
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let answer = server.post_to(query, list.to_string()).send().await.expect("an answer");
        answer.text().await.expect("text").contains("sandbox_check_code")
    };
    assert_eq!((listed("").await, listed("?tools=check").await), (false, true));

    let problem = json!({"line": 1, "column": 8, "endLine": 1, "endColumn": 10, "rule": "F401",
        "message": "os is not used", "severity": "warning"});
    let answer = json!({"code": "import os\n", "problems": [problem]});
    server.engine.answer("by ruff", &answer.to_string());
    let check = async |query: &str, code: &str| -> Value {
        let params = json!({"name": "sandbox_check_code", "arguments": {"language": "python", "code": code}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = server.post_to(query, call.to_string()).send().await.expect("an answer");
        answer.json::<Value>().await.expect("JSON")["result"].clone()
    };
    let (place, program) = ("- 1:8 F401 (warning): os is not used", "[The formatted program:]\nimport os\n");
    let result = check("", "import  os").await;
    assert_eq!(result["content"], json!([{"type": "text", "text": format!("{place}\n{program}")}]), "{result}");
    assert_eq!((&result["isError"], result.get("structuredContent")), (&json!(false), None), "{result}");
    let result = check("", "import os\n").await;
    let text = format!("{place}\n[The program is formatted already.]");
    assert_eq!(result["content"][0]["text"], text, "{result}");
    let result = check("?structured=on", "import  os").await;
    assert_eq!(result["structuredContent"], answer, "{result}");
    let result = check("", "").await;
    assert_eq!(result["isError"], true, "{result}");
    assert!(result["content"][0]["text"].as_str().is_some_and(|text| text.starts_with("code: ")), "{result}");
    server.stop().await;
}

/// A long program that is formatted already is not part of the answer, so its problems are told.
#[tokio::test(flavor = "multi_thread")]
async fn long_program_is_refused_only_where_the_answer_would_hold_it() {
    let server = FakeServer::start().await;
    let long = "x = 1\n".repeat(10_000);
    server.engine.answer("by ruff", &json!({"code": long, "problems": []}).to_string());
    let other = "x=1\n".repeat(10_000);
    for (query, code, refused) in [("", &long, false), ("", &other, true), ("?structured=on", &long, true)] {
        let params = json!({"name": "sandbox_check_code", "arguments": {"language": "python", "code": code}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = server.post_to(query, call.to_string()).send().await.expect("an answer");
        let result = answer.json::<Value>().await.expect("JSON")["result"].clone();
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert_eq!((result["isError"] == true, text.starts_with("code: it is too long")), (refused, refused), "{text}");
        assert!(refused || text.ends_with("[The program is formatted already.]"), "{text}");
    }
    server.stop().await;
}
