"""What is done on a page: clicks, keys, waiting, screenshots. An action ends by the moment that its caller sets. What
cannot be done is refused with a word for programs and a sentence for readers.
"""

import asyncio
import contextlib
import time
from pathlib import Path

from playwright.async_api import Error, TimeoutError as Expired

from sandbox_reading import LIBRARY, NOTE_CHARS_MAX

DATA = Path("/data")
# Pages choose the names of downloads, and programs find modules in /data itself.
DOWNLOADS = DATA / "downloads"
VIEWPORT = {"width": 1280, "height": 800}
_NAME_BYTES_MAX = 150
_SCREENSHOTS_MAX = 4
_SCREENSHOT_PIXELS_MAX = 4000
_DISPLAY_BYTES_MAX = 5 << 19  # a message of the kernel has 4 MiB, and loses what is longer (../README.md)
_TYPE_DELAY_MS_MAX = 100


class Refused(Exception):
    """What cannot be done, with the word for programs and the sentence for readers."""

    def __init__(self, kind, sentence):
        super().__init__(sentence)
        self.kind = kind


def sentence_of(error):
    """The first lines of an error of Playwright, without its log and its colours."""
    text = str(error).partition("Call log:")[0].strip()
    return " ".join(text.split())[:NOTE_CHARS_MAX]


def left_ms(until):
    left = (until - time.monotonic()) * 1000
    if left < 50:
        raise Refused("timeout", "the time was over before it began")
    return left


def _locator(page, selector):
    place = page
    *frames, last = selector.split(" >>> ")
    for frame in frames:
        place = place.frame_locator(frame).first
    return place.locator(last).first


async def act(browser, action, answer, until):
    """One action on the current page of a browser; `answer` counts the screenshots."""
    kind, selector = action["action"], action.get("selector")
    timeout = left_ms(until)
    found = _locator(browser.page, selector) if selector else None
    try:
        match kind:
            case "click":
                await found.click(timeout=timeout, force=action.get("force", False))
            case "fill":
                await found.fill(action["text"], timeout=timeout)
            case "type":
                delay = min(_TYPE_DELAY_MS_MAX, timeout / 2 / max(1, len(action["text"])), action.get("delayMs", 0))
                await found.press_sequentially(action["text"], delay=delay, timeout=timeout)
            case "press":
                await (found or browser.page.locator(":focus, body").last).press(action["text"], timeout=timeout)
            case "select":
                await found.select_option(action["text"], timeout=timeout)
            case "scroll":
                if found:
                    await found.scroll_into_view_if_needed(timeout=timeout)
                else:
                    await browser.in_world(f"scrollTo({action.get('x', 0)}, {action.get('y', 0)})")
            case "wait":
                await _wait(browser.page, found, action, timeout)
            case "back":
                await browser.page.go_back(timeout=timeout)
            case "screenshot":
                await _screenshot(browser, action, answer, timeout)
        if kind in ("click", "press", "select"):
            await browser.settle(until)
    except Expired:
        if found is not None and not await _has(found):
            raise Refused("not_found", f"nothing matches {selector}") from None
        raise Refused("timeout", "it was not done in time") from None
    except Error as error:
        if browser.page in browser.crashed:
            raise
        raise Refused("failed", sentence_of(error)) from None


async def _has(found):
    with contextlib.suppress(Error, TimeoutError):
        return await asyncio.wait_for(found.count(), 1) > 0
    return True


async def _wait(page, found, action, timeout):
    if found:
        await found.wait_for(state=action.get("state", "visible"), timeout=timeout)
    elif action.get("state") in ("load", "domcontentloaded", "networkidle"):
        await page.wait_for_load_state(action["state"], timeout=timeout)
    else:
        await asyncio.sleep(min(action.get("ms", 1000), timeout) / 1000)


async def _screenshot(browser, action, answer, timeout):
    from IPython.display import Image, display

    if answer.get("screenshots", 0) >= _SCREENSHOTS_MAX:
        raise Refused("invalid", f"there are at most {_SCREENSHOTS_MAX} of them in a call")
    options = {"timeout": timeout, "animations": "disabled"}
    if action.get("fullPage"):
        picture = await _whole_page(browser, options)
    else:
        picture = await browser.page.screenshot(**options)
    if len(picture) <= _DISPLAY_BYTES_MAX:
        display(Image(picture, format="png"))
    else:
        _store(picture, "screenshot.png")
    answer["screenshots"] = answer.get("screenshots", 0) + 1


async def _whole_page(browser, options):
    width, height, is_plain = await browser.in_world(f"{LIBRARY}.size()")
    size = {"width": min(width, _SCREENSHOT_PIXELS_MAX) or 1, "height": min(height, _SCREENSHOT_PIXELS_MAX) or 1}
    if is_plain:
        return await browser.page.screenshot(full_page=True, clip={"x": 0, "y": 0} | size, **options)
    # Playwright would wait for a body, or read the size of another element.
    page, before = browser.page, browser.page.viewport_size or VIEWPORT
    await page.set_viewport_size(size)
    try:
        return await page.screenshot(**options)
    finally:
        await page.set_viewport_size(before)


def _store(picture, name):
    try:
        (DATA / free_name(DATA, name)).write_bytes(picture)
    except OSError as error:
        raise Refused("failed", f"the picture was not stored: {error.strerror or error}") from None


def free_name(folder, suggested):
    """A name in a folder that no file has."""
    name = "".join(c for c in suggested.rpartition("/")[2] if c.isprintable()).strip(". ") or "download"
    stem, dot, ending = name.rpartition(".")
    if not dot or len(ending) > 10:
        stem, ending = name, ""
    stem = stem.encode("utf-8", "replace")[:_NAME_BYTES_MAX].decode("utf-8", "ignore")
    for n in range(1, 1000):
        name = (stem if n == 1 else f"{stem} ({n})") + (f".{ending}" if ending else "")
        if not (folder / name).exists():
            return name
    raise OSError("there are too many files of that name")
