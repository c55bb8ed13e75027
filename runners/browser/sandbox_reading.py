"""What is read of a page: its texts, links, interactive elements and anchors, of all its frames. By Chromium's own
protocol, in a world that the scripts of the page cannot reach. Every list and text has a bound.
"""

import json
import time
from pathlib import Path

from playwright.async_api import Error

LIBRARY = Path(__file__).with_name("sandbox_browser.js").read_text()
NOTE_CHARS_MAX = 300
_WORLD = "sandbox"
_FRAMES_MAX = 20
_EXTRACT_MAX = 200


async def extract(session, query):
    """The elements that a selector matches, with the attributes that are wanted."""
    tree = (await session.send("Page.getFrameTree"))["frameTree"]
    words = json.dumps([query["selector"], query.get("attributes"), _EXTRACT_MAX])
    world = await world_of(session, tree["frame"]["id"])
    found = await evaluate(session, world, f"{LIBRARY}.extract(...{words})")
    return {"extracted": found["elements"], "extractedMore": found["more"]}


async def collect(session, wanted, request, time_ms, note):
    """What of a page is wanted, of all its frames. `note` takes what was left out."""
    answer = {}
    tree = (await session.send("Page.getFrameTree"))["frameTree"]
    left = {"text": request["textBytesMax"] if "text" in wanted else 0}
    lists = [name for name in ("links", "controls", "anchors") if name in wanted]
    for name in ("links", "controls", "anchors"):
        left[name] = request["itemsMax"] if name in wanted else 0
    answer |= {name: [] for name in lists} | {name + "More": 0 for name in lists}
    texts, is_cut, frames, until = [], False, list(_frames(tree)), time.monotonic() + time_ms / 1000
    for frame, parents in frames[:_FRAMES_MAX]:
        prefix = ""
        if parents:
            prefix = await _owner(session, frame["id"], parents)
            if prefix is None:
                continue
        limits = {name + "Max": most for name, most in left.items()}
        limits["timeMs"] = max(0, until - time.monotonic()) * 1000
        try:
            world = await world_of(session, frame["id"])
            found = await evaluate(session, world, f"{LIBRARY}.read({json.dumps(limits)})")
        except Error:
            if not parents:
                raise
            continue  # a frame that went away
        if found["text"]:
            texts.append(f"[frame {frame['url'][:200]}]\n{found['text']}" if parents else found["text"])
            left["text"] = max(0, left["text"] - len(_utf8(texts[-1])))
        is_cut |= found["isCut"] and "text" in wanted
        for name in lists:
            for item in found[name]:
                if "selector" in item:
                    item["selector"] = prefix + item["selector"]
            answer[name] += found[name]
            answer[name + "More"] += found.get(name + "More", 0)
            left[name] -= len(found[name])
    text = _utf8("\n\n".join(texts))
    answer["text"] = text[: request["textBytesMax"]].decode("utf-8", "ignore")
    answer["textTruncated"] = is_cut or len(text) > request["textBytesMax"]
    if len(frames) > _FRAMES_MAX:
        note(f"{len(frames) - _FRAMES_MAX} more frames were not read.")
    return answer


def _frames(tree, parents=()):
    """The frames in their order, each with the ids of those that it is in."""
    yield tree["frame"], parents
    for child in tree.get("childFrames", []):
        yield from _frames(child, (*parents, tree["frame"]["id"]))


async def world_of(session, frame):
    made = await session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": _WORLD})
    return made["executionContextId"]


async def evaluate(session, world, expression):
    answer = await session.send(
        "Runtime.evaluate",
        {"expression": expression, "contextId": world, "returnByValue": True, "awaitPromise": True},
    )
    if "exceptionDetails" in answer:
        details = answer["exceptionDetails"]
        raise Error(str(details.get("exception", {}).get("description") or details.get("text"))[:NOTE_CHARS_MAX])
    return answer["result"].get("value")


async def _owner(session, frame, parents):
    """What a selector in a frame begins with: the selectors of the frames that it is in."""
    prefix, inner = "", frame
    for outer in reversed(parents):
        try:
            owner = await session.send("DOM.getFrameOwner", {"frameId": inner})
            world = await world_of(session, outer)
            node = await session.send(
                "DOM.resolveNode", {"backendNodeId": owner["backendNodeId"], "executionContextId": world}
            )
            function = "function() { return this.checkVisibility() ? " + LIBRARY + ".selector(this) : null }"
            answer = await session.send(
                "Runtime.callFunctionOn",
                {"functionDeclaration": function, "objectId": node["object"]["objectId"], "returnByValue": True},
            )
        except Error:
            return None
        selector = answer["result"].get("value")
        if not selector:
            return None
        prefix, inner = f"{selector} >>> {prefix}", outer
    return prefix


def _utf8(text):
    return text.encode("utf-8", "replace")


def fit(answer, bytes_max):
    """The answer as JSON that is no longer than allowed: text that takes more than half of it gives way first, then the
    lists do, then the rest of the text.
    """
    while True:
        line = _utf8(json.dumps(answer, ensure_ascii=False))
        if len(line) <= bytes_max:
            return line.decode()
        text = answer.get("text") or ""
        lists = [name for name in ("anchors", "links", "controls", "extracted") if answer.get(name)]
        if text and (not lists or len(_utf8(json.dumps(text, ensure_ascii=False))) > bytes_max // 2 + len('""')):
            answer["text"], answer["textTruncated"] = text[: len(text) * 9 // 10], True
        elif lists:
            longest = max(lists, key=lambda name: len(json.dumps(answer[name])))
            kept = len(answer[longest]) // 2
            answer[longest + "More"] = answer.get(longest + "More", 0) + len(answer[longest]) - kept
            answer[longest] = answer[longest][:kept]
        else:
            return json.dumps({"error": {"kind": "failed", "sentence": "The answer was too long."}})
