"""Replaces texts in a PDF: in the page's own content where its font can write the new text, else by covering it."""

import argparse
import io
import sys
from pathlib import Path

import pdfplumber
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, ByteStringObject, ContentStream, NameObject, TextStringObject
from reportlab.pdfbase.pdfmetrics import stringWidth
from reportlab.pdfgen.canvas import Canvas

SIMPLE = (None, "/WinAnsiEncoding", "/StandardEncoding")


def chosen(text, count):
    if not text:
        return set(range(count))
    pages = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        pages.update(range(int(first) - 1, int(last or first)))
    return {page for page in pages if 0 <= page < count}


def simple_fonts(page):
    """The fonts whose bytes are letters: others number the glyphs that the document happens to use."""
    fonts = page.get("/Resources", {}).get("/Font", {})
    simple = set()
    for name, font in fonts.items():
        font = font.get_object()
        encoding = font.get("/Encoding")
        subset = "+" in str(font.get("/BaseFont", ""))[:9]
        if font.get("/Subtype") in ("/Type1", "/TrueType") and encoding in SIMPLE and not subset:
            simple.add(name)
    return simple


def raw(operand):
    return operand.original_bytes if isinstance(operand, TextStringObject) else bytes(operand)


def rewrite(page, writer, pairs, counts):
    """Replaces what is drawn in one piece."""
    if page.get_contents() is None:
        return
    content, simple, font = ContentStream(page.get_contents(), writer), simple_fonts(page), None
    changed = False
    for operands, operator in content.operations:
        if operator == b"Tf":
            font = operands[0]
        place = {b"Tj": 0, b"'": 0, b'"': 2, b"TJ": 0}.get(operator)
        if place is None or font not in simple:
            continue
        pieces = operands[place] if operator == b"TJ" else [operands[place]]
        text = b"".join(raw(one) for one in pieces if isinstance(one, (TextStringObject, ByteStringObject)))
        new = text
        for old, replacement in pairs:
            try:
                wanted, given = old.encode("cp1252"), replacement.encode("cp1252")
            except UnicodeEncodeError:
                continue
            counts[old][0] += new.count(wanted)
            new = new.replace(wanted, given)
        if new != text:
            changed = True
            written = ByteStringObject(new)
            operands[place] = ArrayObject([written]) if operator == b"TJ" else written
    if changed:
        page[NameObject("/Contents")] = writer._add_object(content)


def cover(path, pages, pairs, counts):
    """For each page, what to lay over it: what is still there is covered."""
    layers = {}
    with pdfplumber.open(path) as document:
        for number in sorted(pages):
            page, drawn = document.pages[number], False
            buffer = io.BytesIO()
            canvas = Canvas(buffer, pagesize=(float(page.width), float(page.height)))
            for old, new in pairs:
                if old in new:
                    # What was rewritten holds the old text too.
                    if counts[old][0]:
                        continue
                for found in page.search(old, regex=False, case=True):
                    x0, x1 = found["x0"], found["x1"]
                    low, high = float(page.height) - found["bottom"], float(page.height) - found["top"]
                    size = high - low
                    canvas.setFillColorRGB(1, 1, 1)
                    canvas.rect(x0, low, x1 - x0, size, stroke=0, fill=1)
                    wide = stringWidth(new, "Helvetica", size * 0.85) or 1
                    canvas.setFillColorRGB(0, 0, 0)
                    canvas.setFont("Helvetica", size * 0.85 * min(1, (x1 - x0) * 1.15 / wide))
                    canvas.drawString(x0, low + size * 0.2, new)
                    counts[old][1] += 1
                    drawn = True
            canvas.showPage()
            canvas.save()
            if drawn:
                layers[number] = PdfReader(io.BytesIO(buffer.getvalue())).pages[0]
    return layers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--replace", nargs=2, action="append", required=True, metavar=("OLD", "NEW"))
    parser.add_argument("--pages", help="such as 1-3,5; default all")
    given = parser.parse_args()
    pairs = [(old, new) for old, new in given.replace if old]
    counts = {old: [0, 0] for old, _ in pairs}
    writer = PdfWriter(clone_from=str(given.file))
    pages = chosen(given.pages, len(writer.pages))
    if not pages:
        sys.exit(f"--pages: the document has {len(writer.pages)} pages")
    for number in pages:
        rewrite(writer.pages[number], writer, pairs, counts)
    writer.write(str(given.out))
    layers = cover(given.out, pages, pairs, counts)
    if layers:
        writer = PdfWriter(clone_from=str(given.out))
        for number, layer in layers.items():
            writer.pages[number].merge_page(layer)
        writer.write(str(given.out))
    for old, (rewritten, covered) in counts.items():
        print(f"{old!r}: {rewritten} rewritten, {covered} covered")


if __name__ == "__main__":
    main()
