//! What the tests and checks install and find on machines of other kinds.

use super::prints;
use crate::quickstart::functions_of;

/// A machine whose user may install packages, one whose mirror lacks them, and one whose user may not.
const CHART: &str = r#"
mv functions.sh scripts && . scripts/functions.sh
touch here
has() { [ "$1" = apt-get ] || grep -q golang-go here; }
package_is_here() { grep -q "$1" here; }
go() { echo go "$1"; }
may_be_root() { return 0; }
install_packages() { echo "installs $*" | tee here; }
(prepare)
: >here
install_packages() { exit 1; }
(prepare) || echo "status $?"
may_be_root() { return 1; }
install_packages() { echo installs "$@"; }
(prepare) || echo "status $?"
"#;

#[test]
fn the_chart_is_rendered_wherever_its_packages_can_be_installed() {
    let wanted = "installs golang-go golang-github-masterminds-sprig-dev golang-k8s-sigs-yaml-dev \
                  golang-github-xeipuuv-gojsonschema-dev\ngo build\nstatus 77\nstatus 77\n";
    let err = prints(&functions_of("scripts/chart.sh"), CHART, wanted);
    assert!(err.contains("needs Debian's packages golang-go"), "{err}");
}

/// What a room gets of a machine that has cargo-nextest: nothing, and that program where it was asked for.
const ROOM: &str = r#"
mv functions.sh scripts && . scripts/functions.sh
mkdir bin && cp "$(type -P true)" bin/cargo-nextest
PATH=$PWD/bin:$PATH
is_root() { return 0; }; has_rust() { return 0; }; rustc() { echo /rust; }
for name in install_packages remove_left_rooms check_disk make_root copy_repository; do eval "$name() { :; }"; done
unshare() { printf '[%s]' "${@: -5}" | sed "s|$PWD/||"; echo; }
(main --user true)
(main --nextest true)
"#;

#[test]
fn a_clean_room_borrows_no_test_runner_unasked() {
    let wanted = "[tester][/rust][][no][true]\n[root][/rust][bin/cargo-nextest][no][true]\n";
    prints(&functions_of("scripts/clean-room.sh"), ROOM, wanted);
}

/// Which versions of the tests' runner are taken, as it and its builds without Git print them; and how it is made.
const RUNNER: &str = r#"
. ./functions.sh
for printed in 'cargo-nextest 0.9.72 (0123456 2024-05-23)' "cargo-nextest $NEXTEST (0123456 2026-08-04)" \
  $'cargo-nextest 0.99.1\nrelease: 0.99.1'; do
  cargo-nextest() { echo "$printed"; }
  has_nextest && echo "${printed%%[$'\n' ]*}"
done
has() { return 1; }
mkdir bin
printf '#!/bin/sh
mkdir -p target/test-tools/cargo/build
echo "[$RUSTFLAGS]" "$@"
' >bin/cargo
chmod +x bin/cargo
PATH=$PWD/bin:$PATH
export RUSTFLAGS='-D warnings'
install_nextest | sed "s|$PWD/||g; s|@$NEXTEST||"
ls target/test-tools/cargo
"#;

#[test]
fn the_test_runner_is_new_enough_and_compiled_apart() {
    let wanted = "cargo-nextest\ncargo-nextest\n[] install --quiet --locked --root target/test-tools/cargo \
                  --target-dir target/test-tools/cargo/build --debug cargo-nextest --no-default-features \
                  --features default-no-update\n";
    prints(&functions_of("test.sh"), RUNNER, wanted);
}

