"""Writes `client.py`, the client that blocks, from `aio.py`, the one with `await`: run it when `aio.py` has changed.

`tests/test_aio.py` holds that both are in step. `_blocking.py` and `_awaiting.py`, which carry out the steps of
operations, are not made from each other: only the second has threads, and a limit of time for cleaning up.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent / "src/mcp_sandbox"

HEAD = '''"""The client that blocks: `Sandbox`, its files, its sessions and its streams. `aio` is its twin with `await`.

Made from `aio.py` by `make_blocking.py`: change that file.
"""'''

REPLACED = [
    (r'\A""".*?"""', HEAD),
    (r"(from collections\.abc import) .*", r"\1 Callable, Generator, Iterator, Mapping, Sequence"),
    (r"^import os\n", "import os\nimport threading\nimport time\n"),
    (r"^import anyio\n", ""),
    (r"\banyio\.Lock\b", "threading.Lock"),
    (r"\banyio\.sleep\b", "time.sleep"),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bAwaitable\[None\]", "None"),
    (r"\b_awaiting\b", "_blocking"),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\baclos(e|ing)\b", r"clos\1"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
]


def blocking(awaited: str) -> str:
    """The source of the client that blocks."""
    for pattern, text in REPLACED:
        awaited, count = re.subn(pattern, text, awaited, flags=re.MULTILINE)
        if count == 0:
            raise ValueError(f"nothing to replace: {pattern}")
    return awaited


if __name__ == "__main__":
    (PACKAGE / "client.py").write_text(blocking((PACKAGE / "aio.py").read_text()))
