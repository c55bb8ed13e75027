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
readonly MCP1=1.30.0 MCP2=2.3.0 NODE=22 INSPECTOR=2.12.0
readonly SCHEMATHESIS=4.32.5 ULTRA_PISTON=1.0.1 CONFORMANCE=0.2.0-alpha.12 NEXTEST=0.9.143
# The status of a step that was skipped.
readonly SKIPPED=77

usage() {
  cat <<TEXT
Usage: ./test.sh [--quick] [--long] [--deny]
  --quick   only what needs no container engine: format, lints, and the tests on the fake engine
  --long    the long form of the tests that have one (SPECIFICATION.md); half an hour more on a small machine
  --deny    also install cargo-deny (takes minutes) and check the crates in use: licences, sources, advisories
Takes root or sudo where a package is missing. Keeps what it makes under target/. A step that could not try anything is
told as skipped; with CI=true in the environment it fails.
TEXT
}

FAILED=()
TOOK=()

# $1: what this step is, then its command. A failed step does not stop those after it.
step() {
  local name=$1 began=$SECONDS verdict=ok status=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  if [ "$status" = "$SKIPPED" ] && [ "${CI:-}" != true ]; then
    verdict=skipped
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

finish() {
  printf '\n'
  printf '%s\n' "${TOOK[@]}"
  [ ${#FAILED[@]} -gt 0 ] || { printf '\nall steps passed\n'; exit 0; }
  local name
  printf '\n'
  for name in "${FAILED[@]}"; do
    printf 'FAILED: %s\n' "$name"
  done
  exit 1
}

install_machine() {
  local missing=()
  has curl || missing+=(curl ca-certificates)
  has jq || missing+=(jq)
  has cc || missing+=(gcc libc6-dev)
  has mmdebstrap || missing+=(mmdebstrap)
  has openssl || missing+=(openssl)
  has chromium || missing+=(chromium)
  has chromedriver || missing+=(chromium-driver)
  has shellcheck || missing+=(shellcheck)
  has mkfs.ext4 || missing+=(e2fsprogs)
  has losetup || missing+=(mount)
  has git || missing+=(git)
  # The tests kill an engine of their own, wherever the engine is that the others use.
  { has dockerd && has containerd; } || missing+=(docker.io)
  has podman || missing+=(podman catatonit crun)
  has npm || missing+=(nodejs npm)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  docker compose version >/dev/null 2>&1 || has docker-compose || missing+=("docker-compose|docker-compose-v2")
  install_packages "${missing[@]}"
}

# The runner of the tests: one process and one time limit for each test.
install_nextest() {
  has cargo-nextest || [ -x "$TOOLS/cargo/bin/cargo-nextest" ] ||
    cargo install --quiet --locked --debug --root "$TOOLS/cargo" "cargo-nextest@$NEXTEST"
}

without_engine() { DOCKER_HOST=unix:///nowhere/docker.sock "$@"; }

# $1: a profile of .config/nextest.toml, then arguments of cargo nextest run.
run_tests() {
  PATH=$PATH:$TOOLS/cargo/bin cargo nextest run --locked --workspace --profile "$@"
}

# $1: a package, $2: its version, $3: its folder
python_client() {
  local have='import sys; from importlib.metadata import version; print(version(sys.argv[1]))'
  [ "$("$3/bin/python" -c "$have" "$1" 2>/dev/null)" != "$2" ] || return 0
  rm -rf "$3"
  python3 -m venv "$3" && "$3/bin/python" -m pip install -q --disable-pip-version-check "$1==$2"
}

node_client() {
  local have
  have=$("$TOOLS/npm/node_modules/.bin/node" --version 2>/dev/null || true)
  [[ $have != v$NODE.* ]] || [ ! -x "$TOOLS/npm/node_modules/.bin/mcp-inspector" ] ||
    ! grep -q "\"version\": \"$CONFORMANCE\"" \
      "$TOOLS/npm/node_modules/@modelcontextprotocol/conformance/package.json" 2>/dev/null ||
    return 0
  mkdir -p "$TOOLS/npm"
  npm install --silent --no-audit --no-fund --prefix "$TOOLS/npm" "node@$NODE" \
    "@modelcontextprotocol/inspector@$INSPECTOR" "@modelcontextprotocol/conformance@$CONFORMANCE"
}

make_clients() {
  python_client mcp "$MCP1" "$TOOLS/mcp1" && python_client mcp "$MCP2" "$TOOLS/mcp2" &&
    python_client schemathesis "$SCHEMATHESIS" "$TOOLS/schemathesis" &&
    python_client ultra-piston "$ULTRA_PISTON" "$TOOLS/piston" && node_client
}

check_scripts() {
  has shellcheck || {
    say "shellcheck is not installed, so no script was checked (apt-get install shellcheck)."
    return "$SKIPPED"
  }
  local scripts
  # awkward/ and hostile/ hold programs of users, which are meant to be odd.
  mapfile -t scripts < <(
    git ls-files '*.sh' .ci/run ':!tests/runners/awkward' ':!tests/hostile'
    grep -lE '^#!.*\b(ba|da)?sh\b' runners/*/run runners/*/start 2>/dev/null || true
  )
  shellcheck -x "${scripts[@]}"
}

check_crates() {
  has cargo-deny || [ -x "$TOOLS/cargo/bin/cargo-deny" ] ||
    cargo install --quiet --locked --root "$TOOLS/cargo" cargo-deny || return
  PATH=$PATH:$TOOLS/cargo/bin cargo deny --all-features check
}

main() {
  local quick=no deny=no profile=default arguments=("$@")
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; exit ;;
      --quick) quick=yes ;;
      --long) export LONG=1; profile=long ;;
      --deny) deny=yes ;;
      *) usage >&2; exit 2 ;;
    esac
    shift
  done
  has cargo || die "the tests need Rust 1.95 or newer; install it and run this again."

  if [ $quick = yes ]; then
    step "format" cargo fmt --all --check
    step "scripts" check_scripts
    step "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
    need "test runner" install_nextest
    # A test that needs an engine fails here: no engine answers at this address.
    step "tests without an engine" without_engine run_tests quick
    finish
  fi

  need "packages" install_machine
  need "engine" ensure_engine "$PWD/test.sh" "${arguments[@]}"
  step "format" cargo fmt --all --check
  step "scripts" check_scripts
  step "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
  need "runner images and server" ./build.sh
  need "test runner" install_nextest
  need "clients" make_clients
  step "tests" run_tests "$profile" --no-fail-fast
  step "contract on Podman" scripts/check-podman.sh
  step "runners" scripts/check-runners.sh
  step "runners, warm and plain" scripts/check-warm.sh
  if [ $deny = yes ]; then
    step "crates" check_crates
  fi
  finish
}

main "$@"
