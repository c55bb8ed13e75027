#!/usr/bin/env bash
# Runs the programs in tests/runners/ in the runner images, with the restrictions that the server sets: by the plain
# entrypoint, whose result the cases state (tests/runners/README.md), and by protocol 1 in one of these ways, with the
# same result: at once, when warm and, in Python, while the rest is loaded or after that; in each with LONG=1. Arguments
# are passed on: a language, part of a name, --plain, --jobs N, --time ROUNDS, --help.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v python3 >/dev/null || { echo "check-runners: install python3 and run this again." >&2; exit 2; }
docker version >/dev/null 2>&1 || { echo "check-runners: cannot reach a Docker engine." >&2; exit 2; }
exec python3 tests/runners/check.py "$@"
