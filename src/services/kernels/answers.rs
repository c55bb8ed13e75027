//! What the server itself says to clients, in the form of a kernel's messages.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    domain::error::Failure,
    services::sessions::{
        message::{Channel, KernelMessage},
        own_message,
    },
};

fn own(channel: Channel, kind: &str, parent: Bytes, content: &Value) -> KernelMessage {
    KernelMessage { parent_header: parent, ..own_message("", channel, kind, content).1 }
}

/// The state of the kernel, for all.
pub(super) fn status(state: &str) -> KernelMessage {
    own(Channel::Iopub, "status", Bytes::from_static(b"{}"), &json!({"execution_state": state}))
}

/// A line beside the output of a cell.
pub(super) fn note(parent: Bytes, text: &str) -> KernelMessage {
    own(Channel::Iopub, "stream", parent, &json!({"name": "stderr", "text": text}))
}

/// What a cell is answered that is not executed.
pub(super) fn refusal(parent: &Bytes, failure: &Failure) -> [KernelMessage; 4] {
    let (name, value) = (failure.code.as_str(), failure.sentence(|_| "the session"));
    let error = json!({"ename": name, "evalue": value, "traceback": [value]});
    let reply = json!({"status": "error", "execution_count": 0, "payload": [], "user_expressions": {},
        "ename": name, "evalue": value, "traceback": [value]});
    let state = |state: &str| KernelMessage { parent_header: parent.clone(), ..status(state) };
    [
        state("busy"),
        own(Channel::Iopub, "error", parent.clone(), &error),
        own(Channel::Shell, "execute_reply", parent.clone(), &reply),
        state("idle"),
    ]
}
