//! Packages of conversations, with the real tools in real sandboxes, against indexes on this machine.

mod attacks;
pub mod index;
mod servers;
mod tls;

use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};

use self::index::Index;
use crate::support::{
    calls::{ask, call, cell, create, get, open_session, post, streams},
    server::{Server, TOKEN},
};

const PYTHON: &str = "python";
const JAVASCRIPT: &str = "javascript";
const BASH: &str = "bash";

async fn server(index: &Index, more: &[(&str, &str)]) -> Server {
    let settings = index.settings();
    let mut pairs: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    pairs.push(("SANDBOX_STANDBY__TOTAL_MAX", "0"));
    pairs.extend(more);
    Server::with(&pairs).await
}

/// Over REST; the status and the body.
async fn install(server: &Server, token: &str, conversation: &str, body: Value) -> (u16, Value) {
    call(server, token, Method::POST, &format!("/v1/conversations/{conversation}/packages"), body).await
}

/// What is installed then, and whether it was made before.
async fn installed(server: &Server, conversation: &str, language: &str, packages: &[&str]) -> (Vec<String>, bool) {
    let body = json!({"language": language, "packages": packages});
    let (status, body) = install(server, TOKEN, conversation, body).await;
    assert_eq!(status, 200, "{body}");
    let names = body["packages"].as_array().expect("names").iter();
    (names.map(|name| name.as_str().expect("a name").to_owned()).collect(), body["reused"] == true)
}

/// The code of a refusal and its words.
async fn refused(server: &Server, conversation: &str, language: &str, package: &str) -> (String, String) {
    let body = json!({"language": language, "packages": [package]});
    let (status, body) = install(server, TOKEN, conversation, body).await;
    assert!(status >= 400, "{package}: {body}");
    let text = |name: &str| body[name].as_str().unwrap_or_else(|| panic!("{body}")).to_owned();
    (text("code"), text("detail"))
}

/// Both streams of a program in a conversation.
async fn printed(server: &Server, conversation: &str, language: &str, code: &str) -> (String, String) {
    let body = json!({"conversationId": conversation, "language": language, "code": code});
    streams(&post(server, "/v1/runs", body).await["result"])
}

/// A session by its path; runs cells in it.
struct Session<'a>(&'a Server, String);

impl<'a> Session<'a> {
    async fn open(server: &'a Server, conversation: &str, language: &str) -> Self {
        let body = json!({"conversationId": conversation, "language": language});
        Self(server, open_session(server, TOKEN, body).await)
    }

