"""The results that every Python client must get, as dictionaries with the names of the protocol."""

TOOLS = [
    "run_code",
    "get_run",
    "cancel_run",
    "list_runners",
    "list_files",
    "read_file",
    "write_file",
    "edit_file",
    "upload_url",
    "delete_file",
    "run_cell",
    "interrupt",
    "reset_session",
    "list_sessions",
]
CONVERSATION = "python-client-"
CODE = "print('Hello!')\nopen('out.csv', 'w').write('a,b')"
PNG_CODE = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.savefig('chart.png')"

# 300 KB of control characters on each stream, 300 long names, four pictures that do not compress.
LARGE_CODE = r"""
import os, struct, sys, zlib

def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

for stream in sys.stdout, sys.stderr:
    stream.write('\x01' * 300_000)
for number in range(300):
    open(f'{number:03}' + '\x01' * 240, 'w').close()
for number in range(4):
    rows = zlib.compress(b''.join(b'\0' + os.urandom(400) for _ in range(400)))
    parts = chunk(b'IHDR', struct.pack('>IIBBBBB', 400, 400, 8, 0, 0, 0, 0)), chunk(b'IDAT', rows), chunk(b'IEND', b'')
    open(f'!{number}.png', 'wb').write(b'\x89PNG\r\n\x1a\n' + b''.join(parts))
"""


def check_plain(result: dict) -> None:
    """A result for a client that chose nothing."""
    assert not result["isError"] and result["structuredContent"] is None, result
    links = [block for block in result["content"] if block["type"] == "resource_link"]
    assert [link["name"] for link in links] == ["out.csv"], result
    text = result["content"][0]["text"]
    assert text.startswith("Hello!\n") and str(links[0]["uri"]) in text, result


def check_run(result: dict) -> None:
    """A result for a client that chose `structured=on`."""
    check_plain(result | {"structuredContent": None})
    assert result["structuredContent"]["stdout"] == "Hello!\n", result
    assert result["structuredContent"]["files"][0]["url"] in result["content"][0]["text"], result


def check_picture(result: dict, decode) -> None:
    images = [block for block in result["content"] if block["type"] == "image"]
    assert not result["isError"] and len(images) == 1, result
    assert decode(images[0]["data"]).startswith(b"\x89PNG"), result


def check_large(result: dict) -> None:
    """The SDK refuses an answer of more than 1 MiB, so that the call fails."""
    assert not result["isError"] and len(result["content"][0]["text"]) > 1000, result["content"][0]["text"][:1000]


def check_error(result: dict) -> None:
    assert result["isError"], result
    assert result["content"][0]["text"].startswith("code: "), result
    assert result["structuredContent"]["error"]["code"] == "invalid_argument", result
