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
readonly MCP1=1.30.0 MCP2=2.3.0 NODE=22 INSPECTOR=2.12.0 AXE=4.14.1
readonly PYPISERVER=2.4.2 DEVPI=6.20.3 VERDACCIO=6.10.4
readonly AXIOS=1.21.1 MCP_REMOTE=0.15.1 OIDC_PROVIDER=9.13.3
readonly SCHEMATHESIS=4.32.5 ULTRA_PISTON=1.0.1 INSTAVM=0.26.1 UV=0.13.9 CONFORMANCE=0.2.0-alpha.12 NEXTEST=0.9.143
readonly ASYNCSSH=2.24.1 E2B=2.11.5 LIBRECHAT_AGENTS=3.9.2 OPENAI=3.54.0
readonly OPENAPI_PYTHON=0.29.1 REDOCLY=2.77.0 SPECTRAL=6.16.3
readonly OPENAPI_TYPESCRIPT=7.13.0 OPENAPI_FETCH=0.17.0 TYPESCRIPT=5.9.3 NODE_TYPES=22.20.5
readonly JUPYTER=(jupyter_server==2.21.1 nbclient==0.11.0 papermill==2.7.0 jupyter-kernel-client==1.0.2
  aiohttp==3.14.5 websockets==17.4 jupyterlab==4.6.6)
readonly MYPY=2.4.1 PYTEST=9.2.0 TRIO=0.35.0
# Tests that mount file systems, or look into what a server leaves that is root.
readonly OF_ROOT='test(/^(own_disk|compose|quickstart)::/) or test(/sqlite_on_a_full_disk/)
  or test(/nothing_that_a_program_does_to_its_packages|^network::resolver::/)'
# The status of a step that was skipped.
readonly SKIPPED=77

