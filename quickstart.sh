#!/usr/bin/env bash
# From a bare Debian or Ubuntu machine to a running server and a first run. Safe to run again.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
export PROGRAM=quickstart
# shellcheck source=scripts/provision.sh
. scripts/provision.sh
# shellcheck source=scripts/quickstart/state.sh
. scripts/quickstart/state.sh

readonly PORT_DEFAULT=8080 SOCKET_DEFAULT=${ENGINE_DEFAULT#unix://}
readonly READY_SECONDS=90
readonly RUN_DIR=target/run
readonly PID_FILE=$RUN_DIR/server.pid PORT_FILE=$RUN_DIR/server.port LOG_FILE=$RUN_DIR/server.log

usage() {
  cat <<TEXT
Usage: ./quickstart.sh [--port N] [--no-start]
       ./quickstart.sh --stop

Installs a Docker engine where there is none, builds the server and the runner images, writes .env with fresh secrets
where there is none, mounts SANDBOX_ROOT with nosuid and nodev, starts the server, and runs one program. What is already
done is not done again.

  --port N     the port to serve on; by default $PORT_DEFAULT, or the next free one
  --no-start   install, build and write .env only
  --stop       stop the server, also one behind a tunnel; files, .env, images and the container engine stay
  --help       this text

Packages are installed with apt-get, which takes root or sudo. The server is started with Docker Compose, and as a
plain process (log in $LOG_FILE) where Compose is not available.
TEXT
}

# --- steps -----------------------------------------------------------------------------------------------------------

check_machine() {
  [ "$(uname -s)" = Linux ] || die "this needs Linux; on another system use a Linux virtual machine."
  case $(uname -m) in
    x86_64 | aarch64) ;;
    *) die "this needs an x86_64 or aarch64 machine; this one is $(uname -m)." ;;
  esac
}

install_tools() {
  local missing=()
  has curl || missing+=(curl ca-certificates)
  has jq || missing+=(jq)
  install_packages "${missing[@]}"
}

# Only cargo needs a compiler; without cargo the image's build stage compiles.
check_builder() {
  if has_rust; then
    has cc || install_packages gcc libc6-dev
  elif has_binaries; then
    say "taking the server's binary from dist/"
  elif ! docker image inspect "$RUST_IMAGE" >/dev/null 2>&1 && ! pull "$RUST_IMAGE"; then
    die "there is no cargo of Rust $RUST_MIN or newer, and $RUST_IMAGE cannot be pulled; install Rust, or copy dist/" \
      "(docs/operations.md), and run this again."
  fi
}
RUST_IMAGE=rust:1.95-slim-bookworm

install_compose() {
  ! has_compose && ! engine_is_podman || return 0
  { has apt-get && may_be_root; } || return 0
  # In a subshell: without Compose the server runs as a plain process.
  (install_packages "docker-compose-v2|docker-compose") || true
}

random_hex() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# $1: port. Never changes an existing .env.
write_env() {
  if [ -e .env ]; then
    [ -r .env ] || die ".env cannot be read by $(id -un); run this as its owner, or as root."
    return
  fi
  local fresh socket line
  socket=$(engine_socket)
  fresh=$(umask 077 && mktemp .env.XXXXXX)
  {
    # Not by sed, whose arguments are in the list of processes.
    while IFS= read -r line; do
      case $line in MCP_API_TOKEN= | FILE_SECRET=) line+=$(random_hex) ;; esac
      printf '%s\n' "$line"
    done <.env.example
    cat <<TEXT

# Where clients reach this server. Another host name or port goes here.
PUBLIC_BASE_URL=http://localhost:$1

# Read by docker-compose.yml only: where the port is published. 0.0.0.0:$1 is every interface.
MCP_PUBLISH=127.0.0.1:$1
TEXT
    # In quotes, because it may contain spaces.
    [ -z "${SANDBOX_ROOT:-}" ] ||
      printf "\n# As it was when quickstart.sh wrote this file.\nSANDBOX_ROOT='%s'\n" "$SANDBOX_ROOT"
    [ "$socket" = "$SOCKET_DEFAULT" ] ||
      printf '\n# Read by docker-compose.yml only: the socket of the engine.\nDOCKER_SOCKET=%s\n' "$socket"
  } >"$fresh"
  # Of two at once only one writes. Shared folders of virtual machines have no hard links, which would do it too.
  mv -n "$fresh" .env || true
  [ ! -e "$fresh" ] || { rm -f "$fresh"; die ".env appeared meanwhile; run this again."; }
  say "wrote .env with fresh secrets"
}

# Prints the port to serve on. $1: the requested port, or nothing.
choose_port() {
  local asked=$1 own port
  own=$(own_port)
  port=${asked:-${own:-$(setting MCP_PUBLISH "127.0.0.1:$PORT_DEFAULT" | sed 's/.*://')}}
  if [ "$port" = "$own" ] || ! port_is_taken "$port"; then
    printf '%s\n' "$port"
    return
  fi
  [ -z "$asked" ] || die "port $port is taken by another program; name another with --port."
  local taken=$port
  while port_is_taken "$port"; do
    port=$((port + 1))
    [ "$port" -lt $((taken + 100)) ] || die "ports $taken to $port are taken; name one with --port."
  done
  say "port $taken is taken by another program, so this server gets port $port (choose with --port)"
  printf '%s\n' "$port"
}

