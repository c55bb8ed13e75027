#!/usr/bin/env bash
# Every test. Installs what is missing; safe to run again.
# shellcheck disable=SC2317 # functions are called by name, from step
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
# Read by provision.sh.
export PROGRAM=test
# shellcheck source=scripts/provision.sh
. scripts/provision.sh

readonly TOOLS=$PWD/target/test-tools
# Before those of the machine, which may be older.
export PATH=$TOOLS/cargo/bin:$PATH
# shellcheck source=scripts/test/machine.sh
. scripts/test/machine.sh
# shellcheck source=scripts/test/clients.sh
. scripts/test/clients.sh
# shellcheck source=scripts/test/bystanders.sh
. scripts/test/bystanders.sh
# Tests that mount file systems, start an engine, or are of a server that is root.
readonly OF_ROOT='test(/^(own_disk|compose|quickstart|users|engine_killed|history_api::read_only)::/)
  or test(/sqlite_on_a_full_disk|nothing_that_a_program_does_to_its_packages|^network::resolver::/)'
# Tests of which a part needs root, beside one that a user runs.
readonly OF_ROOT_TOO='test(/^(adapters::storage|services::quota)::tests::/)'
# The status of a step that was skipped.
readonly SKIPPED=77

usage() {
  cat <<TEXT
Usage: ./test.sh [--quick] [--long] [--clients] [--deny]
       ./test.sh --kubernetes
  --quick   only what is quick and needs neither a container engine nor a browser: format, lints, tests on the fake
            engine
  --long    the long form of the tests that have one (SPECIFICATION.md); half an hour more on a small machine
  --clients also install the clients that people use (700 MB from npm and PyPI) and drive them, and the examples, with
            a stand-in for their models: docs/clients.md, examples/. On where CI=true
  --kubernetes  only what needs a Kubernetes cluster: starts one (scripts/kubernetes-cluster.sh), runs the engine
            contract, servers and the chart on it, ends it. Takes ten minutes the first time, and root on Debian 12;
            elsewhere kind
  --deny    also install cargo-deny (takes minutes) and check the crates in use: licences, sources, advisories
Takes Rust 1.95 or newer, and root or sudo where a package is missing and for the tests that mount file systems. Keeps
what it makes under target/. A step that could not try anything is told as skipped; with CI=true in the environment it
fails.
TEXT
}

FAILED=()
TOOK=()
OMITTED=

# $1: what this step is, then its command. A failed step does not stop those after it.
step() {
  local name=$1 began=$SECONDS verdict=ok status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  if [ "$status" = "$SKIPPED" ] && [ "${CI:-}" != true ]; then
    verdict=skipped OMITTED=' but those that were skipped'
  elif [ "$status" != 0 ]; then
    FAILED+=("$name")
    verdict=FAILED
  fi
  TOOK+=("$(printf '%5d s  %-7s  %s' $((SECONDS - began)) "$verdict" "$name")")
}

