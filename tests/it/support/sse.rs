//! Reads a run's events as a client of `/v1` does, one at a time.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::time::timeout;

use super::{server::TOKEN, until::PATIENCE};

/// An open stream of events.
pub struct Events {
    pieces: Pin<Box<dyn Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>,
    text: Vec<u8>,
}

impl Events {
    /// Opens `{base}/v1/runs/{run}/events`.
    pub async fn open(http: &reqwest::Client, base: &str, run: &str) -> Self {
        let url = format!("{base}/v1/runs/{run}/events");
        let response = http.get(url).bearer_auth(TOKEN).send().await.expect("a stream");
        assert_eq!(response.status(), 200);
        Self { pieces: response.bytes_stream().boxed(), text: Vec::new() }
    }

    /// The next event; nothing after the last.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.windows(2).position(|two| two == b"\n\n") {
                let message: Vec<u8> = self.text.drain(..end + 2).collect();
                let message = String::from_utf8(message).expect("UTF-8");
                if let Some(data) = message.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return Some(serde_json::from_str(data).expect("JSON"));
                }
                continue;
            }
            let piece = timeout(PATIENCE, self.pieces.next()).await.expect("something comes, if only a keep-alive")?;
            self.text.extend_from_slice(&piece.expect("bytes"));
        }
    }

    /// Reads on to the first event that fits.
    pub async fn find(&mut self, mut fits: impl FnMut(&Value) -> bool) -> Value {
        loop {
            let event = self.next().await.expect("it comes before the end");
            if fits(&event) {
                return event;
            }
        }
    }

    /// Reads on until this was printed to standard output.
    pub async fn printed(&mut self, wanted: &str) {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            let event = self.find(|event| event["kind"] == "stdout").await;
            seen += event["text"].as_str().expect("text");
        }
    }

    /// Reads to the end; the last event.
    pub async fn last(&mut self) -> Value {
        let mut last = Value::Null;
        while let Some(event) = self.next().await {
            last = event;
        }
        last
    }
}