/// A user with a strict umask, few descriptors, German messages and a proxy, whose folder for temporary files executes
/// nothing, on Debian 13; and a folder that no list of Git's names.
const ENVIRONMENT: &str = r#"
. ./functions.sh
mkdir noexec
stat() { echo tmpfs; }
chmod() { [[ $2 = */noexec/* ]] || command chmod "$@"; }
(check_clone) || true
git init -q && touch test.sh && git add test.sh && check_clone && echo a clone
unset http_proxy no_proxy NO_PROXY GIT_CONFIG_COUNT
export LC_ALL=de_DE.UTF-8 LANGUAGE=de https_proxy=http://proxy.example NO_PROXY=.example TMPDIR=$PWD/noexec
umask 077
ulimit -Sn 64
prepare_environment
echo "$(umask) $LC_ALL ${LANGUAGE:-} $no_proxy $NO_PROXY $TMPDIR"
git config --get-all safe.directory | grep -x "$(pwd -P)" >/dev/null && echo its own folder
[ "$(ulimit -Sn)" -gt 64 ] && echo more descriptors
ls noexec
"#;

#[test]
fn the_tests_inherit_the_same_environment_from_every_user() {
    let wanted = "a clone\n\
                  0022 C.UTF-8  .example,localhost,127.0.0.1,::1 .example,localhost,127.0.0.1,::1 /var/tmp\n\
                  its own folder\nmore descriptors\n";
    let err = prints(&functions_of("test.sh"), ENVIRONMENT, wanted);
    assert!(err.contains("git init && git add ."), "{err}");
}

/// Engines that a context of the docker command names, then ones that do not answer; and a kernel that has
/// `AppArmor`.
const ENGINES: &str = r#"
. ./functions.sh
unset DOCKER_HOST
docker() { echo "$named"; }
engine_answers() { return 0; }
for named in unix:///var/run/docker.sock ssh://far.example unix:///run/user/8/docker.sock; do
  (use_engine && echo "${DOCKER_HOST:-by default}")
done
engine_answers() { return 1; }
(ensure_engine) || echo "status $?"
has() { return 1; }
(DOCKER_HOST=tcp://far.example:2376 ensure_engine) || echo "status $?"
install_packages() { echo "installs $*"; }
has_apparmor() { return 1; }
install_docker
has_apparmor() { return 0; }
install_docker
"#;

#[test]
fn the_engine_of_the_context_is_the_one_of_the_tests_and_is_named_where_it_is_down() {
    let wanted = "by default\nby default\nunix:///run/user/8/docker.sock\nstatus 1\nstatus 1\n\
                  installs docker.io\ninstalls apparmor\ninstalls docker.io\n";
    let err = prints(&functions_of("test.sh"), ENGINES, wanted);
    assert!(err.contains("answers at unix:///run/user/8/docker.sock"), "{err}");
    assert!(err.contains("no docker command for the engine at tcp://far.example:2376"), "{err}");
}

/// A user with a strict umask, who joins the engine's group; sg is setuid, so it has no `TMPDIR`.
const USER: &str = r#"
. ./functions.sh
umask 077
has_compose() { return 0; }; engine_is_rootless() { return 1; }; may_be_root() { return 0; }; as_root() { "$@"; }
SANDBOX_ROOT=$PWD/above/root make_root
stat -c %a above above/root
mkdir bin
printf '#!/bin/sh
unset TMPDIR
exec sh -c "$3"
' >bin/sg
chmod +x bin/sg
PATH=$PWD/bin:$PATH TMPDIR='/srv/a b' again_as_member sh -c 'echo "$TMPDIR"'
"#;

#[test]
fn a_users_umask_and_folder_for_temporary_files_do_no_harm() {
    prints(&functions_of("quickstart.sh"), USER, "755\n711\n/srv/a b\n");
}

/// Two containers that are started, one of which ends meanwhile.
const BYSTANDERS: &str = r#"
. ./functions.sh
mkdir there
printf '#!/bin/sh
echo base
' >build.sh
chmod +x build.sh
docker() {
  case $1 in
    run) mktemp there/XXXXXX; [ "${*: -3}" = 'base sleep 1d' ] ;;
    inspect) [ ! -e "$4" ] || echo true ;;
    rm) rm -f "${@:3}" ;;
  esac
}
end_bystanders
start_bystanders && echo "${#BYSTANDERS[@]} started" && check_bystanders && echo all there
rm "${BYSTANDERS[0]}"
check_bystanders || echo "status $?"
end_bystanders
ls there
"#;

#[test]
fn the_containers_of_others_are_missed_when_one_is_gone() {
    let wanted = "2 started\nall there\nstatus 1\n";
    let err = prints(&functions_of("test.sh"), BYSTANDERS, wanted);
    assert_eq!(err.matches("was ended: there/").count(), 1, "{err}");
}