# What would keep the server from starting after the build.
check_start() {
  local id other
  if ! has_compose; then
    has_rust || [ -x dist/mcp-sandbox-server ] || [ -n "${SERVER_BINARY:-}" ] ||
      die "without Docker Compose, which cannot be used on Podman, this needs Rust $RUST_MIN or newer, or the" \
        "server's binary in dist/; install one of them and run this again."
    return
  fi
  id=$(project_container) || return 0
  [ -n "$id" ] || return 0
  # Compose would replace the server of the other checkout by this one.
  other=$(other_checkout "$id")
  [ -z "$other" ] ||
    die "a server of $other runs, and Compose tells checkouts apart by the names of their folders only; stop it" \
      "there, rename this folder, or set COMPOSE_PROJECT_NAME in .env."
  # And a server behind a tunnel by one that the tunnel does not reach.
  case $(project_label "$id" config_files) in
    *docker-compose-cloudflare.yml*)
      die "the server of docker-compose-cloudflare.yml runs; build by --no-start and start it with that file again."
      ;;
  esac
}

# The mount options of $1, where it is a mount point; of several mounts the topmost. The kernel escapes spaces.
mount_options() {
  POINT=${1// /\\040} awk '$5 == ENVIRON["POINT"] { options = $6 } END { if (options == "") exit 1; print options }' \
    /proc/self/mountinfo
}

# Mounts the root on itself with nosuid and nodev, which sandboxes inherit for /data. Changes no file.
harden_root() {
  local root options
  root=$(readlink -f "$(setting SANDBOX_ROOT /var/sandboxes)")
  options=$(mount_options "$root") || options=
  case ,$options, in *,nosuid,*) case ,$options, in *,nodev,*) return ;; esac ;; esac
  may_be_root || { say "$root is not mounted with nosuid and nodev, which takes root ('doctor' says so too)"; return; }
  # Options that it has already stay.
  if as_root mount -o "${options:+remount,}bind,${options:+$options,}nosuid,nodev" "$root" "$root" 2>/dev/null; then
    say "mounted $root with nosuid and nodev, until the next start of the machine"
  else
    say "$root cannot be mounted with nosuid and nodev here; 'doctor' says what that means"
  fi
}

make_root() {
  local root
  root=$(setting SANDBOX_ROOT /var/sandboxes)
  [ ! -d "$root" ] || return 0
  may_be_root || die "$root, where files are kept, is not there; create it, or set SANDBOX_ROOT in .env."
  say "making $root for the files of conversations"
  # Also the folders above it, which the server passes through.
  (umask 022 && as_root mkdir -p "$root")
  as_root chmod 0711 "$root"
  # A rootless engine's root is this user.
  { has_compose && ! engine_is_rootless; } || as_root chown "$(id -u):$(id -g)" "$root"
}

# $1: port
start_container() {
  say "starting the server with Docker Compose"
  local log
  log=$(mktemp)
  if ! MCP_PUBLISH=$(publish_at "$1") PUBLIC_BASE_URL=$(base_url_at "$1") DOCKER_SOCKET=$(engine_socket) \
    compose up -d --no-build sandbox >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "Docker Compose could not start the server; its last lines are above."
  fi
  rm -f "$log"
}

# $1: port
start_process() {
  say "the server is started as a process, since there is no Docker Compose for this engine"
  mkdir -p "$RUN_DIR"
  # Only root gives files away, so another user's programs run as that user.
  is_root || export SANDBOX_ENGINE__RUNNER_UID="${SANDBOX_ENGINE__RUNNER_UID:-$(id -u)}"
  local address
  address=$(publish_at "$1")
  case $address in *:*) ;; *) address=:$address ;; esac
  # The server knows no contexts of the docker command.
  MCP_API_TOKEN=$(token) MCP_HTTP_ADDR=$address PUBLIC_BASE_URL=$(base_url_at "$1") \
    DOCKER_HOST=$(setting DOCKER_HOST "unix://$(engine_socket)") \
    setsid nohup "$PWD/dist/mcp-sandbox-server" serve >>"$LOG_FILE" 2>&1 </dev/null &
  printf '%s\n' "$!" >"$PID_FILE"
  printf '%s\n' "$1" >"$PORT_FILE"
}

stop_process() {
  local pid left
  pid=$(cat "$PID_FILE")
  kill "$pid" 2>/dev/null || true
  for ((left = 60; left > 0; left--)); do
    own_process_runs || { rm -f "$PID_FILE" "$PORT_FILE"; return; }
    sleep 0.5
  done
  die "the server (process $pid) does not stop; end it with 'kill -9 $pid'."
}