# The same for a step that later steps need: its failure ends the run.
need() {
  local failed=${#FAILED[@]}
  step "$@"
  [ ${#FAILED[@]} -eq "$failed" ] || finish
}

# Begins a command in the background. $1: its name, then the command.
declare -A BEGUN
begin() {
  local name=$1
  shift
  mkdir -p target
  (
    SECONDS=0 status=0
    "$@" || status=$?
    printf '%s: took %d s\n' "$name" "$SECONDS"
    exit "$status"
  ) >"target/$name.log" 2>&1 &
  BEGUN[$name]=$!
}

# $1: its name. Waits for its end, and tells how long it took or why it failed.
ended() {
  wait "${BEGUN[$1]}" || { cat "target/$1.log"; return 1; }
  tail -n 1 "target/$1.log"
}

finish() {
  printf '\n'
  printf '%s\n' "${TOOK[@]}"
  [ ${#FAILED[@]} -gt 0 ] || { printf '\nall steps passed%s\n' "$OMITTED"; exit 0; }
  local name
  printf '\n'
  for name in "${FAILED[@]}"; do
    printf 'FAILED: %s\n' "$name"
  done
  exit 1
}

without_engine() { DOCKER_HOST=unix:///nowhere/docker.sock "$@"; }

with_streamed_files() { TEST_FILES=streamed "$@"; }

# $1: a profile of .config/nextest.toml, then arguments of cargo nextest run.
run_tests() {
  cargo nextest run --locked --workspace --profile "$@"
}

# $1: a profile. Those of root only where this is root, and without CI=true the parts of root are not missed.
run_mine() {
  if is_root; then run_tests "$1" --no-fail-fast; else CI='' run_tests "$1" --no-fail-fast -E "not ($OF_ROOT)"; fi
}

# $1: a profile
run_those_of_root() {
  by_root cargo nextest run --locked --workspace --profile "$1" --no-fail-fast -E "$OF_ROOT or $OF_ROOT_TOO"
}

report() { step "tests at their first attempt" scripts/test/report.py "$TARGET"/nextest/*/junit.xml; }

# Runs a command as root with the tools of this user.
by_root() {
  if is_root; then "$@"; return; fi
  may_be_root || { say "this runs as root, and there is no sudo."; return "$SKIPPED"; }
  local status=0
  # sudo has a PATH of its own, and the C library takes TMPDIR away from it; cargo finds its tools by HOME.
  sudo --preserve-env env "PATH=$PATH" "HOME=$HOME" ${TMPDIR:+"TMPDIR=$TMPDIR"} "$@" || status=$?
  as_root chown -R "$(id -u):$(id -g)" target "$TARGET"
  return "$status"
}

# With CI=true the server's image takes the binary of the tests' compilation, else the released one.
build_images() {
  local what=()
  [ "${CI:-}" != true ] || what=(runners)
  ./build.sh "${what[@]}"
}

finish_images() {
  ended images || return
  [ "${CI:-}" = true ] || return 0
  strip --strip-debug -o target/server "$TARGET/$CARGO_BUILD_TARGET/debug/mcp-sandbox-server" &&
    SERVER_BINARY=target/server ./build.sh server
}

# The server is compiled once in a clean room, static as it is released, for its image and the tests. Clippy is the
# compiler, so that the lints need no pass of their own over every crate. Nothing is compiled there a second time after
# a change, which is what incremental compilation is for.
compile_once() {
  CARGO_BUILD_TARGET=$(rustc -vV | sed -n 's/^host: //p')
  export CARGO_BUILD_TARGET RUSTFLAGS='-C target-feature=+crt-static -D warnings' RUSTC_WORKSPACE_WRAPPER=clippy-driver
  export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=false
}

check_lints() {
  if [ -n "${RUSTC_WORKSPACE_WRAPPER:-}" ]; then
    cargo test --locked --workspace --all-targets --no-run
  else
    cargo clippy --locked --workspace --all-targets -- -D warnings
  fi
}

check_scripts() {
  has shellcheck || {
    say "shellcheck is not installed, so no script was checked (apt-get install shellcheck)."
    return "$SKIPPED"
  }
  local listed scripts
  # awkward/ and hostile/ hold programs of users, which are meant to be odd.
  listed=$(git ls-files '*.sh' .ci/run ':!tests/runners/awkward' ':!tests/hostile') || return
  mapfile -t scripts < <(
    printf '%s\n' "$listed"
    grep -lE '^#!.*\b(ba|da)?sh\b' runners/*/run runners/*/start 2>/dev/null || true
  )
  shellcheck -x "${scripts[@]}"
}

check_crates() {
  has cargo-deny || install_crate cargo-deny || return
  cargo deny --all-features check
}

main() {
  local quick=no deny=no kubernetes=no clients=${CI:-no} profile=default arguments=("$@")
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; exit ;;
      --quick) quick=yes ;;
      --long) export LONG=1; profile=long ;;
      --clients) clients=true ;;
      --deny) deny=yes ;;
      --kubernetes) kubernetes=yes ;;
      *) usage >&2; exit 2 ;;
    esac
    shift
  done
  # A step that ends the run leaves nothing behind that still compiles or downloads.
  trap 'end_jobs; end_bystanders' EXIT
  prepare_environment
  has_rust || die "the tests need Rust 1.95 or newer; install it and run this again."
  [ "${CI:-}" != true ] || compile_once
  # Tests wait for containers and clocks about half of their time. Those that load the machine run alone.
  export NEXTEST_TEST_THREADS=$((($(nproc) * 3 + 1) / 2))
  TARGET=$(target_folder)
  # Those of an earlier run are not in this one's report.
  rm -f "$TARGET"/nextest/*/junit.xml

  if [ $quick = yes ]; then
    need "clone" check_clone
    step "format" cargo fmt --all --check
    step "scripts" check_scripts
    step "lints" check_lints
    need "test runner" install_nextest
    # A test that needs an engine fails here: no engine answers at this address.
    # These wait more than they compute.
    NEXTEST_TEST_THREADS=$(($(nproc) * 4)) step "tests without an engine" without_engine run_tests quick
    report
    finish
  fi

  if [ $kubernetes = yes ]; then
    need "engine" use_engine "$PWD/test.sh" "${arguments[@]}"
    need "runner images" ./build.sh runners
    need "PostgreSQL" install_postgres
    need "test runner" install_nextest
    step "Helm chart" scripts/chart.sh check
    step "Kubernetes" scripts/check-kubernetes.sh
    report
    finish
  fi

  # The compiler works longest; packages, clients and images wait for downloads and disks more than they compute.
  need "compiler" install_compiler
  begin lints check_lints
  need "packages" install_machine
  need "clone" check_clone
  need "engine" use_engine "$PWD/test.sh" "${arguments[@]}"
  begin clients install_clients "$clients"
  begin images build_images
  # The last crate is compiled by one processor.
  begin nextest install_nextest
  step "format" cargo fmt --all --check
  step "scripts" check_scripts
  step "lints" ended lints
  need "test runner" ended nextest
  step "compilation of the tests" run_tests "$profile" --no-run
  need "runner images and server" finish_images
  need "containers of others" start_bystanders
  need "clients" ended clients
  step "Python client" check_client
  step "tests" run_mine "$profile"
  step "tests with files that travel" with_streamed_files run_tests streamed --no-fail-fast
  report
  # They leave a report in the place of the others'.
  is_root || { step "tests as root" run_those_of_root "$profile"; report; }
  [ $profile != long ] || step "project quotas" by_root scripts/check-project-quotas.sh
  step "contract on Podman" by_root scripts/check-podman.sh
  step "runners" scripts/check-runners.sh
  step "kernels" scripts/check-kernels.sh
  step "software bills" scripts/check-sbom.sh
  [ $profile != long ] || step "server without Kubernetes" cargo check --locked --no-default-features
  step "pinned images" scripts/check-pin.sh
  # It installs Debian's Go (90 MB) where that is missing.
  step "Helm chart" scripts/chart.sh check
  if [ "$clients" = true ]; then
    step "clients that people use" check_clients
  fi
  step "containers of others are as they were" check_bystanders
  if [ $deny = yes ]; then
    step "crates" check_crates
  fi
  finish
}

main "$@"
