#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = ["playwright==1.65.2", "pyte==0.8.2", "pillow==13.0.0"]
# ///
"""Records docs/recording.webp: Claude Code in a terminal uses the sandbox, and then a person sees and goes on with the
same conversation on the page. The client, the server, the programs and the page are real. What the model says is
scripted (tests/clients/models/stand_in.py), because the recording is to be the same each time.

uv run scripts/record.py   after ./test.sh --clients, which installs uv (target/test-tools/uv/bin/uv), Claude Code and
                     Chromium; also needs Debian's fonts-dejavu-core
  SERVER=<path>      the server's binary, instead of dist/mcp-sandbox-server
  CLAUDE=<path>      Claude Code, instead of the one that ./test.sh --clients installs"""

import fcntl
import io
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/clients/models"))
import stand_in  # noqa: E402
from drive import TOKEN, Server  # noqa: E402
from install import FOLDER  # noqa: E402

CLAUDE = os.environ.get("CLAUDE", FOLDER / "npm/node_modules/.bin/claude")
OUTPUT = ROOT / "docs/recording.webp"
WIDTH, HEIGHT, COLUMNS, ROWS, FONT_PX = 1120, 680, 88, 26, 20
FONTS = Path("/usr/share/fonts/truetype/dejavu")
QUESTION = "Simulate 20 random walks of 200 steps and plot them. Keep the end points as CSV."
CODE = """import numpy as np, pandas as pd, matplotlib.pyplot as plt

walks = np.random.default_rng(7).normal(size=(200, 20)).cumsum(axis=0)
plt.figure(figsize=(7, 3.2))
plt.plot(walks, lw=1)
plt.title("20 random walks")
plt.tight_layout()
plt.savefig("walks.png", dpi=110)
pd.Series(walks[-1], name="end").round(2).to_csv("ends.csv")
print(f"mean end {walks[-1].mean():.2f}, spread {walks[-1].std():.2f}")
"""
MORE = """import pandas as pd

ends = pd.read_csv("ends.csv")["end"]
print(ends.describe().round(2).to_string())
"""
DONE = ("The walks end at -3.5 on average, with a spread of 16.6. "
        "The chart is walks.png; the end points are in ends.csv.")
CONVERSATION = "random-walks"
COLOURS = {"default": "#d6dbe4", "black": "#20242c", "red": "#ef7070", "green": "#7ecb8f", "brown": "#e0b568",
           "blue": "#7aa7f0", "magenta": "#c493e6", "cyan": "#6fc7cf", "white": "#eef1f6"}
BACKGROUND = "#14171d"
# Symbols that the font lacks.
SIMILAR = str.maketrans("⏸⏵⎿✻✽✢✶", "‖▶└****")


class Recording:
    """Pictures, each with the time for which it is shown."""

    def __init__(self):
        self.frames = []

    def add(self, picture, ms):
        if self.frames and self.frames[-1][0].tobytes() == picture.tobytes():
            self.frames[-1][1] += ms
        else:
            self.frames.append([picture, ms])

    def save(self, path):
        pictures, times = zip(*self.frames)
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=list(times), loop=0, quality=62,
                         method=6, minimize_size=True)
        seconds, size = sum(times) / 1000, path.stat().st_size >> 10
        print(f"{path.name}: {len(pictures)} pictures, {seconds:.0f} s, {size} KiB")


def colour(name, fallback):
    return COLOURS.get(name) or (f"#{name}" if len(name) == 6 else COLOURS[fallback])


