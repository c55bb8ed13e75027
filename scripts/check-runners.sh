#!/usr/bin/env bash
# Runs the programs in tests/runners/ by the plain entrypoint of the runner images, with the restrictions that the
# server sets, and compares output, exit status and files. tests/runners/README.md describes the cases.
set -euo pipefail

SELF=$(realpath "${BASH_SOURCE[0]}")
readonly SELF
cd "$(dirname "$SELF")/.."
readonly JOBS=${JOBS:-4}
readonly PREFIX=${RUNNER_PREFIX:-runner-}
readonly SECONDS_EACH=60

usage() {
  cat <<TEXT
Usage: scripts/check-runners.sh [language[/case]...]
Runs every case under tests/runners/, or those named. Needs Docker and the images that ./build.sh runners makes.
  JOBS=<n>   cases at a time (default $JOBS)
  RUNNER_PREFIX=<prefix>   of the images (default runner-)
TEXT
}

die() { printf 'check-runners: %s\n' "$*" >&2; exit 2; }

# The server's restrictions, as arguments of docker run. $1: the folder for /data.
profile() {
  printf '%s\n' --network none --read-only --tmpfs /tmp:rw,nosuid,nodev,noexec,size=64m,mode=1777 \
    --mount "type=bind,source=$1,target=/data" --user 70123:70123 --cap-drop ALL --security-opt no-new-privileges \
    --security-opt seccomp=src/adapters/engine/docker/seccomp.json \
    --memory 256m --memory-swap 256m --cpus 0.5 --pids-limit 128 --shm-size 16m --log-driver none \
    --ulimit fsize=104857600 --ulimit nofile=1024 --ulimit core=0
}

# $1: case file, $2: section, $3: what to print. Succeeds if the section exists. A heading is "--- name [how]";
# how "escaped" means printf's escapes and no newline at the end, how "shell" means a script that prints the content.
section() {
  local file=$1 name=$2 heading
  heading=$(grep -m1 -E "^--- $name( (escaped|shell))?\$" "$file") || return 1
  local body
  body=$(awk -v heading="$heading" '/^--- / { on = ($0 == heading); next } on' "$file"; printf .)
  body=${body%.}
  case $heading in
    *' escaped') printf '%b' "${body%$'\n'}" ;;
    *' shell') sh -c "$body" ;;
    *) printf '%s' "$body" ;;
  esac
}

# Lines of the section $2 of case $1, each of which must ($3 = has) or must not ($3 = lacks) occur in the file $4.
lines_hold() {
  local line
  while IFS= read -r line; do
    [ -n "$line" ] || continue
    if grep -qF -e "$line" "$4"; then
      [ "$3" = has ] || { echo "  standard error has: $line"; return 1; }
    else
      [ "$3" = lacks ] || { echo "  standard error lacks: $line"; return 1; }
    fi
  done < <(section "$1" "$2")
}

# Prints the differences between the result in folder $2 and case $1; nothing if there are none.
faults() {
  local case=$1 out=$2 want
  want=$(section "$case" status || echo 0)
  [ "$want" = "$(cat "$out/status")" ] || echo "  status $(cat "$out/status") instead of $want"
  if section "$case" stdout > "$out/want"; then
    cmp -s "$out/want" "$out/stdout" || {
      echo "  standard output (< wanted, > was):"
      diff -a "$out/want" "$out/stdout" | head -n 15 || true
    }
  fi
  if section "$case" stderr > "$out/want"; then
    [ -s "$out/want" ] || [ ! -s "$out/stderr" ] || echo "  standard error is not empty"
    lines_hold "$case" stderr has "$out/stderr" || true
  fi
  ! section "$case" 'stderr lacks' >/dev/null || lines_hold "$case" 'stderr lacks' lacks "$out/stderr" || true
  if section "$case" files > "$out/want"; then
    ls -A "$out/data" > "$out/files"
    diff "$out/want" "$out/files" > "$out/diff" || { echo "  files in /data (< wanted, > was):"; cat "$out/diff"; }
  fi
}

# Runs the case file $1; prints "ok" or "FAILED" with the reasons.
check_one() {
  local case=$1 name language file
  name=${case#tests/runners/} name=${name%.case}
  language=${name%%/*}
  # Global, not local: the trap outlives this function.
  out=$(mktemp -d "${TMPDIR:-/tmp}/check-runners.XXXXXX")
  trap 'rm -rf "$out"' EXIT
  mkdir "$out/data"
  while IFS= read -r file; do
    section "$case" "file $file" > "$out/data/$file"
  done < <(sed -n -E 's/^--- file ([^ ]+).*/\1/p' "$case")
  chmod -R a+rwX "$out/data"
  section "$case" program > "$out/program"
  local arguments status=0
  mapfile -t arguments < <(profile "$out/data")
  timeout -k 5 "$SECONDS_EACH" docker run -i --rm --cidfile "$out/container" "${arguments[@]}" \
    --entrypoint /opt/runner/run "$PREFIX$language" < "$out/program" > "$out/stdout" 2> "$out/stderr" || status=$?
  # Without its client, a program that does not end goes on in its container.
  case $status in
    124 | 137) docker rm -f "$(cat "$out/container")" >/dev/null 2>&1 || true ;;
  esac
  echo "$status" > "$out/status"
  faults "$case" "$out" > "$out/faults"
  if [ -s "$out/faults" ]; then
    echo "FAILED $name"
    cat "$out/faults"
    echo "  standard error was:"
    head -n 12 "$out/stderr" | sed 's/^/    /'
  else
    echo "ok $name"
  fi
}

main() {
  case "${1:-}" in
    -h | --help) usage; return ;;
    --one) check_one "$2"; return ;;
  esac
  docker version >/dev/null 2>&1 || die "cannot reach a Docker engine."
  local cases=() wanted
  for wanted in "${@:-}"; do
    if [ -f "tests/runners/$wanted.case" ]; then cases+=("tests/runners/$wanted.case"); continue; fi
    mapfile -t -O ${#cases[@]} cases < <(find "tests/runners/$wanted" -name '*.case' 2>/dev/null | sort)
  done
  [ ${#cases[@]} -gt 0 ] || die "there is no such case."
  local report passed failed
  report=$(mktemp)
  # Each case writes its lines at once and in its own process, so they stay together.
  # shellcheck disable=SC2016 # the inner shell expands these
  printf '%s\n' "${cases[@]}" |
    xargs -P "$JOBS" -I{} sh -c 'text=$("$0" --one "$1" 2>&1); printf "%s\n" "$text"' "$SELF" {} |
    tee "$report" | grep -v '^ok ' || true
  passed=$(grep -c '^ok ' "$report" || true)
  failed=$((${#cases[@]} - passed))
  rm -f "$report"
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

main "$@"
