//! The engine's list of containers, passed on one container after another, so that neither the engine's list nor what
//! is left of it is ever in memory as a whole. Spawns nothing; ends when its body is dropped.

use std::{mem, path::PathBuf};

use bollard::models::ContainerSummary;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde_json::Deserializer;

use super::{
    forward::{Body, BodyError},
    ownership,
};

/// The largest description of one container; ours are a hundredth of it.
const SUMMARY_BYTES_MAX: usize = 256 << 10;

/// What a server with this root may see of the engine's list. It holds `permit` until it has been read, or is dropped.
pub(super) fn shown(answer: Body, root: PathBuf, now_unix_s: i64, permit: impl Send + 'static) -> Body {
    let unread = BytesMut::new();
    let start = Listing { answer, unread, root, now_unix_s, before: "[", is_over: false, _permit: permit };
    let pieces = stream::try_unfold(start, |mut listing| async move {
        let next = listing.next().await;
        next.map(|piece| piece.map(|piece| (Frame::data(piece), listing)))
    });
    StreamBody::new(pieces).boxed_unsync()
}

struct Listing<P> {
    answer: Body,
    /// What came and is not parsed.
    unread: BytesMut,
    root: PathBuf,
    now_unix_s: i64,
    /// What is written before the next container.
    before: &'static str,
    is_over: bool,
    _permit: P,
}

impl<P> Listing<P> {
    /// The next piece of the filtered list; `None` after its end.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        if self.is_over {
            return Ok(None);
        }
        while let Some(mut one) = self.next_of_engine().await? {
            if ownership::show(&mut one, &self.root, self.now_unix_s) {
                let mut piece = mem::replace(&mut self.before, ",").as_bytes().to_vec();
                serde_json::to_writer(&mut piece, &one)?;
                return Ok(Some(piece.into()));
            }
        }
        self.is_over = true;
        Ok(Some(Bytes::from(if self.before == "[" { "[]" } else { "]" })))
    }

    /// The next container of the engine's list; `None` at its end.
    async fn next_of_engine(&mut self) -> Result<Option<ContainerSummary>, BodyError> {
        loop {
            let is_between = |byte: &&u8| **byte == b'[' || **byte == b',' || byte.is_ascii_whitespace();
            let between = self.unread.iter().take_while(is_between).count();
            self.unread.advance(between);
            if self.unread.first() == Some(&b']') {
                return Ok(None);
            }
            let (found, end) = {
                let mut containers = Deserializer::from_slice(&self.unread).into_iter::<ContainerSummary>();
                (containers.next(), containers.byte_offset())
            };
            match found {
                Some(Ok(one)) => {
                    self.unread.advance(end);
                    return Ok(Some(one));
                }
                Some(Err(error)) if !error.is_eof() => return Err(error.into()),
                _ if self.unread.len() > SUMMARY_BYTES_MAX => return Err("a container has no bounded form".into()),
                _ => {}
            }
            let frame = self.answer.frame().await.ok_or("the engine's list has no end")??;
            if let Some(more) = frame.data_ref() {
                self.unread.extend_from_slice(more);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tokio::sync::Semaphore;

    use super::*;

    fn one(id: &str, folder: &str) -> Value {
        let mount = json!({"Type": "bind", "Source": folder, "Destination": "/data"});
        json!({"Id": id, "Names": ["/ä \"x\" [],"], "Labels": {"a": "]},{"}, "State": "running", "Mounts": [mount]})
    }

    /// The engine's answer in pieces of this size, filtered.
    fn filtered(text: &str, size: usize, permits: &Arc<Semaphore>) -> Body {
        let pieces: Vec<_> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let answer =
            StreamBody::new(stream::iter(pieces.into_iter().map(|piece| Ok::<_, BodyError>(Frame::data(piece)))));
        let permit = Arc::clone(permits).try_acquire_owned().expect("a permit");
        shown(answer.boxed_unsync(), PathBuf::from("/root"), 0, permit)
    }

    #[tokio::test]
    async fn list_is_filtered_wherever_its_bytes_are_cut() {
        let all = [one("a", "/root/c/files"), one("b", "/other/c/files"), one("c", "/root/d/files")];
        let permits = Arc::new(Semaphore::new(1));
        for (list, expected) in [(&all[..], &["a", "c"][..]), (&all[1..2], &[][..]), (&[][..], &[][..])] {
            let text = format!("{:#}\n", json!(list));
            for size in [1, 3, 64, 1 << 20] {
                let read = filtered(&text, size, &permits).collect().await.expect("a list").to_bytes();
                let found: Vec<ContainerSummary> = serde_json::from_slice(&read).expect("a list");
                let ids: Vec<_> = found.iter().filter_map(|one| one.id.as_deref()).collect();
                assert_eq!(ids, expected, "{size}");
            }
        }
    }

    #[tokio::test]
    async fn list_that_is_broken_or_has_an_endless_container_breaks_off() {
        let endless = format!(r#"[{{"Id": "{}"#, "x".repeat(2 * SUMMARY_BYTES_MAX));
        let permits = Arc::new(Semaphore::new(1));
        for text in ["", "[", "null", "[1]", r#"[{"Id": "a""#, r#"[{"Id": "a"}"#, endless.as_str()] {
            filtered(text, 1 << 14, &permits).collect().await.expect_err(text.get(..9).unwrap_or(text));
        }
    }

    #[tokio::test]
    async fn place_is_kept_until_the_list_has_been_read() {
        let permits = Arc::new(Semaphore::new(1));
        let mut list = filtered(&json!([one("a", "/root/c")]).to_string(), 64, &permits);
        list.frame().await.expect("a piece").expect("a container");
        assert_eq!(permits.available_permits(), 0);
        list.frame().await.expect("a piece").expect("the end");
        assert!(list.frame().await.is_none());
        drop(list);
        assert_eq!(permits.available_permits(), 1);
    }
}
