//! A picture that is too large for an answer, made smaller: decoded, scaled and written as JPEG.
//!
//! A program wrote the bytes, so decoding is bounded before it begins: by the size in the picture's header, by memory,
//! and to one picture at a time. It runs on a blocking thread, which cannot be stopped: when it takes too long, the
//! answer is sent without the picture, and the next picture waits for the end of the thread.

use std::{io::Cursor, sync::Arc, time::Duration};

use bytes::Bytes;
use image::{DynamicImage, ImageReader, Limits, RgbImage, codecs::jpeg::JpegEncoder};
use tokio::{sync::Semaphore, time::timeout};

/// The largest file that is read for it, in bytes.
pub(super) const SOURCE_BYTES_MAX: u64 = 16 << 20;
/// The largest picture, in pixels, and what its decoder may allocate, in bytes.
const PIXELS_MAX: u64 = 24 << 20;
const DECODER_BYTES_MAX: u64 = 128 << 20;
const TIME_MAX: Duration = Duration::from_secs(10);
/// The longest side, tried one after the other. Models scale larger pictures down themselves.
const SIDES_PIXELS: [u32; 3] = [1568, 1024, 512];
const JPEG_QUALITY: u8 = 85;

/// Makes pictures smaller, one at a time. A clone is the same.
#[derive(Clone)]
pub struct Downscaler(Arc<Semaphore>);

impl Default for Downscaler {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Downscaler {
    /// The picture that `read` gives, as a JPEG of at most so many bytes; nothing when that fails or takes too long.
    pub(super) async fn jpeg(&self, read: impl Future<Output = Option<Bytes>>, bytes_max: usize) -> Option<Vec<u8>> {
        let turn = Arc::clone(&self.0);
        let made = async {
            let turn = turn.acquire_owned().await.ok()?;
            let picture = read.await?;
            let make = move || {
                let _turn = turn;
                jpeg(&picture, bytes_max)
            };
            tokio::task::spawn_blocking(make).await.ok()?
        };
        timeout(TIME_MAX, made).await.ok()?
    }
}

fn jpeg(picture: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let read = || ImageReader::new(Cursor::new(picture)).with_guessed_format().ok();
    let (width, height) = read()?.into_dimensions().ok()?;
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return None;
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODER_BYTES_MAX);
    let mut reader = read()?;
    reader.limits(limits);
    let whole = reader.decode().ok()?;
    SIDES_PIXELS.into_iter().find_map(|side| {
        let side = side.min(width.max(height));
        let mut bytes = Vec::new();
        on_white(&whole.thumbnail(side, side))
            .write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY))
            .ok()?;
        (bytes.len() <= bytes_max).then_some(bytes)
    })
}

/// JPEG has no transparency, and a transparent plot would become black.
fn on_white(picture: &DynamicImage) -> RgbImage {
    let blend = |color: u8, alpha: u8| {
        let sum = u16::from(color) * u16::from(alpha) + 255 * (255 - u16::from(alpha));
        u8::try_from(sum / 255).unwrap_or(255)
    };
    let pixels = picture.to_rgba8();
    RgbImage::from_fn(pixels.width(), pixels.height(), |x, y| {
        let [red, green, blue, alpha] = pixels.get_pixel(x, y).0;
        image::Rgb([red, green, blue].map(|color| blend(color, alpha)))
    })
}

#[cfg(test)]
mod tests {
    use image::{ImageFormat, Rgba, RgbaImage};

    use super::*;

    fn png(width: u32, height: u32, pixel: impl Fn(u32, u32) -> Rgba<u8>) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        RgbaImage::from_fn(width, height, pixel).write_to(&mut bytes, ImageFormat::Png).expect("a picture");
        bytes.into_inner()
    }

    fn noise(x: u32, y: u32) -> Rgba<u8> {
        let mixed = (x ^ y.rotate_left(16)).wrapping_mul(0x9E37_79B1);
        Rgba([(mixed >> 8).to_le_bytes()[0], (mixed >> 16).to_le_bytes()[0], (mixed >> 24).to_le_bytes()[0], 255])
    }

    fn read(bytes: &[u8]) -> RgbImage {
        image::load_from_memory_with_format(bytes, ImageFormat::Jpeg).expect("a JPEG").to_rgb8()
    }

    #[test]
    fn large_picture_keeps_its_shape_and_becomes_white_where_it_is_transparent() {
        let made = jpeg(&png(3000, 1500, |_, _| Rgba([0, 0, 0, 0])), 500 << 10).expect("a picture");
        let picture = read(&made);
        assert_eq!((picture.width(), picture.height()), (1568, 784));
        assert!(picture.get_pixel(700, 300).0.iter().all(|color| *color > 250));
    }

    #[test]
    fn noise_is_made_small_enough_or_left_out() {
        let noisy = png(1600, 1600, noise);
        let made = jpeg(&noisy, 400 << 10).expect("a picture");
        assert!(made.len() <= 400 << 10 && read(&made).width() < 1568, "{}", made.len());
        assert_eq!(jpeg(&noisy, 100), None);
    }

    #[test]
    fn what_is_too_large_or_no_picture_is_left_out() {
        let mut bomb = png(10, 10, noise);
        bomb[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 0]);
        let whole = png(10, 10, noise);
        for bytes in [&bomb[..], b"", b"\x89PNG\r\n\x1a\n", b"GIF89a\x01\0\x01\0", &whole[..whole.len() / 2]] {
            assert_eq!(jpeg(bytes, 1 << 20), None);
        }
    }
}