def drawn(screen, fonts):
    """A terminal's screen as a picture."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
    draw, (wide, high) = ImageDraw.Draw(picture), (12.04, 24.4)
    for row in range(ROWS):
        for column in range(COLUMNS):
            char = screen.buffer[row][column]
            ink, paper = colour(char.fg, "default"), char.bg
            if char.reverse:
                ink, paper = BACKGROUND, char.fg
            at = (30 + column * wide, 22 + row * high)
            if paper != "default":
                draw.rectangle([at, (at[0] + wide, at[1] + high)], fill=colour(paper, "default"))
            if char.data.strip():
                draw.text(at, char.data.translate(SIMILAR), font=fonts[char.bold], fill=ink)
    return picture


def in_terminal(recording, server, model, home):
    """Claude Code is asked, calls the sandbox, and answers."""
    fonts = [ImageFont.truetype(FONTS / f"DejaVuSansMono{name}.ttf", FONT_PX) for name in ["", "-Bold"]]
    folder = home / "walks"
    folder.mkdir(parents=True)
    (home / ".claude.json").write_text(
        '{"hasCompletedOnboarding": true, "theme": "dark", "projects": {"%s": {"hasTrustDialogAccepted": true}},'
        ' "customApiKeyResponses": {"approved": ["none"]}}' % folder)
    environment = {
        "HOME": str(home), "PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLORTERM": "truecolor",
        "LANG": "C.UTF-8", "ANTHROPIC_BASE_URL": f"{model.url}/claude-code", "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "NO_PROXY": "127.0.0.1",
        "HTTPS_PROXY": model.url, "HTTP_PROXY": model.url, "IS_SANDBOX": "1"}
    add = [CLAUDE, "mcp", "add", "--transport", "http", "sandbox", server.base + "/mcp", "--header",
           f"Authorization: Bearer {TOKEN}"]
    subprocess.run(add, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(CLAUDE, [CLAUDE, "--permission-mode", "default", "--allowedTools", "mcp__sandbox"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)

    def watch(until, at_most_s, speed=1.0):
        """Records what the terminal shows until a text is there."""
        ends = time.monotonic() + at_most_s
        while time.monotonic() < ends:
            ready, _, _ = select.select([terminal], [], [], 0.1)
            if ready:
                try:
                    stream.feed(os.read(terminal, 1 << 16))
                except OSError:
                    raise SystemExit("Claude Code ended:\n" + "\n".join(screen.display))
            recording.add(drawn(screen, fonts), int(100 / speed))
            if until and any(until in line for line in screen.display):
                return
        if until:
            raise SystemExit(f"`{until}` was not shown:\n" + "\n".join(screen.display))

    try:
        watch("for shortcuts", 40, speed=40)
        recording.frames.clear()
        watch(None, 0.6)
        for n, letter in enumerate(QUESTION):
            os.write(terminal, letter.encode())
            watch(None, 0.02, speed=2.5)
        watch(None, 0.5)
        os.write(terminal, b"\r")
        watch(DONE.split(".")[0], 60, speed=1.5)
        watch(None, 0.5)
        recording.add(drawn(screen, fonts), 1500)
        # What was called, and what came of it.
        os.write(terminal, b"\x0f")
        watch(None, 1.5)
        recording.add(drawn(screen, fonts), 3500)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def on_page(recording, server):
    """The same conversation on the page: its files, and one more program."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark")

        def find(name):
            return page.locator(f"[data-testid={name}]").first

        def show(ms):
            recording.add(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), ms)

        page.goto(f"{server.base}/?c={CONVERSATION}")
        find("token-input").fill(TOKEN)
        find("token-save").click()
        # What the assistant ran: its program, its output, its chart.
        find("history-run").click()
        page.locator("[data-testid=images] img").wait_for()
        find("reuse").click()
        page.mouse.move(5, 5)
        page.wait_for_timeout(600)
        show(4000)
        page.locator(".cm-content").click()
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")
        show(300)
        for piece in MORE.splitlines(keepends=True):
            # As pasted: the editor would indent what is typed.
            page.keyboard.insert_text(piece)
            show(350)
        page.keyboard.press("Escape")
        show(500)
        find("run").click()
        for _ in range(4):
            show(120)
        page.locator("[data-testid=verdict][data-ended=exited]").wait_for()
        page.mouse.move(5, 5)
        page.wait_for_timeout(400)
        show(3500)
        browser.close()


def main():
    stand_in.DONE = DONE
    with tempfile.TemporaryDirectory(prefix="record-") as folder, Server(Path(folder)) as server:
        model, recording = stand_in.StandIn(), Recording()
        arguments = {"conversationId": CONVERSATION, "language": "python", "code": CODE}
        model.scripts["claude-code"] = [("mcp__sandbox__sandbox_run_code", arguments)]
        in_terminal(recording, server, model, Path(folder) / "home")
        on_page(recording, server)
        recording.save(OUTPUT)


if __name__ == "__main__":
    main()
