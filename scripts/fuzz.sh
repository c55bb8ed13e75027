#!/usr/bin/env bash
# Runs the fuzz targets with coverage guidance; `cargo test fuzz_` tries the same targets with random input. libFuzzer
# keeps input that reaches new code and continues from it. The script does what `cargo bolero test --engine libfuzzer`
# does (cargo-bolero need not be installed), but builds only the tests of the library and of sandbox-init: `cargo
# bolero` also builds the server and its integration tests, all of them with a sanitizer, for which a stable compiler
# needs its option --rustc-bootstrap.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly SECONDS_EACH_USUAL=60
readonly KEPT=$PWD/target/fuzz/corpus
readonly WORDS=$PWD/scripts/words.dict

usage() {
  cat <<TEXT
Usage: scripts/fuzz.sh [seconds] [word...]
Runs every target, or those whose names contain one of the words (git grep 'fn fuzz_'), each for this number of
seconds (default $SECONDS_EACH_USUAL). Inputs found earlier are kept under target/fuzz/corpus/; the next run begins
with them. An input that fails is stored beside the source, under __fuzz__/, where 'cargo test fuzz_' uses it too until
the fault is fixed. Needs a C++ compiler. The first run builds all crates, which takes minutes.
TEXT
}

die() { printf 'fuzz: %s\n' "$*" >&2; exit 2; }

# $@: arguments of cargo test. Prints the path of the test program.
build() {
  # A condition with several parts stays several branches, so that each part counts as new code.
  local flags=(--cfg fuzzing --cfg fuzzing_libfuzzer -Cpasses=sancov-module) each
  flags+=(-Cllvm-args=-simplifycfg-branch-fold-threshold=0)
  for each in inline-8bit-counters level=4 pc-table trace-compares stack-depth; do
    flags+=("-Cllvm-args=-sanitizer-coverage-$each")
  done
  # With a target named, build scripts and macros are not instrumented.
  RUSTFLAGS="${flags[*]}" BOLERO_FUZZER=libfuzzer \
    cargo test --locked --profile fuzz --target "$HOST" --target-dir target/fuzz \
    --no-run --message-format json-render-diagnostics "$@" |
    jq -r 'select(.reason == "compiler-artifact" and .profile.test) | .executable | strings'
}

# Prints every target of the program $1: its folder and its name.
targets() {
  CARGO_BOLERO_SELECT=all "$1" --nocapture --test-threads 1 fuzz_ |
    jq -rR 'fromjson? | select(.__bolero_target?) | "\(.work_dir)\t\(.test_name)"'
}

# Runs the target $2 of the program $1 for $4 seconds; its folder is $3.
run() {
  local program=$1 name=$2 folder=$3 seconds=$4 log kept=$KEPT/$2
  log=$kept.log
  mkdir -p "$kept" "$folder/crashes"
  local arguments="$kept $folder/crashes -artifact_prefix=$folder/crashes/ -dict=$WORDS"
  if BOLERO_LIBTEST_HARNESS=1 BOLERO_TEST_NAME=$name \
    BOLERO_LIBFUZZER_ARGS="$arguments -timeout=10 -max_total_time=$seconds" \
    "$program" "$name" --exact --nocapture --quiet --test-threads 1 >"$log" 2>&1; then
    printf '%-60s %s\n' "$name" "$(sed -n 's/^Done \(.*\)/\1/p' "$log"), $(find "$kept" -type f | wc -l) inputs kept"
    find "$folder" -depth -type d -empty -delete
  else
    printf '%-60s %s\n' "$name" "FAILED: $log says why"
    return 1
  fi
}

main() {
  local seconds=$SECONDS_EACH_USUAL wanted=() failed=0 tried=0 program folder name HOST
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; return ;;
      -*) usage >&2; exit 2 ;;
      *[!0-9]*) wanted+=("$1") ;;
      *) seconds=$1 ;;
    esac
    shift
  done
  command -v c++ >/dev/null || die "the engine is C++; install a compiler (apt-get install g++) and run this again."
  command -v jq >/dev/null || die "jq is not installed; install it (apt-get install jq) and run this again."
  HOST=$(rustc -vV | sed -n 's/^host: //p')
  local programs=()
  mapfile -t programs < <(build --lib && build -p sandbox-init --bin sandbox-init)
  [ ${#programs[@]} -eq 2 ] || die "the targets could not be built; what cargo says is above."
  for program in "${programs[@]}"; do
    while IFS=$'\t' read -r folder name; do
      is_wanted "$name" "${wanted[@]}" || continue
      tried=$((tried + 1))
      run "$program" "$name" "$folder" "$seconds" </dev/null || failed=$((failed + 1))
    done < <(targets "$program")
  done
  [ $tried -gt 0 ] || die "there is no such target."
  [ $failed -eq 0 ] || die "$failed targets failed."
}

# Succeeds if the name $1 contains one of the following words, or if there are none.
is_wanted() {
  local name=$1 word
  shift
  [ $# -gt 0 ] || return 0
  for word in "$@"; do
    [[ $name != *"$word"* ]] || return 0
  done
  return 1
}

main "$@"
