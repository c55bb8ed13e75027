//! What is refused, what hostile indexes and packages do, and what programs can do to what is installed.

use super::{BASH, Index, JAVASCRIPT, PYTHON, install, installed, printed, refused, server};
use crate::support::server::TOKEN;
use serde_json::json;

/// A conversation for which every installation failed has nothing of it.
async fn nothing_is_there(server: &crate::support::server::Server, conversation: &str) {
    let (stdout, stderr) = printed(server, conversation, BASH, "ls -A /data").await;
    assert_eq!(stdout, "", "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_none_are_refused_by_name_before_anything_begins() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    let mut names =
        vec!["-r/etc/passwd", "--index-url=http://evil.example", "https://evil.example/a.whl", "./a", "/etc"];
    names.extend([
        "git+https://evil.example/a",
        "a b",
        "a\0",
        "a @ file:///etc/passwd",
        "",
        "../a",
        "user/repo",
        "a\n-r b",
    ]);
    for name in names {
        for language in [PYTHON, JAVASCRIPT] {
            let (code, detail) = refused(&server, "n", language, name).await;
            assert_eq!(code, "invalid_argument", "{name:?}: {detail}");
            assert!(detail.starts_with("packages: `"), "{detail}");
        }
    }
    for packages in [json!([]), json!(vec!["a"; 101]), json!("a"), json!(null)] {
        let body = json!({"language": PYTHON, "packages": packages});
        let (status, answer) = install(&server, TOKEN, "n", body.clone()).await;
        assert_eq!(status, 422, "{body}: {answer}");
    }
    let (code, detail) = refused(&server, "n", "cobol", "a").await;
    assert_eq!(code, "runner_not_found", "{detail}");
    assert_eq!(index.served(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_installed_says_why_and_leaves_nothing() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    for (language, package, told) in [
        (PYTHON, "no-such", "no-such"),
        (PYTHON, "tiny==9", "tiny==9"),
        (PYTHON, "source", "source"),
        (PYTHON, "built", "built"),
        (PYTHON, "pins-numpy", "numpy"),
        (PYTHON, "liar", "ash"),
        (JAVASCRIPT, "no-such", "no-such"),
        (JAVASCRIPT, "left@^7", "left"),
        (JAVASCRIPT, "npm-liar", "ntegrity"),
    ] {
        let (code, detail) = refused(&server, "w", language, package).await;
        assert_eq!(code, "packages_refused", "{package}: {detail}");
        assert!(detail.contains(told) && detail.len() < 4000, "{package}: {detail}");
    }
    nothing_is_there(&server, "w").await;
    // A conflict with what the conversation has leaves that as it is.
    installed(&server, "v", PYTHON, &["needs-tiny"]).await;
    let (code, detail) = refused(&server, "v", PYTHON, "tiny==2.0").await;
    assert_eq!(code, "packages_refused", "{detail}");
    let (stdout, stderr) = printed(&server, "v", PYTHON, "import tiny; print(tiny.VALUE)").await;
    assert_eq!(stdout, "1.0\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_packages_and_indexes_are_bounded() {
    let index = Index::start().await;
    let bounds = [("SANDBOX_QUOTA__BYTES_MAX", "67108864"), ("SANDBOX_PACKAGES__INSTALL_S", "20")];
    let server = server(&index, &bounds).await;
    let (code, detail) = refused(&server, "h", PYTHON, "bomb").await;
    assert!(matches!(code.as_str(), "quota_exceeded" | "packages_refused"), "{detail}");
    for package in ["endless", "silent"] {
        let (code, detail) = refused(&server, "h", PYTHON, package).await;
        assert_eq!(code, "packages_refused", "{package}: {detail}");
    }
    nothing_is_there(&server, "h").await;
    // Refused, or unpacked without what leads out.
    let body = json!({"language": PYTHON, "packages": ["climb"]});
    install(&server, TOKEN, "climbs", body).await;
    let code = "find / -xdev -name 'escaped*' 2>/dev/null; find /data -name 'escaped*'";
    let (stdout, stderr) = printed(&server, "climbs", BASH, code).await;
    assert_eq!(stdout, "", "{stderr}");
    let outside = std::process::Command::new("find").arg(&server.root).args(["-name", "escaped*"]).output();
    assert_eq!(String::from_utf8_lossy(&outside.expect("find").stdout), "");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_count_in_the_quota_and_are_refused_whole() {
    let index = Index::start().await;
    let server = server(&index, &[("SANDBOX_QUOTA__ENTRIES_MAX", "700")]).await;
    let (code, detail) = refused(&server, "q", PYTHON, "many").await;
    assert_eq!(code, "quota_exceeded", "{detail}");
    nothing_is_there(&server, "q").await;
    installed(&server, "q", PYTHON, &["tiny"]).await;
    let code = "import os\ntry:\n    for n in range(699): open(f'/data/{n}', 'w').close()\nfinally: print('made')";
    let body = json!({"conversationId": "q", "language": PYTHON, "code": code});
    let status = super::post(&server, "/v1/runs", body).await;
    assert_eq!(status["result"]["outcome"]["ended"], "disk_limit", "with its packages it has too many: {status}");
    server.stop().await;
}

/// Everything that a program might do to a file of its packages, and to their folder.
const ATTACK: &str = r#"
import ctypes, os, shutil, stat
done, files = [], 0
def attempt(name, path, act):
    try:
        act()
        done.append((name, path))
    except (OSError, ValueError):
        pass
def into(path):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"evil")
def linked(path):
    other = "/data/linked-" + str(files)
    os.link(path, other)
    os.chmod(other, 0o777)
    into(other)
for folder, _, names in os.walk("/data/.packages"):
    for name in names:
        path, files = os.path.join(folder, name), files + 1
        before = open(path, "rb").read()
        attempt("write", path, lambda: into(path))
        attempt("append", path, lambda: open(path, "ab").write(b"evil"))
        attempt("truncate", path, lambda: os.truncate(path, 0))
        attempt("chmod", path, lambda: os.chmod(path, 0o777))
        attempt("chown", path, lambda: os.chown(path, 1000, 1000))
        attempt("times", path, lambda: os.utime(path, (1, 1)))
        attempt("attribute", path, lambda: os.setxattr(path, "user.x", b"1"))
        attempt("link", path, lambda: linked(path))
        attempt("descriptor", path, lambda: into(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}"))
        attempt("replace", path, lambda: os.replace("/data/.mine", path))
        attempt("remove", path, lambda: os.unlink(path))
        assert open(path, "rb").read() == before, path
attempt("rename", "folder", lambda: os.rename("/data/.packages", "/data/moved"))
attempt("forge", "folder", lambda: shutil.copytree("/data/moved", "/data/.packages"))
forged = [os.path.join(f, n) for f, _, names in os.walk("/data/.packages") for n in names]
for path in forged:
    attempt("forge", "file", lambda: (os.chmod(path, 0o644), open(path, "w").write("print('evil')")))
print(files > 10, sorted({name for name, _ in done} - {"rename", "forge"}))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_a_program_does_to_its_packages_reaches_another_conversation() {
    let index = Index::start().await;
    let server = server(&index, &[]).await;
    installed(&server, "one", PYTHON, &["tiny", "needs-tiny"]).await;
    assert!(installed(&server, "two", PYTHON, &["tiny", "needs-tiny"]).await.1);
    let (stdout, stderr) = printed(&server, "one", PYTHON, ATTACK).await;
    assert_eq!(stdout, "True []\n", "{stderr}");
    assert!(installed(&server, "three", PYTHON, &["tiny", "needs-tiny"]).await.1);
    for conversation in ["two", "three"] {
        let (stdout, stderr) = printed(&server, conversation, PYTHON, "import tiny, needs_tiny; tiny.say()").await;
        assert_eq!((stdout.as_str(), stderr.as_str()), ("tiny says 1.0\n", ""), "{conversation}");
    }
    // What it forged is its own, and is gone with the next installation.
    installed(&server, "one", PYTHON, &["tiny"]).await;
    let (stdout, stderr) = printed(&server, "one", PYTHON, "import tiny; tiny.say()").await;
    assert!(stdout.starts_with("tiny says"), "{stdout}{stderr}");
    assert_eq!(super::ask(&server, reqwest::Method::DELETE, "/v1/conversations/one", None).await.0, 204);
    server.stop().await;
}
