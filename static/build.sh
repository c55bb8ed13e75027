#!/bin/sh
# Makes dist/ again from the sources here and the package versions that package-lock.json pins. Needed after each change
# of a script or style sheet; the result is checked in, so building and using the server needs neither node nor npm.
set -eu
cd "$(dirname "$0")"
npm ci --no-progress
node bundle.mjs
ls -l dist