# $1: a container of the server. Stops all that the files name by which it was started, those of a tunnel for example.
# They are noted with the path that the first one had for that command: it ran elsewhere, or the folder was moved since.
# What the files require of .env does not matter then.
stop_containers() {
  local files folder
  files=$(project_label "$1" config_files)
  folder=${files%%,*}
  folder=${folder%"${folder##*/}"}
  files=,$files
  files=${files//",$folder"/,}
  COMPOSE_FILE=${files#,} COMPOSE_PATH_SEPARATOR=, TUNNEL_TOKEN=none PUBLIC_BASE_URL=none \
    compose down >/dev/null 2>&1 || die "Docker Compose could not stop the server; 'docker ps' shows what runs."
}

stop() {
  local stopped=no id
  if own_process_runs; then stop_process; stopped=yes; fi
  if engine_answers; then
    if id=$(own_container); then stop_containers "$id"; stopped=yes; fi
  elif [ $stopped = no ] && [ -e .env ] && has docker; then
    ! engine_refuses || join_or_leave "$PWD/quickstart.sh" --stop
    die "no Docker engine answers, so a server in a container cannot be stopped; start the engine and run this again."
  fi
  if [ $stopped = no ]; then say "the server was not running"; return; fi
  say "stopped; files, .env, images and the container engine stay"
}

show_server_log() {
  if own_container >/dev/null; then
    compose logs --tail=15 sandbox >&2 2>&1 || true
  elif [ -r "$LOG_FILE" ]; then
    tail -n 15 "$LOG_FILE" >&2
  fi
}

# $1: port
wait_until_ready() {
  local deadline=$((SECONDS + READY_SECONDS))
  until ask "$1" -f -o /dev/null -m 5 "http://localhost:$1/readyz" 2>/dev/null; do
    if [ $SECONDS -ge $deadline ]; then
      show_server_log
      die "the server was not ready within $READY_SECONDS s; the end of its log is above."
    fi
    sleep 0.5
  done
}

# $1: port. The same call as in README.
first_run() {
  local answer request
  request=$(jq -nc --arg code "$FIRST_PROGRAM" '{jsonrpc: "2.0", id: "1", method: "tools/call", params: {
    name: "sandbox_run_code", arguments: {conversationId: "quickstart", language: "python", code: $code}}}')
  # The token goes by standard input, so that no list of processes shows it.
  answer=$(printf 'header = "Authorization: Bearer %s"\n' "$(token)" |
    ask "$1" -m 120 -K - -X POST "http://localhost:$1/mcp" \
      -H 'Content-Type: application/json' -d "$request") ||
    die "the first run got no answer; look into the server's log."
  if [ "$(jq -r '.result.isError // false' <<<"$answer" 2>/dev/null)" != false ] ||
    ! jq -er '.result.content[] | select(.type == "text") | .text' <<<"$answer"; then
    printf '%s\n' "$answer" >&2
    die "the first run failed; its answer is above."
  fi
}
FIRST_PROGRAM='import platform
import pandas as pd
print("Hello from Python", platform.python_version())
pd.DataFrame({"n": range(1, 6)}).assign(square=lambda t: t.n ** 2).to_csv("squares.csv", index=False)
print(open("squares.csv").read())'

# $1: port
farewell() {
  local url token="\$(sed -n 's/^MCP_API_TOKEN=//p' '$PWD/.env')"
  url=$(base_url_at "$1")
  cat <<TEXT

The server is ready.

  page      $url/
  token     MCP_API_TOKEN in $PWD/.env
  stop      ./quickstart.sh --stop

Claude Code, from any folder:

  claude mcp add --transport http sandbox $url/mcp --header "Authorization: Bearer $token"

Other clients: docs/clients.md
TEXT
}

check_port() {
  [[ $1 =~ ^[1-9][0-9]{0,4}$ && $1 -lt 65536 ]] || die "--port takes a number from 1 to 65535."
}

main() {
  local port='' start=yes arguments=("$@")
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; return ;;
      --no-start) start=no ;;
      --stop) stop; return ;;
      --port) check_port "${2:-}"; port=$2; shift ;;
      --port=*) check_port "${1#*=}"; port=${1#*=} ;;
      *) usage >&2; exit 2 ;;
    esac
    shift
  done

  check_machine
  install_tools
  ensure_engine "$PWD/quickstart.sh" "${arguments[@]}"
  install_compose
  port=$(choose_port "$port")
  check_builder
  # What may be refused comes before the build, which takes minutes.
  write_env "$port"
  [ $start = no ] || check_start
  make_root
  harden_root
  ./build.sh
  if [ $start = no ]; then
    say "built; start it with ./quickstart.sh"
    return
  fi
  ! own_process_runs || stop_process
  if has_compose; then start_container "$port"; else start_process "$port"; fi
  say "waiting until the server is ready"
  wait_until_ready "$port"
  say "running one program"
  first_run "$port"
  farewell "$port"
}

main "$@"