usage() {
  cat <<TEXT
Usage: ./test.sh [--quick] [--long] [--clients] [--deny]
       ./test.sh --kubernetes
  --quick   only what needs no container engine: format, lints, and the tests on the fake engine
  --long    the long form of the tests that have one (SPECIFICATION.md); half an hour more on a small machine
  --clients also install the clients that people use (700 MB from npm and PyPI) and drive them, and the examples, with
            a stand-in for their models: docs/clients.md, examples/. On where CI=true
  --kubernetes  only what needs a Kubernetes cluster: starts one (scripts/kubernetes-cluster.sh), runs the engine
            contract and the chart on it, ends it. Takes ten minutes the first time, and root on Debian 12; elsewhere
            kind
  --deny    also install cargo-deny (takes minutes) and check the crates in use: licences, sources, advisories
Takes root or sudo where a package is missing, and for the tests that mount file systems. Keeps what it makes under
target/. A step that could not try anything is told as skipped; with CI=true in the environment it fails.
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
  [ ${#FAILED[@]} -gt 0 ] || { printf '\nall steps passed\n'; exit 0; }
  local name
  printf '\n'
  for name in "${FAILED[@]}"; do
    printf 'FAILED: %s\n' "$name"
  done
  exit 1
}

# What cargo needs.
install_compiler() {
  local missing=()
  has curl || missing+=(curl ca-certificates)
  has cc || missing+=(gcc libc6-dev)
  install_packages "${missing[@]}"
}

install_machine() {
  local missing=()
  has jq || missing+=(jq)
  has mmdebstrap || missing+=(mmdebstrap)
  has openssl || missing+=(openssl)
  has chromium || missing+=(chromium)
  has chromedriver || missing+=(chromium-driver)
  has shellcheck || missing+=(shellcheck)
  has mkfs.ext4 || missing+=(e2fsprogs)
  has losetup || missing+=(mount)
  has git || missing+=(git)
  has ssh || missing+=(openssh-client)
  # The tests kill an engine of their own, wherever the engine is that the others use.
  { has dockerd && has containerd; } || missing+=(docker.io)
  has podman || missing+=(podman catatonit crun)
  has npm || missing+=(nodejs npm)
  python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
  docker compose version >/dev/null 2>&1 || has docker-compose || missing+=("docker-compose-v2|docker-compose")
  install_packages "${missing[@]}"
  install_postgres
}

# Tests start clusters of their own, so the package makes none.
install_postgres() {
  local conf=/etc/postgresql-common/createcluster.conf
  ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || return 0
  install_packages postgresql-common
  # A step's failures do not end it, and without this line the next package starts a server.
  if ! as_root sed -i 's/^[# ]*create_main_cluster *=.*/create_main_cluster = false/' "$conf" ||
    ! grep -qx 'create_main_cluster = false' "$conf"; then
    say "$conf could not be changed, so PostgreSQL was not installed; install it and run this again."
    return 1
  fi
  install_packages postgresql
}

# The runner of the tests: one process and one time limit for each test. Its updater, with HTTP and TLS, is left out.
install_nextest() {
  has cargo-nextest || [ -x "$TOOLS/cargo/bin/cargo-nextest" ] ||
    cargo install --quiet --locked --debug --root "$TOOLS/cargo" "cargo-nextest@$NEXTEST" \
      --no-default-features --features default-no-update
}

without_engine() { DOCKER_HOST=unix:///nowhere/docker.sock "$@"; }

with_streamed_files() { TEST_FILES=streamed "$@"; }

# $1: a profile of .config/nextest.toml, then arguments of cargo nextest run.
run_tests() {
  PATH=$PATH:$TOOLS/cargo/bin cargo nextest run --locked --workspace --profile "$@"
}

# $1: a profile. Those of root only where this is root.
run_mine() {
  if is_root; then run_tests "$1" --no-fail-fast; else run_tests "$1" --no-fail-fast -E "not ($OF_ROOT)"; fi
}

# $1: a profile
run_those_of_root() { by_root cargo nextest run --locked --workspace --profile "$1" --no-fail-fast -E "$OF_ROOT"; }

# Runs a command as root with the tools of this user.
by_root() {
  if is_root; then "$@"; return; fi
  may_be_root || { say "this runs as root, and there is no sudo."; return "$SKIPPED"; }
  local status=0
  # sudo has a PATH of its own; cargo finds its tools by HOME.
  sudo --preserve-env env "PATH=$PATH:$TOOLS/cargo/bin" "HOME=$HOME" "$@" || status=$?
  as_root chown -R "$(id -u):$(id -g)" target
  return "$status"
}

# What to look at first when the tests take too long. Tests that were not compiled leave no report.
slowest_tests() {
  compgen -G 'target/nextest/*/junit.xml' >/dev/null || return 0
  python3 - target/nextest/*/junit.xml <<'SCRIPT'
import sys, xml.etree.ElementTree as xml

cases = [case for path in sys.argv[1:] for case in xml.parse(path).iter("testcase")]
cases.sort(key=lambda case: -float(case.get("time")))
print(f"{sum(float(case.get('time')) for case in cases):.0f} s in all {len(cases)} tests; the slowest:")
for case in cases[:25]:
    print(f"{float(case.get('time')):7.1f} s  {case.get('name')}")
SCRIPT
}

# $1: a folder, then packages of Python, of which an environment is made there. The compiler needs the processors
# meanwhile, and uv takes a third of pip's time on them at most. pip has settings of its own, so where uv reaches no
# index it is tried.
python_environment() {
  local folder=$1 uv=$TOOLS/uv/bin/uv
  shift
  rm -rf "$folder"
  if [ -x "$uv" ] && "$uv" -q venv --no-python-downloads --python python3 --seed "$folder" &&
    "$uv" -q pip install --compile-bytecode --python "$folder/bin/python" "$@"; then
    return
  fi
  rm -rf "$folder"
  python3 -m venv "$folder" && "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"
}

# $1: a package, $2: its version, $3: its folder
python_client() {
  local have='import sys; from importlib.metadata import version; print(version(sys.argv[1]))'
  [ "$("$3/bin/python" -c "$have" "$1" 2>/dev/null)" != "$2" ] || return 0
  python_environment "$3" "$1==$2"
}

# $1: its folder, then npm packages with their versions. With others the folder is made anew.
npm_packages() {
  local folder=$1
  shift
  [ "$(cat "$folder/made-of" 2>/dev/null)" != "$*" ] || return 0
  rm -rf "$folder"
  mkdir -p "$folder"
  printf '{"private": true, "overrides": %s}\n' "${OVERRIDES:-{\}}" >"$folder/package.json"
  npm install --loglevel error --no-audit --no-fund --prefix "$folder" "$@" && echo "$*" >"$folder/made-of"
}

node_client() {
  npm_packages "$TOOLS/npm" "node@$NODE" "@modelcontextprotocol/inspector@$INSPECTOR" \
    "@modelcontextprotocol/conformance@$CONFORMANCE" "axe-core@$AXE" "axios@$AXIOS" "mcp-remote@$MCP_REMOTE" \
    "oidc-provider@$OIDC_PROVIDER"
}

# Servers of packages. Some mirrors lack the version that verdaccio's audit names by a tag, and npm 9 refuses to
# override it, so an older audit takes its place; the tests do not use it.
package_indexes() {
  python_client pypiserver "$PYPISERVER" "$TOOLS/pypiserver" && python_client devpi-server "$DEVPI" "$TOOLS/devpi" &&
    OVERRIDES='{"verdaccio-audit": "10.2.4"}' npm_packages "$TOOLS/verdaccio" "verdaccio@$VERDACCIO"
}

# What makes clients of the API's description, and what checks it.
description_tools() {
  python_client openapi-python-client "$OPENAPI_PYTHON" "$TOOLS/openapi-python" &&
    npm_packages "$TOOLS/openapi-npm" "openapi-typescript@$OPENAPI_TYPESCRIPT" "openapi-fetch@$OPENAPI_FETCH" \
      "typescript@$TYPESCRIPT" "@types/node@$NODE_TYPES" "@redocly/cli@$REDOCLY" "@stoplight/spectral-cli@$SPECTRAL"
}

# Our own client, from its wheel, with what checks it.
own_client() {
  ./build.sh client && python_client mypy "$MYPY" "$TOOLS/client" &&
    "$TOOLS/client/bin/python" -m pip install -q --disable-pip-version-check "pytest==$PYTEST" "trio==$TRIO" \
      dist/mcp_code_sandbox-*.whl &&
    "$TOOLS/client/bin/python" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps \
      dist/mcp_code_sandbox-*.whl
}

# The tools of LibreChat's agents. npm 9 takes a newer exporter than the package was made with, which cannot be loaded.
librechat_client() {
  OVERRIDES='{"@opentelemetry/exporter-trace-otlp-http": "0.223.1"}' \
    npm_packages "$TOOLS/librechat" "@librechat/agents@$LIBRECHAT_AGENTS"
}

# Clients of Jupyter's API.
jupyter_clients() {
  [ "$(cat "$TOOLS/jupyter/made-of" 2>/dev/null)" != "${JUPYTER[*]}" ] || return 0
  python_environment "$TOOLS/jupyter" "${JUPYTER[@]}" && echo "${JUPYTER[*]}" >"$TOOLS/jupyter/made-of"
}

# Types and tests without a server, of the installed package.
check_client() {
  (cd clients/python && "$TOOLS/client/bin/python" -m mypy --cache-dir="$TOOLS/mypy" &&
    "$TOOLS/client/bin/python" -B -m pytest -q)
}

make_clients() {
  python_client uv "$UV" "$TOOLS/uv" &&
    python_client mcp "$MCP1" "$TOOLS/mcp1" && python_client mcp "$MCP2" "$TOOLS/mcp2" &&
    python_client schemathesis "$SCHEMATHESIS" "$TOOLS/schemathesis" &&
    python_client ultra-piston "$ULTRA_PISTON" "$TOOLS/piston" &&
    python_client instavm "$INSTAVM" "$TOOLS/instavm" &&
    python_client e2b-code-interpreter "$E2B" "$TOOLS/e2b" &&
    python_client openai "$OPENAI" "$TOOLS/openai" &&
    python_client asyncssh "$ASYNCSSH" "$TOOLS/ssh" &&
    librechat_client && package_indexes && jupyter_clients &&
    description_tools && own_client && node_client
}

# What check_clients installs otherwise; its failure is told there.
install_models() {
  python3 tests/clients/models/install.py || say "not all clients that people use are installed yet."
}

# $1: also those that people use.
install_clients() { make_clients && { [ "$1" != true ] || install_models; }; }

# With CI=true the server's image takes the binary of the tests' compilation, else the released one.
build_images() {
  local what=()
  [ "${CI:-}" != true ] || what=(runners)
  ./build.sh "${what[@]}"
}

finish_images() {
  ended images || return
  [ "${CI:-}" = true ] || return 0
  strip --strip-debug -o target/server "target/$CARGO_BUILD_TARGET/debug/mcp-sandbox-server" &&
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

# The clients that people use and the examples, with a stand-in for the models. Each of the two takes at most eight
# minutes, installation included.
check_clients() {
  python_client uv "$UV" "$TOOLS/uv" && tests/clients/models/drive.py && tests/clients/examples.py
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
  has cargo-deny || [ -x "$TOOLS/cargo/bin/cargo-deny" ] ||
    cargo install --quiet --locked --root "$TOOLS/cargo" cargo-deny || return
  PATH=$PATH:$TOOLS/cargo/bin cargo deny --all-features check
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
  trap end_jobs EXIT
  has cargo || die "the tests need Rust 1.95 or newer; install it and run this again."
  [ "${CI:-}" != true ] || compile_once

  if [ $quick = yes ]; then
    step "format" cargo fmt --all --check
    step "scripts" check_scripts
    step "lints" check_lints
    need "test runner" install_nextest
    # A test that needs an engine fails here: no engine answers at this address.
    step "tests without an engine" without_engine run_tests quick
    finish
  fi

  if [ $kubernetes = yes ]; then
    need "engine" ensure_engine "$PWD/test.sh" "${arguments[@]}"
    need "runner images" ./build.sh runners
    need "test runner" install_nextest
    step "Helm chart" scripts/chart.sh check
    step "Kubernetes" scripts/check-kubernetes.sh
    finish
  fi

  # The compiler works longest; packages, clients and images wait for downloads and disks more than they compute.
  need "compiler" install_compiler
  begin lints check_lints
  need "packages" install_machine
  need "engine" ensure_engine "$PWD/test.sh" "${arguments[@]}"
  begin clients install_clients "$clients"
  begin images build_images
  step "format" cargo fmt --all --check
  step "scripts" check_scripts
  step "lints" ended lints
  need "test runner" install_nextest
  # Those of an earlier run are not this one's slowest.
  rm -f target/nextest/*/junit.xml
  step "compilation of the tests" run_tests "$profile" --no-run
  need "runner images and server" finish_images
  need "clients" ended clients
  step "Python client" check_client
  step "tests" run_mine "$profile"
  step "tests with files that travel" with_streamed_files run_tests streamed --no-fail-fast
  slowest_tests || say "the report of the tests cannot be read."
  is_root || step "tests as root" run_those_of_root "$profile"
  step "contract on Podman" by_root scripts/check-podman.sh
  step "runners" scripts/check-runners.sh
  step "runners, warm and plain" scripts/check-warm.sh
  step "kernels" scripts/check-kernels.sh
  step "software bills" scripts/check-sbom.sh
  step "pinned images" scripts/check-pin.sh
  if [ "$clients" = true ]; then
    step "clients that people use" check_clients
  fi
  if [ $deny = yes ]; then
    step "crates" check_crates
  fi
  finish
}

main "$@"
