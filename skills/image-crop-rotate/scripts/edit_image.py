"""Rotates, crops, trims and resizes a picture. Prints its size before and after."""

import argparse
import sys
from pathlib import Path

from PIL import Image, ImageChops, ImageColor, ImageOps

# A picture of more is refused before it is unpacked.
Image.MAX_IMAGE_PIXELS = 100_000_000
OPAQUE = (".jpg", ".jpeg", ".bmp")


def edges(text, width, height):
    parts = text.split(",")
    if len(parts) != 4:
        sys.exit("--crop: give left,top,right,bottom")
    sizes = (width, height, width, height)
    box = [float(part[:-1]) * size / 100 if part.endswith("%") else float(part) for part, size in zip(parts, sizes)]
    left, top, right, bottom = (round(edge) for edge in box)
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        sys.exit(f"--crop: the part must lie in the picture, which has {width} x {height} pixels here")
    return left, top, right, bottom


def rotate(picture, degrees, fill):
    if degrees % 90 == 0:
        turns = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}
        turn = turns.get(int(degrees) % 360)
        return picture.transpose(turn) if turn is not None else picture
    picture = picture.convert("RGBA")
    colour = ImageColor.getcolor(fill, "RGBA") if fill else (255, 255, 255, 0)
    return picture.rotate(-degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=colour)


def trim(picture):
    plain = picture.convert("RGBA")
    border = Image.new("RGBA", plain.size, plain.getpixel((0, 0)))
    difference = ImageChops.difference(plain, border)
    # A difference of a few steps is noise of JPEG.
    box = difference.convert("RGB").point(lambda step: 255 if step > 12 else 0).getbbox()
    clear = difference.getchannel("A").getbbox()
    boxes = [one for one in (box, clear) if one]
    if not boxes:
        return picture
    left, top = min(one[0] for one in boxes), min(one[1] for one in boxes)
    return picture.crop((left, top, max(one[2] for one in boxes), max(one[3] for one in boxes)))


def shape(picture, text):
    wide, _, high = text.partition(":")
    try:
        ratio = float(wide) / float(high)
    except (ValueError, ZeroDivisionError):
        ratio = 0
    if ratio <= 0:
        sys.exit("--aspect: give it as 16:9")
    width, height = picture.size
    new = (max(1, min(width, round(height * ratio))), max(1, min(height, round(width / ratio))))
    left, top = (width - new[0]) // 2, (height - new[1]) // 2
    return picture.crop((left, top, left + new[0], top + new[1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rotate", type=float, default=0)
    parser.add_argument("--fill")
    parser.add_argument("--crop")
    parser.add_argument("--trim", action="store_true")
    parser.add_argument("--aspect")
    parser.add_argument("--max-size", type=int)
    given = parser.parse_args()
    with Image.open(given.file) as opened:
        before = opened.size
        picture = ImageOps.exif_transpose(opened)
    if "transparency" in picture.info and picture.mode in ("1", "L", "P", "RGB"):
        # Which colour is clear is noted beside the pixels, and a new picture would not have it.
        picture = picture.convert("RGBA")
    picture = rotate(picture, given.rotate, given.fill)
    if given.crop:
        picture = picture.crop(edges(given.crop, *picture.size))
    if given.trim:
        picture = trim(picture)
    if given.aspect:
        picture = shape(picture, given.aspect)
    if given.max_size:
        picture.thumbnail((given.max_size, given.max_size), Image.Resampling.LANCZOS)
    if given.out.suffix.lower() in OPAQUE and picture.mode not in ("RGB", "L"):
        picture = picture.convert("RGBA")
        ground = Image.new("RGBA", picture.size, given.fill or "white")
        picture = Image.alpha_composite(ground, picture).convert("RGB")
    # A new picture has the pixels and nothing that a camera noted.
    clean = Image.new(picture.mode, picture.size)
    if picture.mode == "P":
        clean.putpalette(picture.getpalette())
    clean.paste(picture)
    clean.save(given.out, **({"quality": 92} if given.out.suffix.lower() in OPAQUE[:2] else {}))
    print(f"{before[0]} x {before[1]} -> {clean.size[0]} x {clean.size[1]}: {given.out.name}")


if __name__ == "__main__":
    main()
