#!/usr/bin/env bash
# Builds the server and the runner images. Safe to run again: unchanged parts are not built again.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
export PROGRAM=build
# shellcheck source=scripts/provision.sh
. scripts/provision.sh
readonly LOCAL_BASE=sandbox-base:trixie
# scripts/pin.sh adds its digest.
readonly PUBLIC_BASE=debian:trixie-slim
readonly PREFIX=${RUNNER_PREFIX:-runner-}

usage() {
  cat <<TEXT
Usage: ./build.sh                    the server and every runner image
       ./build.sh server             the server: image mcp-sandbox-server; where cargo is installed, from the static
                                     binary dist/mcp-sandbox-server, which it makes first
       ./build.sh runners [name...]  the runner images, or those named: $(runner_names | xargs)
       ./build.sh init               the static programs of the runners: sandbox-init, sandbox-bridge and
                                     sandbox-channels in dist/ and runners/init/
       ./build.sh client             the Python client: dist/mcp_code_sandbox-*.whl; needs python3-venv
       ./build.sh base               print the base image that would be used, making one if there is none

       ./build.sh bills              the software bills (SBOM, CycloneDX) of the images that are here: dist/sbom

  BASE=<image>   Debian 13 image to build the runners from. By default $LOCAL_BASE if it is here, else
                 $PUBLIC_BASE if it is or can be pulled, else scripts/make-base.sh makes $LOCAL_BASE.
  SERVER_BINARY=<file>     static binary for the server's image, in place of one that cargo makes
  RUNNER_PREFIX=<prefix>   of the runner images' names, by default runner-. With any other prefix no server takes them
                 for runners; scripts/check-runners.sh reads it too.
  http_proxy, https_proxy, no_proxy are handed on to the builds when set.
TEXT
}

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
  # The builder of the engine itself is named as the context is. Another one that was made the default
  # (docker buildx create --use) keeps what it builds.
  BUILDX_BUILDER=$(docker context show 2>/dev/null) || BUILDX_BUILDER=
  export BUILDX_BUILDER
}

# An image that was imported here under the public name has no digest of a registry, and no certificates in it either.
was_pulled() { [ -n "$(docker image inspect --format '{{join .RepoDigests ""}}' "$1" 2>/dev/null)" ]; }
is_here() { docker image inspect "$1" >/dev/null 2>&1; }

pick_base() {
  if [ -n "${BASE:-}" ]; then
    printf '%s\n' "$BASE"
  elif is_here "$LOCAL_BASE"; then
    printf '%s\n' "$LOCAL_BASE"
  elif was_pulled "$PUBLIC_BASE" || { ! is_here "$PUBLIC_BASE" && pull "$PUBLIC_BASE"; }; then
    printf '%s\n' "$PUBLIC_BASE"
  else
    say "no registry answers; making a base image from Debian packages"
    scripts/make-base.sh >&2 || die "there is no base image; set BASE to a Debian 13 image you have and run this again."
    printf '%s\n' "$LOCAL_BASE"
  fi
}

