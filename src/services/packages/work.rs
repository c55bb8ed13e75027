//! The sandbox that installs: a program of ours that calls the tool, with channels to the index alone and a folder that
//! is no conversation's.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::{Inner, Job};
use crate::{
    domain::{
        Code, Ended, Failure, Limits,
        packages::{FOLDER, Requirements, Tool},
    },
    ports::{packages::Tree, storage::Usage},
    services::{
        network::Access,
        runs::{AuxiliaryProgram, execute_auxiliary, outgrown, staged},
    },
};

/// An installation has the packages as archives, in its cache, and in the tree.
const COPIES: u64 = 3;
/// How much of the tool's words a refusal repeats, in characters.
const WORDS_CHARS_MAX: usize = 2000;
const BY_UV: &str = include_str!("install.py");
const BY_NPM: &str = include_str!("install.js");

impl Inner {
    /// Makes the tree of these requirements.
    pub(super) async fn make(
        &self,
        job: &Job,
        asked: &Requirements,
        key: &str,
        tell: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Tree, Failure> {
        let Job { wanted, tool, runner, options, index, by, .. } = job;
        let (conversation, tool) = (&wanted.conversation, *tool);
        self.parts.isolation.wait(&runner.image).await?;
        let quota = self.parts.files.quota();
        quota.disk_has_room(&Usage::default())?;
        let ceiling = quota.ceiling();
        let staging = staged(&self.parts, &conversation.owner).await?;

        let folder = format!("/data/{FOLDER}/{}", tool.folder());
        let order = json!({"requirements": asked.texts(), "index": index, "roots": options.roots,
            "builds": options.builds, "folder": folder});
        let code = match tool {
            Tool::Uv => BY_UV,
            Tool::Npm => BY_NPM,
        };
        let limits = Limits { file_bytes_max: ceiling.bytes, ..options.limits };
        let access = Access::of(options.policy.clone());
        let auxiliary = AuxiliaryProgram {
            runner,
            data: staging.data(),
            limits,
            code: Bytes::from_static(code.as_bytes()),
            stdin: order.to_string().into(),
            channels: Some(self.parts.network.open(access, conversation, &runner.language)),
            by: by.as_ref(),
            cancel: self.tasks.stop.child_token(),
        };
        let Usage { bytes, entries } = ceiling;
        let most = Usage { bytes: bytes.saturating_mul(COPIES), entries: entries.saturating_mul(COPIES) };
        let disk = Arc::clone(quota);
        let breach = outgrown(Arc::clone(&staging), most, move || disk.disk_has_room(&Usage::default()).is_ok());
        let executed = execute_auxiliary(&self.parts.sandboxes, auxiliary, breach, tell).await;
        let (outcome, [stdout, stderr]) = executed?;
        let refused = |why: String| Failure::new(Code::PackagesRefused, why);
        let words = || tail(&format!("{stdout}\n{stderr}"));
        match outcome.ended {
            Ended::Exited { code: 0 } => {}
            Ended::Cancelled => return Err(Failure::stopping()),
            Ended::TimedOut => {
                let seconds = limits.wall().as_secs();
                let words = words();
                return Err(refused(format!("Installing took longer than {seconds} s and was stopped. {words}")));
            }
            Ended::DiskLimit(_) => return Err(too_large(ceiling)),
            Ended::Exited { .. } => return Err(refused(format!("Nothing was installed. {}", words()))),
            _ => return Err(refused(format!("Nothing was installed: {} {}", outcome.sentence(), words()))),
        }
        let key = key.to_owned();
        let kept = self.on_disk(move |_| staging.keep(tool, &key, &ceiling)).await;
        // An installation that was over before it was measured.
        let is_large =
            |failure: &Failure| failure.code == Code::NoSpace && quota.disk_has_room(&Usage::default()).is_ok();
        kept.map_err(|failure| if is_large(&failure) { too_large(ceiling) } else { failure })
    }
}

fn too_large(ceiling: Usage) -> Failure {
    let mib = ceiling.bytes >> 20;
    let why = format!(
        "The packages take more space than a conversation has, which is {mib} MiB and {} files, or the server's disk \
         is nearly full; nothing was installed.",
        ceiling.entries
    );
    Failure::new(Code::QuotaExceeded, why)
}

/// The end of what the tool said, which has the reason.
fn tail(words: &str) -> String {
    let words = words.trim();
    let skipped = words.chars().count().saturating_sub(WORDS_CHARS_MAX);
    words.chars().skip(skipped).collect()
}
