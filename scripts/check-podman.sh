#!/usr/bin/env bash
# Runs the engine contract (tests/it/engine_contract.rs) on Podman: on the socket in PODMAN_SOCKET, or, where podman is
# installed, on a separate service with its own images. Without either it says so and ends with 77.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The status of a skipped check.
readonly SKIPPED=77
BASE=$(./build.sh base)
readonly BASE
say() { printf 'check-podman: %s\n' "$*" >&2; }

# $1: the socket
contract() {
  local tests=(cargo test --locked --workspace --test it engine_contract::docker --)
  # A filter that no test has passes.
  "${tests[@]}" --list | grep ': test$' >/dev/null || { say "there is no test of the contract."; return 1; }
  # Two at a time, because its calls take several times as long as Docker's.
  DOCKER_HOST=unix://$1 "${tests[@]}" --test-threads=2
}

if [ -n "${PODMAN_SOCKET:-}" ]; then
  contract "$PODMAN_SOCKET"
  exit
fi
if ! command -v podman >/dev/null; then
  say "podman is not installed, so nothing was tried on it (apt-get install podman catatonit, or set PODMAN_SOCKET)."
  exit $SKIPPED
fi

FOLDER=$(mktemp -d)
readonly FOLDER
PODMAN=(podman --root "$FOLDER/images" --runroot "$FOLDER/run" --tmpdir "$FOLDER/tmp" --cgroup-manager cgroupfs
  --events-backend file)
SERVICE=

clean_up() {
  [ -z "$SERVICE" ] || { kill "$SERVICE" && wait "$SERVICE"; } 2>/dev/null || true
  "${PODMAN[@]}" rm --all --force >/dev/null 2>&1 || true
  "${PODMAN[@]}" rmi --all --force >/dev/null 2>&1 || true
  rm -rf "$FOLDER" 2>/dev/null || "${PODMAN[@]}" unshare rm -rf "$FOLDER"
}
trap clean_up EXIT

# Podman always requests more processes than a machine allows that cannot raise limits, and from 5 on more open files in
# a build. $1: a runtime. Prints a wrapper that does not set the first limit and requests no more files than allowed.
tamed() {
  local front=$FOLDER/$1 files_max
  files_max=$(ulimit -Hn)
  cat >"$front" <<TEXT
#!/bin/bash
for ((i = 1; i < \$#; i++)); do
  [ "\${!i}" = --bundle ] || continue
  j=\$((i + 1)) file=\${!j}/config.json
  text=\$(jq '.process.rlimits |= map(select(.type != "RLIMIT_NPROC")
    | if .type == "RLIMIT_NOFILE" then (.hard, .soft) |= ([., $files_max] | min) else . end)' "\$file") &&
    printf '%s' "\$text" >"\$file"
done
exec $(command -v "$1") "\$@"
TEXT
  chmod +x "$front"
  printf '%s\n' "$front"
}

# Sets RUNTIME to one that can run a container here.
choose_runtime() {
  local name why=none
  for name in crun runc; do
    command -v "$name" >/dev/null || continue
    RUNTIME=$name
    (ulimit -Hu 1048576) 2>/dev/null || RUNTIME=$(tamed "$name")
    if why=$("${PODMAN[@]}" --runtime "$RUNTIME" \
      run --rm --network none --ulimit nofile=512:512 "$BASE" true 2>&1); then
      return
    fi
  done
  say "$(podman --version) runs no container on this machine, so nothing was tried on it: ${why##*$'\n'}"
  exit $SKIPPED
}

docker save "$BASE" | "${PODMAN[@]}" load -q >/dev/null
choose_runtime
say "on $(podman --version) with ${RUNTIME##*/}"
"${PODMAN[@]}" --runtime "$RUNTIME" system service -t 0 "unix://$FOLDER/socket" >"$FOLDER/log" 2>&1 &
SERVICE=$!
for _ in {1..100}; do
  [ ! -S "$FOLDER/socket" ] || break
  sleep 0.1
done
contract "$FOLDER/socket" || { tail -n 5 "$FOLDER/log" >&2; exit 1; }