proxy_arguments() {
  local name
  for name in "${PROXIES[@]}"; do
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

# $1: folder, $2: name. Puts the file on standard input there, whole or not at all.
place() {
  mkdir -p "$1" && cat > "$1/.new-$2" && chmod 0755 "$1/.new-$2" && mv "$1/.new-$2" "$1/$2"
}

# The static programs of the runners, process 1, the bridge to a kernel and the channels: by cargo where it is
# installed, else in a container. Those in dist/ without a server are of a container, perhaps from older sources. A
# container's files cannot be shared with the build of another image, so they lie in runners/init, where the runners'
# builds see them.
build_init() {
  local target folder name programs=(sandbox-init sandbox-bridge sandbox-channels)
  if has_rust; then
    target=$(rustc -vV | sed -n 's/^host: //p')
    say "building ${programs[*]}"
    RUSTFLAGS='-C target-feature=+crt-static' \
      cargo build --profile init --locked "${programs[@]/#/--package=}" --target "$target" ||
      die "cargo could not build ${programs[*]}; its messages are above."
    folder=$(target_folder)
    for name in "${programs[@]}"; do
      place dist "$name" < "$folder/$target/init/$name"
    done
  elif has_binaries; then
    say "using ${programs[*]} in dist/, which are there"
  else
    need_docker
    build_image sandbox-init -f init/Dockerfile .
    take_out sandbox-init "${programs[@]}" || exit 1
  fi
  for name in "${programs[@]}"; do
    place runners/init "$name" < "dist/$name"
  done
}

# $1: an image, then files of its root, which come to lie in dist/. In a subshell, whose trap removes the container also
# where a file cannot be taken.
take_out() (
  image=$1
  shift
  container=$(docker create "$image" "/$1") || die "there is no container to take $1 from."
  trap 'docker rm "$container" >/dev/null; rm -f dist/.taken' EXIT
  mkdir -p dist
  for name in "$@"; do
    docker cp "$container:/$name" dist/.taken >/dev/null || die "$name could not be taken out of its image."
    place dist "$name" < dist/.taken || die "$name could not be written to dist/."
  done
)

build_runners() {
  local name
  for name in "$@"; do
    [ -f "runners/$name/Dockerfile" ] || die "no runner is called '$name'; there are: $(runner_names | xargs)."
  done
  build_init
  build_runner_images "$@"
}

# With the static programs that are there.
build_runner_images() {
  local base name names=("$@")
  [ ${#names[@]} -gt 0 ] || mapfile -t names < <(runner_names)
  need_docker
  base=$(pick_base)
  say "base image: $base"
  mapfile -t names < <(with_foundations "${names[@]}")
  # Those that build on the first one, and beside them the rest: they wait for downloads and disks more than they
  # compute.
  local linked=() others=() below=() failed=no beside
  for name in "${names[@]}"; do
    mapfile -t below < <(foundation "$name")
    if [ "${below[0]}" = "${names[0]}" ]; then linked+=("$name"); else others+=("$name"); fi
  done
  build_each "$base" "${others[@]}" &
  beside=$!
  # In a subshell: where one fails, this script does not end before those beside it.
  (build_each "$base" "${linked[@]}") || failed=yes
  wait "$beside" || failed=yes
  [ $failed = no ] || die "a runner image was not built; the reason is above."
  say_former
}

# The engine keeps an image whose name a newer one has taken.
say_former() {
  local sizes
  sizes=$(docker images -f dangling=true -f label=sandbox.runner=true --format '{{.Size}}' | xargs)
  [ -z "$sizes" ] || say "former runner images stay ($sizes, partly shared); remove them: docker image prune"
}

# $1: the base image, then names.
build_each() {
  local base=$1 name arguments=()
  shift
  [ "$PREFIX" = runner- ] || arguments=(--label sandbox.runner=false)
  for name in "$@"; do
    # The context is runners/, so that images can share files.
    build_image "$PREFIX$name" --build-arg "BASE=$base" --build-arg "PREFIX=$PREFIX" "${arguments[@]}" \
      -f "runners/$name/Dockerfile" runners
    bill "$PREFIX$name"
  done
}

# The names given, each after the runners whose images it builds on.
with_foundations() {
  local name
  for name in "$@"; do
    foundation "$name"
  done | awk '!seen[$0]++'
}

# $1: a runner. Prints those that its image builds on, the lowest first, then itself.
foundation() {
  local below
  # shellcheck disable=SC2016 # it is the Dockerfile that has the variable
  below=$(sed -n 's/^FROM ${PREFIX}//p' "runners/$1/Dockerfile")
  [ -z "$below" ] || foundation "$below"
  printf '%s\n' "$1"
}

# $1: image. Its software bill comes to lie beside the binaries.
bill() {
  mkdir -p dist/sbom
  scripts/sbom.sh "$1" > "dist/sbom/.$1" || die "could not list what is in $1."
  mv "dist/sbom/.$1" "dist/sbom/$1.json"
}

bill_all() {
  local image
  need_docker
  for image in $(runner_names | sed "s/^/$PREFIX/") mcp-sandbox-server; do
    ! is_here "$image" || bill "$image"
  done
}

# One static binary, which runs on the host and on the empty root of the image alike.
build_binary() {
  local target
  if [ -n "${SERVER_BINARY:-}" ]; then
    place_binary "$SERVER_BINARY"
    return
  fi
  target=$(rustc -vV | sed -n 's/^host: //p')
  say "building the server's binary"
  RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --release --locked --bin mcp-sandbox-server --target "$target" ||
    die "cargo could not build the server; its messages are above."
  place_binary "$(target_folder)/$target/release/mcp-sandbox-server"
}

# $1: a binary
place_binary() {
  mkdir -p dist
  cmp -s "$1" dist/mcp-sandbox-server || {
    # A new file put in place: the old one may be running.
    cp "$1" dist/.new-mcp-sandbox-server
    mv dist/.new-mcp-sandbox-server dist/mcp-sandbox-server
  }
}

# Without cargo and without a binary in dist/, the image's build stage compiles, in its own base image.
build_server() {
  local arguments=()
  if [ -n "${SERVER_BINARY:-}" ] || has_rust; then
    build_binary
  fi
  need_docker
  if [ -x dist/mcp-sandbox-server ]; then
    arguments=(--build-arg "RUST_BASE=$(pick_base)")
  fi
  build_image mcp-sandbox-server "${arguments[@]}" .
  bill mcp-sandbox-server
}

build_client() {
  local venv=target/client-build
  say "building the Python client"
  [ -x $venv/bin/python ] || python3 -m venv $venv ||
    die "python3 can make no environment; install python3-venv and run this again."
  mkdir -p dist
  rm -f dist/mcp_code_sandbox-*.whl
  $venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist ./clients/python ||
    die "pip could not build the Python client; its messages are above."
}

# The images wait for downloads and the server for processors, so both are made at once where cargo is installed.
build_all() {
  local compiling=
  build_init
  if has_rust; then
    build_binary &
    compiling=$!
  fi
  build_runner_images
  [ -z "$compiling" ] || wait "$compiling" || die "the server was not built."
  build_server
}

main() {
  local what=${1:-all}
  [ $# -eq 0 ] || shift
  trap end_jobs EXIT
  case $what in
    -h | --help) usage ;;
    all) build_all ;;
    runners) build_runners "$@" ;;
    server) build_server ;;
    init) build_init ;;
    client) build_client ;;
    bills) bill_all ;;
    base) need_docker; pick_base ;;
    *) usage >&2; exit 2 ;;
  esac
}

main "$@"
