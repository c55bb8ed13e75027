"""Runs a client that asks a person to open an address: opens it, enters a token, and goes where the answer leads.

Arguments: the token, what the client must print in the end, then the command. What is in the environment as INPUT is
written to its standard input, which stays open.
"""

import os
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

from person import sent_back

TIME_MAX_S = 120
ADDRESS = re.compile(rb"https?://[^\"'<>\x00-\x20\x7f]+/authorize\?[^\"'<>\x00-\x20\x7f]+")


def main(token: str, wanted: str, *command: str) -> None:
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    watchdog = threading.Timer(TIME_MAX_S, client.kill)
    watchdog.daemon = True
    watchdog.start()
    client.stdin.write(os.environ.get("INPUT", "").encode())
    client.stdin.flush()
    said, allowed = b"", False
    while wanted.encode() not in said or not allowed:
        more = os.read(client.stdout.fileno(), 65536)
        if not more:
            break
        said += more
        found = ADDRESS.search(said)
        # The address is whole when something follows it.
        if found and not allowed and found.end() < len(said):
            allowed = True
            location = sent_back(found.group().decode(), token)
            with urllib.request.urlopen(location, timeout=30) as answer:
                assert answer.status == 200, answer.status
            said = said[found.end() :]
    client.kill()
    watchdog.cancel()
    text = said.decode(errors="replace")
    assert allowed and wanted in text, f"allowed: {allowed}; {wanted!r} is not in:\n{text}"


if __name__ == "__main__":
    main(*sys.argv[1:])
