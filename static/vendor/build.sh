#!/bin/sh
# Makes codemirror.js and LICENSES.txt again from the versions that package-lock.json pins. Only whoever updates the
# editor runs this; both results are checked in, and nobody needs node or npm to build or use the server.
set -eu
cd "$(dirname "$0")"
npm ci --no-progress
node bundle.mjs
ls -l codemirror.js LICENSES.txt
