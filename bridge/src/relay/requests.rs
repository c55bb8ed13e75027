//! Messages to the kernel: of this program's own, and those of the server. One that finds no room, because the kernel
//! does not read, is answered here as a kernel answers what failed.

use serde_json::{Value, json};

use super::Relay;
use crate::message::{Channel, KernelMessage, own_header};

/// What the sender of such a message gets.
const NOT_READ: &str = "The kernel does not read its messages, so this one was not passed on: wait, or interrupt it.";

impl Relay {
    /// Sends the kernel a message of this program's own. Where there is no room for it, a limit of time decides.
    pub(super) async fn ask(&mut self, channel: Channel, kind: &str, content: &Value) {
        let message = self.own_message(channel, kind, content);
        self.pass_on(&message).await;
    }

    /// Passes a message of the server on to the kernel, or answers it.
    pub(super) async fn send(&mut self, message: &KernelMessage) {
        if self.pass_on(message).await {
            return;
        }
        for (channel, kind, content) in refusal(message.channel, &message.read_header().msg_type) {
            let answer = self.own_message(channel, &kind, &content);
            self.forward(&kind, KernelMessage { parent_header: message.header.clone(), ..answer });
        }
    }

    async fn pass_on(&mut self, message: &KernelMessage) -> bool {
        let socket = match message.channel {
            Channel::Shell => &mut self.sockets.shell,
            Channel::Control => &mut self.sockets.control,
            Channel::Stdin => &mut self.sockets.stdin,
            Channel::Iopub | Channel::Bridge => return true,
        };
        socket.send(self.signer.sign(message)).await
    }

    fn own_message(&mut self, channel: Channel, kind: &str, content: &Value) -> KernelMessage {
        self.sent += 1;
        let id = format!("{}_{}", self.session, self.sent);
        KernelMessage::new(channel, &own_header(&id, kind, &self.session), content)
    }
}

/// The answers to a message that was not passed on: an error, and for a request the reply and the status that end it.
fn refusal(channel: Channel, kind: &str) -> Vec<(Channel, String, Value)> {
    let error = json!({"status": "error", "ename": "QueueFull", "evalue": NOT_READ, "traceback": [NOT_READ]});
    let mut answers = vec![(Channel::Iopub, "error".to_owned(), error.clone())];
    if let Some(action) = kind.strip_suffix("_request") {
        answers.push((channel, format!("{action}_reply"), error));
        answers.push((Channel::Iopub, "status".to_owned(), json!({"execution_state": "idle"})));
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(answers: &[(Channel, String, Value)]) -> Vec<(Channel, &str)> {
        answers.iter().map(|(channel, kind, _)| (*channel, kind.as_str())).collect()
    }

    #[test]
    fn refused_request_has_an_error_a_reply_and_the_status_that_ends_it() {
        let answers = refusal(Channel::Shell, "execute_request");
        let expected = [(Channel::Iopub, "error"), (Channel::Shell, "execute_reply"), (Channel::Iopub, "status")];
        assert_eq!(kinds(&answers), expected);
        assert_eq!((&answers[1].2["status"], &answers[1].2["evalue"]), (&json!("error"), &json!(NOT_READ)));
        assert_eq!(answers[2].2, json!({"execution_state": "idle"}));
    }

    #[test]
    fn refused_message_that_no_kernel_answers_has_an_error_alone() {
        for (channel, kind) in [(Channel::Shell, "comm_msg"), (Channel::Stdin, "input_reply"), (Channel::Shell, "")] {
            assert_eq!(kinds(&refusal(channel, kind)), [(Channel::Iopub, "error")], "{kind}");
        }
    }
}