    async fn cell(&self, code: &str) -> (String, String) {
        streams(&cell(self.0, TOKEN, &self.1, code).await)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn installed_packages_are_found_by_every_kind_of_program_and_not_listed() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    let session = Session::open(&server, "c", PYTHON).await;
    let (stdout, stderr) = session.cell("try:\n    import tiny\nexcept ImportError: print('not there')").await;
    assert_eq!(stdout, "not there\n", "{stderr}");
    let (names, reused) = installed(&server, "c", PYTHON, &["needs_tiny"]).await;
    assert_eq!((names, reused), (vec!["needs-tiny==1.0".to_owned(), "tiny==1.0".to_owned()], false));
    let code = "import subprocess, tiny, needs_tiny\nprint(tiny.VALUE, needs_tiny.VALUE, flush=True)\n\
                subprocess.run(['tiny-say'])\nfrom importlib.metadata import version\nprint(version('tiny'))";
    let (stdout, stderr) = printed(&server, "c", PYTHON, code).await;
    assert_eq!(stdout, "1.0 1.0\ntiny says 1.0\n1.0\n", "{stderr}");
    let (stdout, stderr) = session.cell("import tiny, needs_tiny; print(tiny.VALUE)").await;
    assert_eq!(stdout, "1.0\n", "{stderr}");
    let (stdout, stderr) =
        printed(&server, "c", BASH, "python3 -c 'import tiny; tiny.say()'; tiny-say; ls /data").await;
    assert_eq!(stdout, "tiny says 1.0\ntiny says 1.0\n", "{stderr}");

    let (names, _) = installed(&server, "c", JAVASCRIPT, &["uses-left@^1", "scripted"]).await;
    assert_eq!(names, ["left@1.0.0", "scripted@1.0.0", "uses-left@1.0.0"]);
    let code = "const used = require('uses-left'); console.log(used, require('scripted'));";
    let (stdout, stderr) = printed(&server, "c", JAVASCRIPT, code).await;
    assert_eq!(stdout, "left used false\n", "no script of a package runs: {stderr}");
    let code = "import used from 'uses-left'; import left from 'left'; console.log(used, left);";
    let (stdout, stderr) = printed(&server, "c", JAVASCRIPT, code).await;
    assert_eq!(stdout, "left used left\n", "{stderr}");
    let (stdout, stderr) = printed(&server, "c", BASH, "node -e 'console.log(require(\"left\"))'").await;
    assert_eq!(stdout, "left\n", "{stderr}");

    let call = json!({"conversationId": "d", "language": PYTHON, "packages": ["tiny"]});
    let result = server.call("sandbox_install_packages", call).await;
    assert_eq!(result["structuredContent"]["packages"], json!(["tiny==2.0"]), "{result}");
    for conversation in ["c", "d"] {
        let list = get(&server, &format!("/v1/conversations/{conversation}/files")).await;
        assert_eq!((&list["files"], &list["skipped"]), (&json!([]), &Value::Null), "{list}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_of_npm_are_found_by_sessions_and_leave_those_of_the_conversation_in_place() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    for (language, is_open) in [(JAVASCRIPT, true), ("typescript", false)] {
        if is_open {
            Session::open(&server, language, language).await;
        }
        installed(&server, language, JAVASCRIPT, &["uses-left@^1"]).await;
        let session = Session::open(&server, language, language).await;
        if is_open {
            // Deno reads its settings when it starts.
            let (status, _) = ask(&server, Method::POST, &format!("{}/restart", session.1), None).await;
            assert!(status < 300, "{language}: {status}");
        }
        let code = "import used from 'uses-left';\nconsole.log(used, (await import('left')).default);";
        let (stdout, stderr) = session.cell(code).await;
        assert_eq!(stdout, "left used left\n", "{language}: {stderr}");
        installed(&server, language, JAVASCRIPT, &["scripted"]).await;
        let (stdout, stderr) = session.cell("import late from 'scripted'; console.log(late)").await;
        assert_eq!(stdout, "false\n", "{language}: {stderr}");
    }
    let code = "const fs = require('fs');\n\
                for (const name of ['left', 'fs']) {\n  fs.mkdirSync('node_modules/' + name, { recursive: true });\n  \
                fs.writeFileSync(`node_modules/${name}/index.js`, `module.exports = 'own ${name}'`);\n}\n\
                import('left').then((m) => console.log(require('left'), m.default, typeof require('fs').mkdirSync));";
    let (stdout, stderr) = printed(&server, JAVASCRIPT, JAVASCRIPT, code).await;
    assert_eq!(stdout, "own left own left function\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_install_by_pip_and_npm_and_use_what_they_installed() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    let code = "import subprocess, sys\n\
                done = subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', 'tiny==1.0'])\n\
                import tiny\nprint(done.returncode, tiny.VALUE)";
    let (stdout, stderr) = printed(&server, "p", PYTHON, code).await;
    assert_eq!(stdout, "Installed tiny==1.0\n0 1.0\n", "{stderr}");
    let session = Session::open(&server, "p2", PYTHON).await;
    let (stdout, stderr) = session.cell("%pip install needs-tiny\nimport needs_tiny\nprint(needs_tiny.VALUE)").await;
    assert!(stdout.contains("Installed needs-tiny==1.0 tiny==1.0") && stdout.contains("\n1.0\n"), "{stdout}{stderr}");
    let code = "printf '\\xef\\xbb\\xbftiny==1.0\\r\\n' > list.txt\n\
                pip install -r list.txt && tiny-say\nnpm install left && node -e \
                'console.log(require(\"/data/.packages/javascript/node_modules/left\"))'";
    let (stdout, stderr) = printed(&server, "p3", BASH, code).await;
    assert_eq!(stdout, "Installed tiny==1.0\ntiny says 1.0\nInstalled left@1.0.0\nleft\n", "{stderr}");

    for (code, told) in [
        ("pip install no-such-package", "no-such-package"),
        ("pip install --index-url http://evil.example tiny", "--index-url is not supported"),
        ("pip install git+https://evil.example/x", "is an address or a path"),
        ("printf '\\xff\\xfet\\0' > wide.txt; pip install -r wide.txt", "ERROR: 'utf-8' codec"),
        ("npm install no-such-package", "no-such-package"),
    ] {
        let (stdout, stderr) = printed(&server, "p4", BASH, &format!("{code} && echo installed")).await;
        assert!(!stdout.contains("installed") && stderr.contains(told), "{code}: {stdout}{stderr}");
    }
    server.stop().await;
}

/// Without it neither runs: `attacks::what_cannot`, `installed_packages`.
#[tokio::test(flavor = "multi_thread")]
async fn setting_lets_packages_run_programs_of_their_own_while_they_are_installed() {
    let index = Index::start().await;
    let server = server(&index, &[("SANDBOX_PACKAGES__BUILDS", "true")]).await;
    assert_eq!(installed(&server, "b", PYTHON, &["built"]).await, (vec!["built==1.0".to_owned()], false));
    let (stdout, stderr) = printed(&server, "b", PYTHON, "import built; print(built.BY)").await;
    assert_eq!(stdout, "its backend\n", "{stderr}");
    installed(&server, "b", JAVASCRIPT, &["scripted"]).await;
    let (stdout, stderr) = printed(&server, "b", JAVASCRIPT, "console.log(require('scripted'))").await;
    assert_eq!(stdout, "true\n", "its script has run: {stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_a_token_with_one_at_once_gets_what_it_asks_for() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    let (_, token) = create(&server, json!({"name": "n", "owner": "ann", "limits": {"runsAtOnce": 1}})).await;
    let body = json!({"conversationId": "a", "language": BASH, "code": "pip install -q tiny==1.0 && tiny-say"});
    let (_, status) = call(&server, &token, Method::POST, "/v1/runs", body).await;
    assert!(status["result"]["stdout"].as_str().is_some_and(|text| text.ends_with("tiny says 1.0\n")), "{status}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_conversation_gets_what_the_first_made_and_other_owners_do_not() {
    let index = Index::start().await;
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("root").display().to_string();
    let same_root = [("SANDBOX_ROOT", path.as_str())];
    let first = server(&index, &same_root).await;
    let time = async |conversation: &str| {
        let begun = Instant::now();
        let (_, reused) = installed(&first, conversation, PYTHON, &["many", "tiny"]).await;
        (reused, begun.elapsed())
    };
    let (made, slow) = time("a").await;
    let sent = index.served();
    let (reused, fast) = time("b").await;
    assert!(!made && reused && index.served() == sent, "the second asks the index for nothing");
    println!(
        "800 modules: first {slow:?}, in another conversation {fast:?}, {:.0} times faster",
        slow.as_secs_f64() / fast.as_secs_f64()
    );
    let (_, token) = create(&first, json!({"name": "n", "owner": "ann"})).await;
    let body = json!({"conversationId": "a", "language": PYTHON, "code": "import tiny"});
    let (_, status) = call(&first, &token, Method::POST, "/v1/runs", body).await;
    assert!(status["result"]["stderr"].as_str().is_some_and(|text| text.contains("No module named")), "{status}");
    let body = json!({"language": PYTHON, "packages": ["many", "tiny"]});
    let (_, body) = install(&first, &token, "a", body).await;
    assert_eq!(body["reused"], false, "{body}");
    assert!(index.served() > sent, "the other owner's installation asks the index itself");
    first.stop().await;

    let second = server(&index, &same_root).await;
    let (stdout, stderr) = printed(&second, "b", PYTHON, "import many.m7\nprint(many.m7.V)").await;
    assert_eq!(stdout, "7\n", "{stderr}");
    assert!(installed(&second, "e", PYTHON, &["tiny", "many"]).await.1, "it is kept after a restart");
    second.stop().await;

    let stale = [same_root[0], ("SANDBOX_PACKAGES__FRESH_S", "0")];
    let third = server(&index, &stale).await;
    // The time of a tree is in whole seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert!(!installed(&third, "f", PYTHON, &["tiny", "many"]).await.1, "versions are chosen anew");
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_make_one_tree_and_one_conversation_gets_both() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    let both = tokio::join!(installed(&server, "x", PYTHON, &["tiny"]), installed(&server, "y", PYTHON, &["tiny"]),);
    assert!(both.0.1 != both.1.1, "one made it and the other used it: {both:?}");
    tokio::join!(installed(&server, "z", PYTHON, &["tiny"]), installed(&server, "z", PYTHON, &["many"]));
    let (stdout, stderr) = printed(&server, "z", PYTHON, "import tiny, many.m1\nprint(tiny.VALUE)").await;
    assert_eq!(stdout, "2.0\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn script_with_its_dependencies_runs_where_a_policy_allows_the_index() {
    let index = Index::start().await;
    let hosts = index.address.to_string();
    let server = server(&index, &[("SANDBOX_NETWORK__INDEX", &hosts), ("SANDBOX_LIMITS__WALL_MS", "60000")]).await;
    let code = "cat > s.py <<'X'\n# /// script\n# dependencies = [\"tiny<2\"]\n# ///\nimport tiny\ntiny.say()\nX\n\
                uv run -q --script s.py";
    let (stdout, stderr) = printed(&server, "s", BASH, code).await;
    assert_eq!(stdout, "tiny says 1.0\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_index_nothing_is_offered_and_programs_are_told() {
    let server = Server::with(&[]).await;
    assert_eq!(refused(&server, "o", PYTHON, "tiny").await.0, "packages_off");
    let code = "import os, subprocess\nprint([n for n in os.environ if 'SANDBOX' in n])\n\
                print(subprocess.run(['pip', 'install', 'tiny'], capture_output=True, text=True).stderr)";
    let (stdout, stderr) = printed(&server, "o", PYTHON, code).await;
    assert!(stdout.starts_with("[]\n") && stdout.contains("no network"), "{stdout}{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_requests_narrow_who_may_install() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    for (network, may) in [(json!([]), false), (json!(["packages"]), true)] {
        let (_, token) = create(&server, json!({"name": "n", "owner": "ann", "network": network})).await;
        let (status, body) = install(&server, &token, "t", json!({"language": PYTHON, "packages": ["tiny"]})).await;
        assert_eq!(status, if may { 200 } else { 403 }, "{body}");
        let code = "import os; print(os.environ.get('SANDBOX_PACKAGES'))";
        let (_, status) =
            call(&server, &token, Method::POST, "/v1/runs", json!({"language": PYTHON, "code": code})).await;
        assert_eq!(status["result"]["stdout"], if may { "uv\n" } else { "None\n" }, "{status}");
    }
    let code = "import os; print(os.environ.get('SANDBOX_PACKAGES'))";
    let status = post(&server, "/v1/runs", json!({"language": PYTHON, "code": code, "network": []})).await;
    assert_eq!(status["result"]["stdout"], "None\n", "{status}");
    server.stop().await;
}
