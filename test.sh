#!/usr/bin/env bash
# Every test there is. Installs what is missing; safe to run again.
# shellcheck disable=SC2317 # functions are called by name, from step
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
# Read by provision.sh.
export PROGRAM=test
# shellcheck source=scripts/provision.sh
. scripts/provision.sh

readonly TOOLS=$PWD/target/test-tools
readonly MCP1=1.30.0 MCP2=2.3.0 NODE=22 INSPECTOR=2.12.0
readonly SCHEMATHESIS=4.32.5 ULTRA_PISTON=1.0.1 CONFORMANCE=0.2.0-alpha.12

usage() {
  cat <<TEXT
Usage: ./test.sh [--quick] [--long] [--deny]
  --quick   only what needs no container engine and nothing installed
  --long    the long form of the tests that have one (SPECIFICATION.md); half an hour more on a small machine
  --deny    also install cargo-deny (takes minutes) and ask for advisories on the crates in use
Takes root or sudo where a package is missing. Keeps what it makes under target/.
TEXT
}

FAILED=()
TOOK=()

# $1: what this step is, then its command. A failed step does not stop those after it.
step() {
  local name=$1 began=$SECONDS verdict=ok
  shift
  printf '\n== %s\n' "$name"
  "$@" || { FAILED+=("$name"); verdict=FAILED; }
  TOOK+=("$(printf '%5d s  %-6s  %s' $((SECONDS - began)) "$verdict" "$name")")
}

# The same for what later steps need: a failure ends it all.
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
  # The engine that a test kills is its own, wherever the one is that the others use.
  { has dockerd && has containerd; } || missing+=(docker.io)
  has npm || missing+=(nodejs npm)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  docker compose version >/dev/null 2>&1 || has docker-compose || missing+=("docker-compose|docker-compose-v2")
  install_packages "${missing[@]}"
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
    ! grep -q "\"version\": \"$CONFORMANCE\"" "$TOOLS/npm/node_modules/@modelcontextprotocol/conformance/package.json" 2>/dev/null ||
    return 0
  mkdir -p "$TOOLS/npm"
  npm install --silent --no-audit --no-fund --prefix "$TOOLS/npm" "node@$NODE" "@modelcontextprotocol/inspector@$INSPECTOR" \
    "@modelcontextprotocol/conformance@$CONFORMANCE"
}

make_clients() {
  python_client mcp "$MCP1" "$TOOLS/mcp1" && python_client mcp "$MCP2" "$TOOLS/mcp2" &&
    python_client schemathesis "$SCHEMATHESIS" "$TOOLS/schemathesis" &&
    python_client ultra-piston "$ULTRA_PISTON" "$TOOLS/piston" && node_client
}

check_scripts() {
  local scripts
  # What stands in awkward/ and hostile/ is what users write, not ours: it is meant to be odd.
  mapfile -t scripts < <(git ls-files '*.sh' .ci/run ':!tests/runners/awkward' ':!tests/hostile'; grep -lE '^#!.*\b(ba|da)?sh\b' runners/*/run runners/*/start 2>/dev/null || true)
  shellcheck -x "${scripts[@]}"
}

check_crates() {
  local deny=cargo-deny
  if [ "$1" = all ]; then
    has cargo-deny || [ -x "$TOOLS/cargo/bin/cargo-deny" ] ||
      cargo install --quiet --locked --root "$TOOLS/cargo" cargo-deny || return
    has cargo-deny || deny=$TOOLS/cargo/bin/cargo-deny
    "$deny" --all-features check
  else
    "$deny" --all-features check bans licenses sources
  fi
}

main() {
  local quick=no deny=no
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; exit ;;
      --quick) quick=yes ;;
      --long) export LONG=1 ;;
      --deny) deny=yes ;;
      *) usage >&2; exit 2 ;;
    esac
    shift
  done
  has cargo || die "the tests need Rust 1.95 or newer; install it and run this again."

  if [ $quick = yes ]; then
    step "format" cargo fmt --all --check
    ! has shellcheck || step "scripts" check_scripts
    step "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
    step "tests without an engine" cargo test --locked --workspace --lib --bins
    step "tests of the house" cargo test --locked --test it -- tidy:: docs::
    finish
  fi

  need "packages" install_machine
  need "engine" ensure_engine "$PWD/test.sh"
  step "format" cargo fmt --all --check
  step "scripts" check_scripts
  step "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
  need "runner images and server" ./build.sh
  need "clients" make_clients
  step "tests" cargo test --locked --workspace --no-fail-fast
  step "contract on Podman" scripts/check-podman.sh
  step "runners" scripts/check-runners.sh
  step "runners, warm and plain" scripts/check-warm.sh
  if [ $deny = yes ]; then
    step "crates" check_crates all
  elif has cargo-deny; then
    step "crates" check_crates offline
  fi
  finish
}

main "$@"
