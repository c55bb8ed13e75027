//! Parts of the scripts, as functions without an engine: what they find on machines that a test cannot be.

mod images;
mod machines;
mod policies;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::quickstart::functions_of;

fn bash(folder: &TempDir, script: &str) -> Output {
    Command::new("bash").args(["-c", script]).current_dir(folder.path()).output().expect("bash")
}

/// Runs a script that must succeed and print this; its messages.
fn prints(folder: &TempDir, script: &str, wanted: &str) -> String {
    let output = bash(folder, script);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == wanted, "{out}\n{err}");
    err.into_owned()
}

fn add_example(folder: &TempDir) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(".env.example");
    fs::copy(example, folder.path().join(".env.example")).expect("copied");
}

/// A process of the server, in a checkout that is reached by a symbolic link.
const LINKED: &str = r#"
mkdir -p checkout/dist checkout/target/run && cp -r functions.sh scripts checkout
cp "$(command -v sleep)" checkout/dist/mcp-sandbox-server
ln -s checkout link && cd link
. ./functions.sh
dist/mcp-sandbox-server 60 &
echo $! >"$PID_FILE"
until own_process_runs; do :; done
engine_answers() { return 1; }
stop
kill $! 2>/dev/null || true
"#;

#[test]
fn a_process_is_stopped_in_a_checkout_behind_a_link() {
    let folder = functions_of("quickstart.sh");
    let output = bash(&folder, LINKED);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && err.contains("quickstart: stopped"), "{err}");
}

/// A server that was started as a process, on a machine that has Compose now.
const COMPOSE_CAME: &str = r#"
. ./functions.sh
mkdir -p dist "$RUN_DIR"
cp "$(command -v sleep)" dist/mcp-sandbox-server
printf '#!/bin/sh
' >build.sh
chmod +x build.sh
dist/mcp-sandbox-server 60 &
echo $! >"$PID_FILE"
echo 9090 >"$PORT_FILE"
until own_process_runs; do :; done
check_machine() { :; }; install_tools() { :; }; ensure_engine() { :; }; install_compose() { :; }; check_builder() { :; }
write_env() { :; }; check_start() { :; }; make_root() { :; }; harden_root() { :; }
has_compose() { return 0; }
start_container() { own_process_runs && echo the process runs; echo "container on $1"; }
wait_until_ready() { :; }; first_run() { :; }; farewell() { :; }
main
kill $! 2>/dev/null || true
"#;

#[test]
fn a_process_of_the_server_ends_before_its_container_starts_on_the_same_port() {
    let folder = functions_of("quickstart.sh");
    prints(&folder, COMPOSE_CAME, "container on 9090\n");
}

