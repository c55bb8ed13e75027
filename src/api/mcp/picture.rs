//! Pictures as image blocks. A file's name does not prove its type: an image block with other bytes, or one too wide,
//! makes model APIs refuse the whole conversation, so the bytes are checked.

mod smaller;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rmcp::model::ContentBlock;
use tracing::debug;

use self::smaller::SOURCE_BYTES_MAX;
pub use self::smaller::Smaller;
use super::{McpOptions, McpParts, View};
use crate::{
    domain::{owner::ConversationKey, path::SafePath},
    services::{files::Change, runs::Report},
};

/// The longest side that model APIs take, in pixels.
const SIDE_PIXELS_MAX: u32 = 8000;
const KINDS: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The pictures of an answer.
#[derive(Default)]
pub(super) struct Pictures {
    pub blocks: Vec<ContentBlock>,
    /// How many of them are smaller than their files.
    pub smaller: usize,
    /// How many are not shown.
    pub left_out: usize,
}

/// The pictures that a run created or changed, as far as they fit into so many bytes of base64; none for a client that
/// takes none.
pub(super) async fn of_run(parts: &McpParts, view: View, report: &Report, mut bytes_left: usize) -> Pictures {
    let mut pictures = Pictures::default();
    if !view.images {
        return pictures;
    }
    let made = report.files.files.iter().filter(|file| !matches!(file.change, Change::Unchanged));
    for file in made.filter(|file| is_picture(file.media_type())) {
        if pictures.blocks.len() == parts.options.images_max {
            pictures.left_out += 1;
            continue;
        }
        let (conversation, path) = (&report.conversation, &file.path);
        let fits = fits(file.size, &parts.options, bytes_left);
        let whole = if fits { whole(parts, conversation, path, file.size).await } else { None };
        let picture = match whole {
            Some(whole) => Some(whole),
            None => smaller(parts, conversation, path, file.size, bytes_left).await.inspect(|_| pictures.smaller += 1),
        };
        match picture {
            Some((block, bytes)) => {
                bytes_left -= base64_len(bytes);
                pictures.blocks.push(block);
            }
            None if fits => {}
            None => pictures.left_out += 1,
        }
    }
    pictures
}

/// The block and the number of its bytes; nothing of a file that is gone, or grown since it was listed.
async fn whole(
    parts: &McpParts,
    conversation: &ConversationKey,
    path: &SafePath,
    size: u64,
) -> Option<(ContentBlock, usize)> {
    let read = parts.files.read(conversation, path, 0, size).await;
    let content = read.inspect_err(|failure| debug!(code = %failure.code, "a picture is not shown")).ok()?;
    let content = Some(content).filter(|content| !content.truncated)?;
    Some((block(&content.bytes)?, content.bytes.len()))
}

/// The same of a picture that is too large, made smaller.
pub(super) async fn smaller(
    parts: &McpParts,
    conversation: &ConversationKey,
    path: &SafePath,
    size: u64,
    bytes_left: usize,
) -> Option<(ContentBlock, usize)> {
    let bytes_max = usize::try_from(parts.options.image_bytes_max).unwrap_or(usize::MAX).min(bytes_left / 4 * 3);
    if size > SOURCE_BYTES_MAX || bytes_max == 0 {
        return None;
    }
    let read = async {
        let content = parts.files.read(conversation, path, 0, SOURCE_BYTES_MAX).await.ok()?;
        (!content.truncated).then_some(content.bytes)
    };
    let jpeg = parts.pictures.jpeg(read, bytes_max).await?;
    Some((ContentBlock::image(BASE64_STANDARD.encode(&jpeg), "image/jpeg"), jpeg.len()))
}

/// By its name.
pub(super) fn is_picture(media_type: &str) -> bool {
    KINDS.contains(&media_type)
}

/// Whether a picture of this size is shown.
pub(super) fn fits(size: u64, options: &McpOptions, bytes_left: usize) -> bool {
    size <= options.image_bytes_max && usize::try_from(size).is_ok_and(|size| base64_len(size) <= bytes_left)
}

fn base64_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// An image block, if the bytes are a picture that models can look at.
pub(super) fn block(bytes: &[u8]) -> Option<ContentBlock> {
    Some(ContentBlock::image(BASE64_STANDARD.encode(bytes), kind(bytes)?))
}

/// The media type by the bytes themselves, if they are a picture that models can look at.
pub(super) fn kind(bytes: &[u8]) -> Option<&'static str> {
    let big = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    let little = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(|b| u32::from(u16::from_le_bytes(b)));
    let fits = |side: Option<u32>| side.is_some_and(|side| (1..=SIDE_PIXELS_MAX).contains(&side));
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.get(12..16)? == b"IHDR" {
        return (fits(big(16)) && fits(big(20))).then_some("image/png");
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        return (fits(little(6)) && fits(little(8))).then_some("image/gif");
    }
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Some("image/jpeg");
    }
    (bytes.starts_with(b"RIFF") && bytes.get(8..12)? == b"WEBP").then_some("image/webp")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        bytes.extend(width.to_be_bytes());
        bytes.extend(height.to_be_bytes());
        bytes
    }

    #[test]
    fn picture_type_is_read_from_its_bytes() {
        assert_eq!(kind(&png(640, 480)), Some("image/png"));
        assert_eq!(kind(b"GIF89a\x01\0\x01\0"), Some("image/gif"));
        assert_eq!(kind(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(kind(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [&b""[..], b"\x89PNG\r\n\x1a\n", &png(8001, 1), &png(0, 1), b"<svg/>", b"GIF89a", b"RIFF", b"text"]
        {
            assert_eq!(kind(other), None, "{other:?}");
        }
    }
}
