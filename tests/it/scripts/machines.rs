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
unshare() { printf '[%s]' "${@: -4}" | sed "s|$PWD/||"; echo; }
(main --user true)
(main --nextest true)
"#;

#[test]
fn a_clean_room_borrows_no_test_runner_unasked() {
    let wanted = "[tester][/rust][][true]\n[root][/rust][bin/cargo-nextest][true]\n";
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
