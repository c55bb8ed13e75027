//! Messages of the server itself to clients, in the form of a kernel's messages.

use bytes::Bytes;
use serde_json::{Value, json};

use super::ID_BYTES_MAX;
use crate::{
    domain::Failure,
    services::sessions::{
        message::{Channel, Header, KernelMessage},
        own_message,
    },
};

/// Writes messages under the kernel's own session id. `JupyterLab` takes a message of another id for one of another
/// kernel, and leaves out the one before it.
#[derive(Default)]
pub(super) struct KernelSender {
    session: String,
}

impl KernelSender {
    /// Learns the id from what the kernel sends. It is in each message from here on, so a long one is none.
    pub(super) fn learn_session(&mut self, header: &Header) {
        if self.session != header.session && header.session.len() <= ID_BYTES_MAX {
            self.session.clone_from(&header.session);
        }
    }

    fn message(&self, channel: Channel, kind: &str, parent: Bytes, content: &Value) -> KernelMessage {
        KernelMessage { parent_header: parent, ..own_message(&self.session, channel, kind, content).1 }
    }

    /// The state of the kernel, for all.
    pub(super) fn status(&self, state: &str) -> KernelMessage {
        self.message(Channel::Iopub, "status", Bytes::from_static(b"{}"), &json!({"execution_state": state}))
    }

    /// A line beside the output of a cell.
    pub(super) fn note(&self, parent: Bytes, text: &str) -> KernelMessage {
        self.message(Channel::Iopub, "stream", parent, &json!({"name": "stderr", "text": text}))
    }

    /// What a cell is answered that is not executed.
    pub(super) fn refusal(&self, parent: &Bytes, failure: &Failure) -> [KernelMessage; 4] {
        let (name, value) = (failure.code.as_str(), failure.sentence(|_| "the session"));
        let error = json!({"ename": name, "evalue": value, "traceback": [value]});
        let reply = json!({"status": "error", "execution_count": 0, "payload": [], "user_expressions": {},
            "ename": name, "evalue": value, "traceback": [value]});
        let state = |state: &str| KernelMessage { parent_header: parent.clone(), ..self.status(state) };
        [
            state("busy"),
            self.message(Channel::Iopub, "error", parent.clone(), &error),
            self.message(Channel::Shell, "execute_reply", parent.clone(), &reply),
            state("idle"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_of_the_kernels_session_unless_its_id_is_long() {
        let mut sender = KernelSender::default();
        for session in ["kernel", "x".repeat(1 << 20).as_str()] {
            sender.learn_session(&Header { session: session.to_owned(), ..Header::default() });
            assert_eq!(sender.status("idle").read_header().session, "kernel");
        }
    }
}
