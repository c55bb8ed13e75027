//! Tests that run `sandbox-init` as a process and exchange frames with it. On the host it is not process 1, and so ends
//! what it started by walking down the tree; `scripts/check-runners.sh` does the same in containers.

mod client;
mod endings;
mod files;
mod requests;
mod streams;
mod warm;
