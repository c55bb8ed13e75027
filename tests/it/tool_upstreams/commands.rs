//! Servers that are processes of this machine: what they get, how they end, and what is left of them.

use std::{fs, path::Path, time::Duration};

use mcp_sandbox_server::ports::tools::{Transport, UpstreamError};
use secrecy::SecretString;

use super::{call, connect, error_of, soon};

/// Answers `initialize` and calls of any tool with the text of `$answer`; `$1` runs before, `$2` after each call.
const SERVER: &str = r#"
eval "$1"
while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in
    *'"server/discover"'*)
      echo '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32601,"message":"no such method"}}' ;;
    *'"initialize"'*)
      echo '{"jsonrpc":"2.0","id":'"$id"',"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},'\
'"serverInfo":{"name":"sh","version":"1"}}}' ;;
    *'"tools/call"'*)
      eval "$2"
      echo '{"jsonrpc":"2.0","id":'"$id"',"result":{"content":[{"type":"text","text":"'"$answer"'"}]}}' ;;
  esac
done
"#;

fn command(before: &str, at_call: &str, env: &[(&str, &str)]) -> Transport {
    let arguments = ["-c", SERVER, "server", before, at_call];
    Transport::Command {
        program: "sh".to_owned(),
        arguments: arguments.map(str::to_owned).to_vec(),
        env: env.iter().map(|(name, value)| ((*name).to_owned(), SecretString::from(*value))).collect(),
    }
}

/// Waits until a process is there no more, not even as a zombie.
async fn is_gone(pid: &str) {
    let folder = Path::new("/proc").join(pid);
    let gone = async {
        while folder.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(gone).await;
}

#[tokio::test]
async fn process_of_the_first_revision_gets_its_variables_alone() {
    let at_call = "answer=$(env | cut -d= -f1 | sort | tr '\\n' ' ')";
    let (upstream, _changes) = connect(&command("", at_call, &[("KEY", "value-1")])).await.expect("it connects");
    let answer = call(upstream.as_ref(), "any").await.expect("an answer");
    // The shell adds its own.
    let names: Vec<_> =
        answer.texts[0].split(' ').filter(|name| !matches!(*name, "" | "_" | "PWD" | "SHLVL")).collect();
    assert!(names.contains(&"KEY") && names.contains(&"PATH"), "{names:?}");
    let of_the_shell = ["KEY", "PATH", "OLDPWD"];
    assert!(names.iter().all(|name| of_the_shell.contains(name)), "{names:?}");
}

#[tokio::test]
async fn process_that_ignores_sigterm_ends_with_its_descendants() {
    let folder = tempfile::tempdir().expect("a folder");
    let pids = folder.path().join("pids");
    // A child in the group, and one in a session of its own.
    let before = format!(
        "trap '' TERM; sleep 1000 & echo $! >> {0}; \
         setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; sleep 1001' & echo $$ >> {0}",
        pids.display()
    );
    let (upstream, _changes) =
        connect(&command(&before, &format!("answer=$(wc -l < {})", pids.display()), &[])).await.expect("it connects");
    while call(upstream.as_ref(), "any").await.expect("an answer").texts[0].trim() != "3" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pids = fs::read_to_string(pids).expect("the numbers");
    for pid in pids.lines() {
        assert!(Path::new("/proc").join(pid).exists(), "{pid} runs");
    }
    drop(upstream);
    for pid in pids.lines() {
        is_gone(pid).await;
    }
}

#[tokio::test]
async fn process_that_reads_no_more_ends_too() {
    let (upstream, _changes) = connect(&command("", "answer=$$; echo x >&2", &[])).await.expect("it connects");
    let pid = call(upstream.as_ref(), "any").await.expect("an answer").texts[0].clone();
    let stopped = std::process::Command::new("kill").args(["-STOP", &pid]).status().expect("kill");
    assert!(stopped.success());
    // More than a pipe holds.
    let big = serde_json::json!({"x": "x".repeat(1 << 20)}).as_object().cloned().expect("an object");
    let sink = std::sync::Arc::new(|_| ());
    let gave_up = tokio::time::timeout(Duration::from_millis(200), upstream.call("any", big, sink)).await;
    assert!(gave_up.is_err());
    drop(upstream);
    is_gone(&pid).await;
}

#[tokio::test]
async fn process_that_ends_closes_the_connection() {
    let (upstream, _changes) = connect(&command("", "exit 3", &[])).await.expect("it connects");
    let error = error_of(call(upstream.as_ref(), "any").await);
    assert!(matches!(error, UpstreamError::Away(_)), "{error:?}");
    assert!(!upstream.is_open());
}

#[tokio::test]
async fn line_of_100_mb_ends_the_connection_and_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid = folder.path().join("pid");
    let at_call = "head -c 100000000 /dev/zero | tr '\\0' x";
    let (upstream, _changes) =
        connect(&command(&format!("echo $$ > {}", pid.display()), at_call, &[])).await.expect("it connects");
    let error = error_of(call(upstream.as_ref(), "any").await);
    assert!(matches!(error, UpstreamError::Unusable(_)), "{error:?}");
    assert!(!upstream.is_open());
    is_gone(fs::read_to_string(pid).expect("a number").trim()).await;
}

#[tokio::test]
async fn program_that_is_not_there_is_away_and_tells_no_secret() {
    let env = vec![("KEY".to_owned(), SecretString::from("value-1"))];
    let transport =
        Transport::Command { program: "/nowhere/value-1".to_owned(), arguments: vec!["value-1".to_owned()], env };
    let error = error_of(connect(&transport).await);
    assert!(matches!(&error, UpstreamError::Away(text) if !text.contains("value-1")), "{error:?}");

    let error = error_of(connect(&command("echo $KEY; exit 1", "", &[("KEY", "value-1")])).await);
    assert!(matches!(&error, UpstreamError::Away(text) if !text.contains("value-1")), "{error:?}");
}
