#!/usr/bin/env bash
# Pins what the Python, Bash and Browser runners install, with everything that needs, by exact version and by the
# hashes of the wheels for Linux on x86-64 and on 64-bit ARM: runners/python/requirements.in in requirements.txt, what
# makes the kernels of sessions (kernel.in in kernel.txt), and what makes modules of tools (tools/python.in in
# tools/python.txt). Run it to update the packages, then build and test.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../runners"
readonly PYTHON=3.13 PIP=25.3 UV=0.13.9
# Of glibc, which the tags of wheels name; Debian 13 has 2.41.
readonly OLDEST_GLIBC=5 NEWEST_GLIBC=40

case "${1:-}" in
  '' | kernels | tools) ;;
  *)
    echo "Usage: scripts/lock-python.sh [kernels | tools]   (needs Python 3 with venv, jq, and a package index)"
    echo "  kernels   all but python/requirements.txt, which stays as it is"
    echo "  tools     only tools/python.txt"
    exit 2
    ;;
esac
command -v jq >/dev/null || { echo "lock-python: install jq and run this again." >&2; exit 2; }

# What is named and not needed: a debugger.
LEFT_OUT=(debugpy)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install -q --disable-pip-version-check "pip==$PIP" "uv==$UV"
# $1: a machine. Prints what pip would install there: name, version and hash of each.
wheels() {
  local tags=(--platform "manylinux2014_$1" --platform "manylinux2010_$1" --platform "manylinux1_$1") minor
  for ((minor = OLDEST_GLIBC; minor <= NEWEST_GLIBC; minor++)); do
    tags+=(--platform "manylinux_2_${minor}_$1")
  done
  "$work/tools/bin/pip" install -q --disable-pip-version-check --dry-run --ignore-installed --no-deps \
    --only-binary :all: --python-version "$PYTHON" "${tags[@]}" --target "$work/none" \
    --report "$work/report" -r "$work/pins" >&2
  jq -r '.install[] | [.metadata.name, .metadata.version, .download_info.archive_info.hashes.sha256] | @tsv' \
    "$work/report"
}

# $1: what is wanted, $2: the file to make, then the locked files that are installed before it.
lock() {
  local wanted=$1 locked=$2 file constraints=()
  shift 2
  : > "$work/before"
  for file in "$@"; do
    constraints+=(-c "$file")
    sed -n -E 's/^([a-z0-9._-]+==[^ ]+).*/\1/p' "$file" | tr _ - >> "$work/before"
  done
  "$work/tools/bin/uv" pip compile -q --no-header --no-annotate --only-binary :all: --python-version "$PYTHON" \
    --python-platform "x86_64-manylinux_2_$NEWEST_GLIBC" "${LEFT_OUT[@]/#/--no-emit-package=}" "${constraints[@]}" \
    "$wanted" |
    grep -vxFf "$work/before" > "$work/pins"
  {
    echo "# Made by scripts/lock-python.sh from ${wanted##*/}. Do not edit."
    { wheels x86_64; wheels aarch64; } | sort -u |
      awk -F '\t' '
        tolower($1) != last { printf "%s%s==%s", last ? "\n" : "", tolower($1), $2; last = tolower($1) }
        { printf " \\\n    --hash=sha256:%s", $3 }
        END { print "" }'
  } > "$work/locked"
  [ "$(grep -c == "$work/locked")" = "$(grep -c == "$work/pins")" ] ||
    { echo "lock-python: the two machines' wheels differ in version; $locked stays as it is." >&2; exit 1; }
  mv "$work/locked" "$locked"
}

# Without what formats the code.
lock_tools() {
  local LEFT_OUT=(black click isort mypy-extensions pathspec platformdirs pytokens)
  lock tools/python.in tools/python.txt python/requirements.txt
}
[ "${1:-}" != tools ] || { lock_tools; exit; }
[ "${1:-}" = kernels ] || lock python/requirements.in python/requirements.txt
lock_tools
lock packages/uv.in packages/uv.txt
lock python/kernel.in python/kernel.txt python/requirements.txt
lock bash/kernel.in bash/kernel.txt python/requirements.txt python/kernel.txt
lock browser/kernel.in browser/kernel.txt python/requirements.txt python/kernel.txt
