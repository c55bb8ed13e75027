#!/usr/bin/env bash
# Prints the tables of docs/scale.md: servers on the model of a cluster (tests/it/cluster_scale), on a paused clock.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
LONG=1 cargo test --locked --workspace --test it cluster_scale::tables_of_the_document -- --nocapture
