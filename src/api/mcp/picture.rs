//! Pictures as image blocks. A file's name does not prove its type: an image block with other bytes, or one too wide,
//! makes model APIs refuse the whole conversation, so the bytes are checked.

mod smaller;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use imagesize::{ImageSize, ImageType};
use rmcp::model::ContentBlock;
use tracing::debug;

pub use self::smaller::Downscaler;
use self::smaller::SOURCE_BYTES_MAX;
use super::{McpOptions, McpParts, View};
use crate::{
    domain::{ConversationKey, SafePath},
    services::runs::Report,
};

/// The longest side that model APIs take, in pixels.
const SIDE_PIXELS_MAX: usize = 8000;
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
    for file in report.files.made().filter(|file| is_picture(file.media_type())) {
        if pictures.blocks.len() == parts.options.images_max {
            pictures.left_out += 1;
            continue;
        }
        let (conversation, path) = (&report.conversation, &file.path);
        let fits = fits(file.size, &parts.options, bytes_left);
        let mut shown = if fits { whole(parts, conversation, path, file.size).await } else { Err(NotShown::Picture) };
        if let Err(why) = shown {
            let picture = smaller(parts, conversation, path, file.size, bytes_left).await;
            shown = picture.inspect(|_| pictures.smaller += 1).ok_or(why);
        }
        match shown {
            Ok((block, bytes)) => {
                bytes_left -= base64_len(bytes);
                pictures.blocks.push(block);
            }
            Err(NotShown::Picture) => pictures.left_out += 1,
            Err(NotShown::Other) => {}
        }
    }
    pictures
}

/// Why a file with the name of a picture is not shown as it is.
enum NotShown {
    /// A picture that models do not take, or too large.
    Picture,
    /// No picture, gone, or grown since it was listed.
    Other,
}

/// The block and the number of its bytes.
async fn whole(
    parts: &McpParts,
    conversation: &ConversationKey,
    path: &SafePath,
    size: u64,
) -> Result<(ContentBlock, usize), NotShown> {
    let read = parts.files.read(conversation, path, 0, size).await;
    let content = read.inspect_err(|failure| debug!(code = %failure.code, "a picture is not shown"));
    let bytes = content.ok().filter(|content| !content.truncated).ok_or(NotShown::Other)?.bytes;
    let why = if has_bytes_of_one(&bytes) { NotShown::Picture } else { NotShown::Other };
    Ok((block(&bytes).ok_or(why)?, bytes.len()))
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
fn kind(bytes: &[u8]) -> Option<&'static str> {
    let (kind, sides) = recognized(bytes)?;
    sides.iter().all(|side| (1..=SIDE_PIXELS_MAX).contains(side)).then_some(kind)
}

/// Whether the bytes are those of a picture, of whatever size.
pub(super) fn has_bytes_of_one(bytes: &[u8]) -> bool {
    recognized(bytes).is_some()
}

/// The media type and the sides in pixels.
fn recognized(bytes: &[u8]) -> Option<(&'static str, [usize; 2])> {
    let kind = match imagesize::image_type(bytes).ok()? {
        ImageType::Gif => "image/gif",
        ImageType::Jpeg => "image/jpeg",
        ImageType::Png => "image/png",
        ImageType::Webp => "image/webp",
        _ => return None,
    };
    let ImageSize { width, height } = imagesize::blob_size(bytes).ok()?;
    Some((kind, [width, height]))
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

    fn jpeg(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::GrayImage::new(width, height).write_to(&mut bytes, image::ImageFormat::Jpeg).expect("a picture");
        bytes.into_inner()
    }

    /// The head of a picture whose first chunk holds these bytes.
    fn webp(chunk: [u8; 4], head: &[u8]) -> Vec<u8> {
        [&b"RIFF\0\0\0\0WEBP"[..], &chunk, b"\0\0\0\0", head].concat()
    }

    #[test]
    fn picture_type_is_read_from_its_bytes() {
        assert_eq!(kind(&png(640, 480)), Some("image/png"));
        assert_eq!(kind(b"GIF89a\x01\0\x01\0\0\0"), Some("image/gif"));
        assert_eq!(kind(&jpeg(640, 480)), Some("image/jpeg"));
        assert_eq!(recognized(&jpeg(640, 480)), Some(("image/jpeg", [640, 480])));
        for (chunk, head) in [
            (*b"VP8X", &b"\0\0\0\0\x7f\x02\0\xdf\x01\0"[..]),
            (*b"VP8L", &b"\x2f\x7f\xc2\x77\0"[..]),
            (*b"VP8 ", &b"\0\0\0\x9d\x01\x2a\x80\x02\xe0\x01"[..]),
        ] {
            assert_eq!(recognized(&webp(chunk, head)), Some(("image/webp", [640, 480])), "{chunk:?}");
            assert_eq!(kind(&webp(chunk, &head[..head.len() - 1])), None, "the head is cut off");
        }
    }

    #[test]
    fn what_models_refuse_is_no_picture() {
        let wide = webp(*b"VP8X", b"\0\0\0\0\x40\x1f\0\0\0\0");
        let pictures = [png(8001, 1), png(0, 1), jpeg(8001, 1), jpeg(1, 8001), wide];
        for (number, picture) in pictures.iter().enumerate() {
            assert!(kind(picture).is_none() && has_bytes_of_one(picture), "{number}");
        }
        for other in [&b""[..], b"\x89PNG\r\n\x1a\n", b"<svg/>", b"GIF89a", b"RIFF", b"text", b"\xff\xd8\xff"] {
            assert!(!has_bytes_of_one(other), "{other:?}");
        }
        let endless = [&b"\xff\xd8"[..], &[0xff; 99]].concat();
        for broken in [&b"\xff\xd8\xff\xe0\0\0"[..], b"\xff\xd8\xff\xe0\0\x02text", &endless] {
            assert!(!has_bytes_of_one(broken), "{broken:?}");
        }
    }
}
