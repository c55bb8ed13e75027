#!/usr/bin/env bash
# Runs every program in tests/runners/ by the plain entrypoint, by protocol 1 at once and by protocol 1 when warm, and
# in Python also while the rest is loaded or after that, and requires the same result. Arguments are passed on: a
# language, part of a name, --jobs N, --time ROUNDS, --help.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v python3 >/dev/null || { echo "check-warm: install python3 and run this again." >&2; exit 2; }
docker version >/dev/null 2>&1 || { echo "check-warm: cannot reach a Docker engine." >&2; exit 2; }
exec python3 tests/runners/differential.py "$@"