/// The login is from before the script made the user a member of the engine's group; and an engine that is down.
const REFUSED: &str = r"
. ./functions.sh
touch .env
docker() { return 1; }
engine_answers() { return 1; }
joined_since_login() { return 0; }
sg() { :; }
again_as_member() { echo again ${1##*/} $2; exit; }
engine_refuses() { return 0; }
(stop)
engine_refuses() { return 1; }
(stop) || echo status $?
";

#[test]
fn stop_does_not_say_that_nothing_runs_where_it_cannot_know() {
    let folder = functions_of("quickstart.sh");
    let output = bash(&folder, REFUSED);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "again quickstart.sh --stop\nstatus 1\n", "{err}");
    assert!(err.contains("no Docker engine answers") && !err.contains("not running"), "{err}");
}

/// Prints where the server is asked whether it is ready, what curl gets, and the prefix of links on another port than
/// the default, which no setting names.
const ADDRESSES: &str = r#"
. ./functions.sh
unset MCP_PUBLISH
for published in '' 8080 127.0.0.1:8080 0.0.0.0:8080 '[::]:8080' 192.0.2.7:8080 '[2001:db8::7]:8080'; do
  MCP_PUBLISH=$published address_at 9090
done
curl() { printf '%s
' "$*"; }
MCP_PUBLISH=192.0.2.7:8080 ask 9090 -f http://localhost:9090/readyz
PUBLIC_BASE_URL=http://localhost:8080 base_url_at 9090
"#;

#[test]
fn a_server_that_is_published_for_one_address_is_asked_there() {
    let folder = functions_of("quickstart.sh");
    let wanted = "127.0.0.1:9090\n127.0.0.1:9090\n127.0.0.1:9090\n127.0.0.1:9090\n[::1]:9090\n192.0.2.7:9090\n\
                  [2001:db8::7]:9090\n\
                  -sS --noproxy * --connect-to localhost:9090:192.0.2.7:9090 -f http://localhost:9090/readyz\n\
                  http://localhost:9090\n";
    prints(&folder, ADDRESSES, wanted);
}

/// Writes .env with a root whose name has spaces, and reads that and values with quotes and comments back.
const QUOTED: &str = r#"
. ./functions.sh
unset MCP_PUBLISH DOCKER_HOST DOCKER_SOCKET MCP_API_TOKEN FILE_SECRET
docker() { return 1; }
SANDBOX_ROOT='/srv/my files' write_env 8080
unset SANDBOX_ROOT
setting SANDBOX_ROOT none
printf '%s
' 'MCP_API_TOKEN="a #token"  # "mine"' "MCP_PUBLISH='127.0.0.1:7070'  " 'FILE_SECRET=a#b # it'"'s" >>.env
token
publish_at 9090
setting FILE_SECRET none
setting PUBLIC_BASE_URL none
"#;

#[test]
fn settings_with_spaces_quotes_and_comments_are_read_as_the_server_reads_them() {
    let folder = functions_of("quickstart.sh");
    add_example(&folder);
    let wanted = "/srv/my files\na #token\n127.0.0.1:9090\na#b\nhttp://localhost:8080\n";
    prints(&folder, QUOTED, wanted);
    // The server's own reader of such files.
    let read = dotenvy::from_path_iter(folder.path().join(".env")).expect("a file");
    let read: Vec<_> = read.map(|line| line.expect("a line")).collect();
    for (name, value) in [("SANDBOX_ROOT", "/srv/my files"), ("MCP_API_TOKEN", "a #token"), ("FILE_SECRET", "a#b")] {
        assert!(read.contains(&(name.to_owned(), value.to_owned())), "{read:?}");
    }
}

/// A user with a rootless engine, without Compose and without sudo.
const ROOTLESS: &str = r#"
. ./functions.sh
unset DOCKER_HOST DOCKER_SOCKET MCP_PUBLISH
docker() { [ "$1" != context ] || echo unix:///run/user/8/docker.sock; }
has_compose() { return 1; }
may_be_root() { return 1; }
is_root() { return 1; }
check_machine() { :; }; install_tools() { :; }; ensure_engine() { :; }; install_compose() { :; }; check_builder() { :; }
choose_port() { echo 9090; }
mkdir dist target
printf '#!/bin/sh
echo build
' >build.sh
printf '#!/bin/sh
echo "$DOCKER_HOST"
' >dist/mcp-sandbox-server
chmod +x build.sh dist/mcp-sandbox-server
(SANDBOX_ROOT=$PWD/none main) || echo status $?
start_process 9090
wait $!
cat "$LOG_FILE"
"#;

#[test]
fn a_user_without_root_is_told_of_the_missing_root_before_the_build_and_uses_the_engine_of_docker() {
    let folder = functions_of("quickstart.sh");
    add_example(&folder);
    let output = bash(&folder, ROOTLESS);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "status 1\nunix:///run/user/8/docker.sock\n", "{err}");
    assert!(err.contains("/none, where files are kept, is not there"), "{err}");
}

/// An update of the lists that waits for a lock, one that fails, and words for the shell of sg.
const PROVISION: &str = r#"
. ./functions.sh
LC_ALL=C sh -c "$(LC_ALL=C quoted printf '[%s]\n' '/home/josé/a b' "it's" '$x `y` \n &' '')"
sleep() { echo slept; }
tries=0
as_root() {
  tries=$((tries + 1))
  [ $tries != 3 ] || return 0
  echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)'
  return 100
}
update_lists
as_root() { echo 'E: no network'; return 100; }
update_lists || echo failed
"#;

#[test]
fn lists_are_updated_once_their_lock_is_free_and_words_reach_any_shell() {
    let wanted = "[/home/josé/a b]\n[it's]\n[$x `y` \\n &]\n[]\nslept\nslept\nfailed\n";
    let err = prints(&functions_of("quickstart.sh"), PROVISION, wanted);
    assert!(err.contains("no network"), "{err}");
}

/// An engine on a machine whose containerd is of another origin, as that of a cluster's node; apt-get asks nothing.
const CONFLICT: &str = r#"
. ./functions.sh
APT_UPDATED=yes
has() { return 0; }
may_be_root() { return 0; }
package_is_here() { return 1; }
package_is_known() { return 0; }
as_root() {
  [[ " $* " != *" --no-remove "* ]] || { echo 'E: Packages need to be removed but remove is disabled.'; return 100; }
  echo Removing containerd.io >&2
}
install_packages docker.io
"#;

#[test]
fn installing_a_package_removes_no_other() {
    let output = bash(&functions_of("quickstart.sh"), CONFLICT);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && err.contains("remove is disabled"), "{err}");
    assert!(err.contains("could not install docker.io"), "{err}");
}

