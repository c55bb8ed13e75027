# shellcheck shell=bash
# What quickstart.sh finds: settings, addresses, the engine's socket, and its own server. Sourced, not run, after
# scripts/provision.sh; PID_FILE and PORT_FILE are those of quickstart.sh.

compose() {
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

# engine-proxy refuses Podman's sandboxes, so a server on Podman is started without Compose (docs/operations.md).
has_compose() { ! engine_is_podman && { docker compose version >/dev/null 2>&1 || has docker-compose; }; }

# Its own command under the name docker, or its service behind Docker's command.
engine_is_podman() { [[ $(docker version 2>/dev/null) == *'Podman Engine'* ]]; }

# What the last line of .env that sets $1 gives it; the server and Compose take off quotes and comments too.
from_file() {
  sed -n "s/^$1=//p" .env | tail -n 1 |
    sed -E -e "s/^('([^']*)'|\"([^\"]*)\")([[:space:]]+#.*)?[[:space:]]*$/\2\3/;t" \
      -e 's/([[:space:]]+#.*|[[:space:]]+)$//'
}

# The setting $1: from the environment, else from .env, else $2.
setting() {
  local value=${!1:-}
  [ -n "$value" ] || [ ! -r .env ] || value=$(from_file "$1")
  printf '%s\n' "${value:-$2}"
}

# The server's container in the project that Compose names by this folder. $1: -a for one that has stopped, too.
project_container() { has_compose && [ -e .env ] && compose ps -q "$@" sandbox 2>/dev/null | head -n 1; }

# What Compose noted of the project in the container $1. $2: working_dir or config_files.
project_label() { docker inspect -f "{{index .Config.Labels \"com.docker.compose.project.$2\"}}" "$1" 2>/dev/null; }

# The checkout that started the container $1, where it is another one: a folder of the same name is the same project.
other_checkout() {
  local folder
  folder=$(project_label "$1" working_dir) || return 0
  [ ! -e "$folder/.env" ] || [ "$folder" -ef . ] || printf '%s\n' "$folder"
}

# Also one that has stopped.
own_container() {
  local id
  id=$(project_container -a) && [ -n "$id" ] && [ -z "$(other_checkout "$id")" ] && printf '%s\n' "$id"
}

own_container_runs() {
  local id
  id=$(own_container) && [ -n "$id" ] && [ "$(docker inspect -f '{{.State.Running}}' "$id" 2>/dev/null)" = true ]
}

own_process_runs() {
  local started
  # The kernel names the file without symbolic links on the way. A new build leaves the server running from a file that
  # was unlinked; the name then ends in "(deleted)".
  started=$(pwd -P)/dist/mcp-sandbox-server
  [ -r "$PID_FILE" ] && [[ $(readlink "/proc/$(cat "$PID_FILE")/exe" 2>/dev/null) == "$started"* ]]
}

# The port our own server has now, or nothing.
own_port() {
  if own_process_runs; then
    cat "$PORT_FILE"
  elif own_container_runs; then
    # A server behind a tunnel publishes none, which docker reports as an error.
    docker port "$(own_container)" 8080/tcp 2>/dev/null | sed -n '1s/.*://p'
  fi
}

port_is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The value of .env, with the port of this run.
publish_at() {
  local configured
  configured=$(setting MCP_PUBLISH "127.0.0.1:$1")
  case $configured in
    *:*) printf '%s:%s\n' "${configured%:*}" "$1" ;;
    *) printf '%s\n' "$1" ;;
  esac
}

# The address at which this machine reaches the server, which may be published for one address only.
address_at() {
  local address
  address=$(publish_at "$1")
  case ${address%"$1"} in
    '' | 0.0.0.0:) printf '127.0.0.1:%s\n' "$1" ;;
    '[::]:') printf '[::1]:%s\n' "$1" ;;
    *) printf '%s\n' "$address" ;;
  esac
}

# $1: port, then arguments of curl. Requests for http://localhost go to the server's address: that name is always an
# allowed Host, and it may have an address that another program serves.
ask() {
  local port=$1
  shift
  curl -sS --noproxy '*' --connect-to "localhost:$port:$(address_at "$port")" "$@"
}

base_url_at() {
  local configured configured_port
  configured=$(setting PUBLIC_BASE_URL "http://localhost:$1")
  configured=${configured%/}
  configured_port=$(setting MCP_PUBLISH "127.0.0.1:$PORT_DEFAULT" | sed 's/.*://')
  printf '%s\n' "${configured/%:$configured_port/:$1}"
}

# What the server got: Compose hands over the file, not the environment.
token() { from_file MCP_API_TOKEN; }

engine_is_rootless() { [[ $(docker info --format '{{.SecurityOptions}}' 2>/dev/null) == *name=rootless* ]]; }

# The socket of the engine that the docker command uses, for the server. Of an engine on another machine it is the usual
# one.
engine_socket() {
  local address
  address=$(engine_address)
  case $address in
    unix://*) setting DOCKER_SOCKET "${address#unix://}" ;;
    *) setting DOCKER_SOCKET "$SOCKET_DEFAULT" ;;
  esac
}
