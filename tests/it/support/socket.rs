//! A client of a kernel's WebSocket, in either form of messages.

use std::net::SocketAddr;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::timeout};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Error, Message, client::IntoClientRequest as _, http::HeaderValue},
};
use uuid::Uuid;

use super::until::PATIENCE;

pub const V1: &str = "v1.kernel.websocket.jupyter.org";

pub struct Socket {
    pub stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub protocol: Option<String>,
}

impl Socket {
    /// Connects; the status where the server does not let it.
    pub async fn connect(address: SocketAddr, path: &str, headers: &[(&'static str, &str)]) -> Result<Self, u16> {
        let mut request = format!("ws://{address}{path}").into_client_request().expect("a request");
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).expect("a header"));
        }
        match connect_async(request).await {
            Ok((stream, answer)) => {
                let protocol = answer.headers().get("sec-websocket-protocol");
                let protocol = protocol.map(|name| name.to_str().expect("text").to_owned());
                Ok(Self { stream, protocol })
            }
            Err(Error::Http(answer)) => Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a request; its id.
    pub async fn send(&mut self, channel: &str, kind: &str, content: Value) -> String {
        let id = Uuid::new_v4().to_string();
        self.send_as(&id, channel, kind, content).await;
        id
    }

    pub async fn send_as(&mut self, id: &str, channel: &str, kind: &str, content: Value) {
        let header = json!({"session": "test", "date": "", "msg_id": id, "msg_type": kind, "version": "5.3"});
        let message = json!({"channel": channel, "header": header, "parent_header": {}, "metadata": {},
            "content": content});
        let frame = if self.protocol.is_some() {
            let parts = [channel.to_owned(), header.to_string(), "{}".to_owned(), "{}".to_owned(), content.to_string()];
            let mut offset = 8 * 7_u64;
            let mut bytes = 6_u64.to_le_bytes().to_vec();
            bytes.extend(offset.to_le_bytes());
            for part in &parts {
                offset += part.len() as u64;
                bytes.extend(offset.to_le_bytes());
            }
            bytes.extend(parts.concat().into_bytes());
            Message::Binary(bytes.into())
        } else {
            Message::Text(message.to_string().into())
        };
        self.stream.send(frame).await.expect("the server reads");
    }

    pub async fn execute(&mut self, code: &str) -> String {
        self.send("shell", "execute_request", json!({"code": code, "silent": false, "allow_stdin": true})).await
    }

    /// The next frame that is no ping; nothing at the end.
    pub async fn frame(&mut self) -> Option<Message> {
        loop {
            let next = timeout(PATIENCE, self.stream.next()).await.expect("a message in time");
            match next {
                Some(Ok(Message::Ping(_))) => {}
                Some(Ok(message)) => return Some(message),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// Waits until the server has read what was sent so far; what comes meanwhile is dropped.
    pub async fn is_read(&mut self) {
        self.stream.send(Message::Ping(Vec::new().into())).await.expect("the server reads");
        while !matches!(self.frame().await.expect("an answer"), Message::Pong(_)) {}
    }

    /// The next message.
    pub async fn next(&mut self) -> Value {
        match self.frame().await.expect("a message") {
            Message::Text(text) => serde_json::from_str(&text).expect("JSON"),
            Message::Binary(bytes) if self.protocol.is_some() => {
                let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
                let offset = |index: usize| usize::try_from(number(8 * (1 + index))).expect("an offset");
                let part = |index: usize| &bytes[offset(index)..offset(index + 1)];
                let json = |index: usize| serde_json::from_slice::<Value>(part(index)).expect("JSON");
                json!({"channel": String::from_utf8_lossy(part(0)), "header": json(1), "parent_header": json(2),
                    "msg_type": json(1)["msg_type"], "content": json(4)})
            }
            other => panic!("{other:?}"),
        }
    }

    /// The messages until one that is wanted, which is the last.
    pub async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.next().await;
            let is_wanted = wanted(&message);
            messages.push(message);
            if is_wanted {
                return messages;
            }
        }
    }

    /// What came for a request until its reply and its idle status.
    pub async fn answers(&mut self, request: &str) -> Vec<Value> {
        let (mut messages, mut replied, mut idle) = (Vec::new(), false, false);
        while !(replied && idle) {
            let message = self.next().await;
            if message["parent_header"]["msg_id"] == request {
                replied |= message["msg_type"] == "execute_reply";
                idle |= message["content"]["execution_state"] == "idle";
                messages.push(message);
            }
        }
        messages
    }

    /// Executes code; what it prints and shows as text.
    pub async fn run(&mut self, code: &str) -> String {
        let request = self.execute(code).await;
        text(&self.answers(&request).await)
    }

    /// The code and the reason with which the server ends the connection.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            match self.frame().await {
                Some(Message::Close(Some(frame))) => return (frame.code.into(), frame.reason.to_string()),
                Some(_) => {}
                None => panic!("it was cut off"),
            }
        }
    }
}

/// What messages print and show as text.
pub fn text(messages: &[Value]) -> String {
    let texts = messages.iter().filter(|message| message["channel"] == "iopub").filter_map(|message| {
        let content = &message["content"];
        [&content["text"], &content["data"]["text/plain"], &content["evalue"]].into_iter().find_map(Value::as_str)
    });
    texts.collect()
}