/// Which versions of cargo compile this; where none does, a container is asked to each time, but for programs that were
/// copied here with a server.
const CARGO: &str = r#"
. ./functions.sh
for release in 0.66.0 1.85.0 1.94.1 1.95.0 1.100.2 '1.96.0-nightly (0123456 2026-01-01)'; do
  cargo() { echo "cargo $release"; }
  has_rust && echo "$release"
done
cargo() { return 1; }
has_rust || echo none
build_image() { echo "image $1"; }
take_out() { for name in sandbox-{init,bridge,channels}; do install -D functions.sh "dist/$name"; done; }
need_docker() { :; }
build_init
build_init
install dist/sandbox-init dist/mcp-sandbox-server
build_init
"#;

#[test]
fn an_old_cargo_counts_as_none() {
    let wanted = "1.95.0\n1.100.2\n1.96.0-nightly (0123456 2026-01-01)\nnone\nimage sandbox-init\nimage sandbox-init\n";
    prints(&functions_of("build.sh"), CARGO, wanted);
}

/// A second checkout in a folder of the same name, its own server, one whose folder was moved here, one behind a
/// tunnel; and Podman, where the server is a process.
const CHECKOUTS: &str = r#"
mkdir -p one/sandbox two/sandbox && cp -r functions.sh scripts two/sandbox
touch one/sandbox/.env two/sandbox/.env
cd two/sandbox && . ./functions.sh
engine_answers() { return 0; }
compose() { [ "$1" != ps ] || echo of-sandbox; }
docker() {
  case $* in *config_files*) echo "$files" ;; inspect*) echo "$started_in" ;; version*) echo "$engine" ;;
    port*) echo no public port >&2; return 1 ;;
  esac
}
files=docker-compose.yml engine='Server: Docker Engine - Community' started_in=$PWD/../../one/sandbox
(check_start) || echo "status $?, own: $(own_container)"
stop 2>&1
for started_in in "$PWD" "$PWD/../gone" ''; do check_start && own_container; done
files=$PWD/docker-compose-cloudflare.yml
(check_start) || echo behind a tunnel
(own_container_runs() { return 0; }; own_port || echo no port)
engine='Client: Podman Engine'
has_compose || echo no Compose
has_rust() { return 1; }
unset SERVER_BINARY
(check_start) || echo "status $?"
mkdir dist && touch dist/mcp-sandbox-server && chmod +x dist/mcp-sandbox-server
check_start
"#;

#[test]
fn a_checkout_leaves_the_server_of_another_one_alone() {
    let wanted = "status 1, own: \nquickstart: the server was not running\n\
                  of-sandbox\nof-sandbox\nof-sandbox\nbehind a tunnel\nno port\nno Compose\nstatus 1\n";
    let err = prints(&functions_of("quickstart.sh"), CHECKOUTS, wanted);
    for part in ["one/sandbox runs", "docker-compose-cloudflare.yml runs", "this needs Rust"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    assert!(!err.contains("no public port"), "{err}");
}

/// A server behind a tunnel that was stopped by itself, in a folder that was moved since; and one that docker-compose,
/// which notes paths as it was given them, started from a folder below: what Compose is told to end.
const TUNNEL: &str = r#"
. ./functions.sh
touch .env
engine_answers() { return 0; }
compose() {
  case $* in
    'ps -q -a sandbox') echo of-sandbox ;;
    down) echo "$COMPOSE_FILE by $COMPOSE_PATH_SEPARATOR" >ended ;;
  esac
}
docker() {
  case $* in
    *config_files*) echo "$noted" ;;
    inspect*) echo /gone/here ;;
  esac
}
noted=/gone/here/docker-compose-cloudflare.yml,/gone/here/own.yml
stop 2>&1
cat ended
noted=../docker-compose.yml,../../own.yml
stop 2>&1
cat ended
"#;

#[test]
fn stop_ends_the_containers_of_a_tunnel_too() {
    let wanted = "quickstart: stopped; files, .env, images and the container engine stay\n\
                  docker-compose-cloudflare.yml,own.yml by ,\n\
                  quickstart: stopped; files, .env, images and the container engine stay\n\
                  docker-compose.yml,../own.yml by ,\n";
    prints(&functions_of("quickstart.sh"), TUNNEL, wanted);
}
