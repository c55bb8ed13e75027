"""What reached the model of a client, and the part of docs/clients.md that is made from it."""

import base64
import json
import os
import re
import urllib.request
from pathlib import Path

from install import CLIENTS, ROOT
from stand_in import SEARCH

DOCUMENT = ROOT / "docs/clients.md"
BEGIN, END = "<!-- clients: made by tests/clients/models/drive.py -->\n", "<!-- end of clients -->\n"
LANGUAGES = {".py": "python", ".mjs": "js", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".sh": "sh"}


def strings(value, key=""):
    """Each text in a JSON value with the name of its member."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else ((key, one) for one in value):
            yield from strings(inner, name)


def judge(name, server, model):
    """What reached the model: the cells of the client's row."""
    requests, ours = model.requests.get(name, []), server.tools()
    # A client that hides tools behind a search writes their names into a message.
    names = {tool for one in requests for tool in one["tools"] + re.findall(r"mcp__\w+", json.dumps(one["body"]))}
    listed = [tool for tool in ours if any(seen.endswith(tool) for seen in names)]
    tools = "all" if listed == ours else f"{len(listed)} of {len(ours)}"
    row = {"api": "none", "tools": tools, "name": model.asked.get(name, "none"), "image": "no"}
    if any(one["last"] in SEARCH for one in requests):
        row["tools"] += ", by search"
    texts, result = [], []
    for one in requests:
        if one["result"] and one["last"] not in SEARCH:
            row["api"], result = one["api"], one["result"]
    for key, text in strings(result):
        encoded = text.partition("base64,")[2] if text.startswith("data:image/") else text if key == "data" else ""
        if encoded and base64.b64decode(encoded)[1:4] == b"PNG":
            row["image"] = "yes"
        else:
            texts.append(text)
    text = "\n".join(texts)
    if row["image"] == "no" and "iVBORw0KGgo" in text:
        row["image"] = "as text"
    row["text"] = "yes" if "TEXT-OF-THE-PROGRAM" in text else "no"
    links = re.findall(rf"{server.base}/files/[\w./-]+notes.txt\?[\w=&-]+", text)
    works = [urllib.request.urlopen(link).read() == b"FILE-OF-THE-PROGRAM" for link in links]
    row["link"] = "yes" if works and all(works) else "no"
    return row


def faults(name, row, ended):
    row = row | {"its end": ended}
    row["tools"] = row["tools"].removesuffix(", by search")
    wanted = {"tools": "all", "text": "yes", "image": CLIENTS[name].get("image", "yes"), "link": "yes",
              "its end": "exit status 0"}
    return [f"{what} is {row[what]!r}, not {value!r}" for what, value in wanted.items() if row[what] != value]


def document(rows):
    """The table and the snippets."""
    lines = ["| client | package | model API | tools | `run_code` is called | text | image | link |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, client in CLIENTS.items():
        row, package = rows[name], re.sub("==|(?<=.)@", " ", (client.get("npm") or client["python"])[0])
        anchor = client["title"].lower().replace(" ", "-")
        cells = [f"[{client['title']}](#{anchor})", package, client.get("api", row["api"]), row["tools"],
                 f"`{row['name']}`", row["text"], row["image"], row["link"]]
        lines.append(f"| {' | '.join(cells)} |")
    for client in CLIENTS.values():
        kind = LANGUAGES[Path(client.get("file", "shell.sh")).suffix]
        where = [f"In `{client['where']}`:", ""] if "where" in client else []
        note = [client["note"], ""] if "note" in client else []
        lines += ["", f"### {client['title']}", "", *note, *where, f"```{kind}", client["snippet"].strip(), "```"]
    return "\n".join(lines) + "\n"


def compare(rows):
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    wanted = before + BEGIN + document(rows) + END + rest.split(END)[1]
    if "UPDATE" in os.environ:
        DOCUMENT.write_text(wanted)
    elif wanted != text:
        raise SystemExit("docs/clients.md is out of date: run UPDATE=1 tests/clients/models/drive.py and commit.")
