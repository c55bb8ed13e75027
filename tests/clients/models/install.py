"""Installs the clients of clients.toml below target/test-tools/models: one folder for npm, one for each Python client,
because their dependencies conflict. What is there already stays. Also the time that all of it may take."""

import os
import shutil
import subprocess
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
TOOLS = ROOT / "target/test-tools"
FOLDER = TOOLS / "models"
CLIENTS = tomllib.loads((HERE / "clients.toml").read_text())
# Later packages are not used, so that a pinned client has the same dependencies each time.
BEFORE = "2026-11-22"
BEGAN, WHOLE_S_MAX = time.monotonic(), 480


def left(most=WHOLE_S_MAX):
    """The seconds that a part may take: as many as are left of the whole."""
    return max(1, min(most, BEGAN + WHOLE_S_MAX - time.monotonic()))


def npm(folder, packages):
    options = ["--loglevel=error", "--no-audit", "--no-fund", "--prefix", folder, f"--before={BEFORE}"]
    yield ["npm", "install", *options, *packages]


def python(folder, packages):
    uv = [TOOLS / "uv/bin/uv", "--quiet", "--no-python-downloads"]
    yield [*uv, "venv", folder / "venv"]
    yield [*uv, "pip", "install", "--exclude-newer", BEFORE, "--python", folder / "venv/bin/python", *packages]


def install(names):
    chosen = {name: CLIENTS[name] for name in names}
    wanted = {name: (python, client["python"]) for name, client in chosen.items() if "python" in client}
    if any("npm" in client for client in chosen.values()):
        # All of them, whichever are chosen: they share a folder.
        wanted["npm"] = (npm, [package for client in CLIENTS.values() for package in client.get("npm", [])])
    environment = os.environ | {"PATH": f"{TOOLS}/npm/node_modules/.bin:{os.environ['PATH']}"}
    for name, (how, packages) in wanted.items():
        folder, mark = FOLDER / name, "\n".join([BEFORE, *packages])
        if (folder / "installed").exists() and (folder / "installed").read_text() == mark:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in how(folder, packages):
            subprocess.run(command, check=True, timeout=left(), env=environment)
        (folder / "installed").write_text(mark)


def programs(name):
    """Where the programs of a client are."""
    folders = [FOLDER / name / "venv/bin", FOLDER / "npm/node_modules/.bin", TOOLS / "npm/node_modules/.bin"]
    return ":".join(map(str, [*folders, "/usr/bin", "/bin"]))


if __name__ == "__main__":
    install(CLIENTS)
