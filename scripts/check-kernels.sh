#!/usr/bin/env bash
# Opens sessions in the runner images through sandbox-init and sandbox-bridge, with the server's restrictions, checks
# what their kernels do, and runs jupyter_kernel_test in an image derived from each. Arguments are passed on: a
# language, part of a case's name, --plain (what that leaves out, which must fail without a sandbox too), --full,
# --measure SESSIONS, --help. RUNNER_PREFIX=<prefix> of the images; CPUS=<n> instead of the server's 0.5.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v python3 >/dev/null || { echo "check-kernels: install python3 and run this again." >&2; exit 2; }
docker version >/dev/null 2>&1 || { echo "check-kernels: cannot reach a Docker engine." >&2; exit 2; }
exec python3 tests/kernels/check.py "$@"
