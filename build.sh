#!/usr/bin/env bash
# Builds the server and the runner images. Safe to run again: unchanged parts are not built again.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
readonly LOCAL_BASE=sandbox-base:bookworm
readonly PUBLIC_BASE=debian:bookworm-slim
readonly PULL_SECONDS=15

usage() {
  cat <<TEXT
Usage: ./build.sh                    the server and every runner image
       ./build.sh server             the server: image mcp-sandbox-server; where cargo is installed, from the static
                                     binary dist/mcp-sandbox-server, which it makes first
       ./build.sh runners [name...]  the runner images, or those named: $(runner_names | xargs)
       ./build.sh init               process 1 of the runners: dist/sandbox-init and runners/init/sandbox-init
       ./build.sh base               print the base image that would be used, making one if there is none

  BASE=<image>   Debian 12 image to build the runners from. By default $LOCAL_BASE if it is here, else
                 $PUBLIC_BASE if it is or can be pulled, else scripts/make-base.sh makes $LOCAL_BASE.
  http_proxy, https_proxy, no_proxy are handed on to the builds when set.
TEXT
}

die() { printf 'build: %s\n' "$*" >&2; exit 1; }
say() { printf 'build: %s\n' "$*" >&2; }

runner_names() {
  local file
  for file in runners/*/Dockerfile; do
    [ -f "$file" ] && basename "$(dirname "$file")"
  done
}

need_docker() {
  command -v docker >/dev/null ||
    die "no docker command; install Docker (on Debian or Ubuntu: apt-get install docker.io) and run this again."
  docker version >/dev/null 2>&1 ||
    die "cannot reach a Docker engine; start it (systemctl start docker), check your rights, or set DOCKER_HOST."
}

# An image that was imported here under the public name has no digest of a registry, and no certificates in it either.
was_pulled() { [ -n "$(docker image inspect --format '{{join .RepoDigests ""}}' "$1" 2>/dev/null)" ]; }
is_here() { docker image inspect "$1" >/dev/null 2>&1; }

pick_base() {
  if [ -n "${BASE:-}" ]; then
    printf '%s\n' "$BASE"
  elif is_here "$LOCAL_BASE"; then
    printf '%s\n' "$LOCAL_BASE"
  elif was_pulled "$PUBLIC_BASE" || { ! is_here "$PUBLIC_BASE" && pull_public_base; }; then
    printf '%s\n' "$PUBLIC_BASE"
  else
    say "no registry answers; making a base image from Debian packages"
    scripts/make-base.sh >&2 || die "there is no base image; set BASE to a Debian 12 image you have and run this again."
    printf '%s\n' "$LOCAL_BASE"
  fi
}

pull_public_base() {
  say "pulling $PUBLIC_BASE"
  timeout "$PULL_SECONDS" docker pull -q "$PUBLIC_BASE" >/dev/null 2>&1
}

proxy_arguments() {
  local name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -n "${!name:-}" ] && printf -- '--build-arg\n%s\n' "$name"
  done
  return 0
}

# $1: image, then the arguments of docker build. Prints nothing on success.
build_image() {
  local image=$1 log
  shift
  log=$(mktemp)
  say "building $image"
  local proxies
  mapfile -t proxies < <(proxy_arguments)
  if ! docker build -t "$image" "${proxies[@]}" "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    rm -f "$log"
    die "could not build $image; the last lines of the build are above."
  fi
  rm -f "$log"
}

# $1: folder. Puts the file on standard input there as sandbox-init, whole or not at all.
place_init() {
  mkdir -p "$1"
  cat > "$1/.new"
  chmod 0755 "$1/.new"
  mv "$1/.new" "$1/sandbox-init"
}

# The static process 1 of the runners: by cargo where it is installed, else in a container. A container's files cannot
# be shared with the build of another image, so it lies in runners/init, where the runners' builds see it.
build_init() {
  local target binary container
  if command -v cargo >/dev/null; then
    target=$(rustc -vV | sed -n 's/^host: //p')
    say "building sandbox-init"
    RUSTFLAGS='-C target-feature=+crt-static' cargo build --profile init --locked -p sandbox-init --target "$target" ||
      die "cargo could not build sandbox-init; its messages are above."
    binary=${CARGO_TARGET_DIR:-target}/$target/init/sandbox-init
    place_init dist < "$binary"
  elif [ -x dist/sandbox-init ]; then
    say "using dist/sandbox-init, which is there"
  else
    need_docker
    build_image sandbox-init -f init/Dockerfile .
    container=$(docker create sandbox-init /sandbox-init) || die "there is no container to take sandbox-init from."
    mkdir -p dist
    docker cp "$container:/sandbox-init" dist/.init >/dev/null ||
      die "sandbox-init could not be taken out of its image."
    docker rm "$container" >/dev/null
    place_init dist < dist/.init
    rm -f dist/.init
  fi
  place_init runners/init < dist/sandbox-init
}

build_runners() {
  local base name names=("$@")
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(runner_names)
  for name in "${names[@]}"; do
    [ -f "runners/$name/Dockerfile" ] || die "no runner is called '$name'; there are: $(runner_names | xargs)."
  done
  build_init
  need_docker
  base=$(pick_base)
  say "base image: $base"
  for name in "${names[@]}"; do
    # The context is runners/, so that images can share files.
    build_image "runner-$name" --build-arg "BASE=$base" -f "runners/$name/Dockerfile" runners
  done
}

# One static binary, which runs on the host and on the empty root of the image alike.
build_binary() {
  local target
  target=$(rustc -vV | sed -n 's/^host: //p')
  say "building the server's binary"
  RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --release --locked --bin mcp-sandbox-server --target "$target" ||
    die "cargo could not build the server; its messages are above."
  local made=${CARGO_TARGET_DIR:-target}/$target/release/mcp-sandbox-server
  mkdir -p dist
  cmp -s "$made" dist/mcp-sandbox-server || {
    # A new file put in place: the old one may be running.
    cp "$made" dist/.new
    mv dist/.new dist/mcp-sandbox-server
  }
}

# Without cargo and without a binary in dist/, the image's build stage compiles, in its own base image.
build_server() {
  local arguments=()
  if command -v cargo >/dev/null; then
    build_binary
  fi
  need_docker
  if [ -x dist/mcp-sandbox-server ]; then
    arguments=(--build-arg "RUST_BASE=$(pick_base)")
  fi
  build_image mcp-sandbox-server "${arguments[@]}" .
}

main() {
  local what=${1:-all}
  [ $# -eq 0 ] || shift
  case $what in
    -h | --help) usage ;;
    all) build_runners; build_server ;;
    runners) build_runners "$@" ;;
    server) build_server ;;
    init) build_init ;;
    base) need_docker; pick_base ;;
    *) usage >&2; exit 2 ;;
  esac
}

main "$@"
