"""The browser of a session, and what the server asks of it.

`BROWSER` has one Chromium with one context, its profile in memory. Cells have it as `browser`, `context` and `page`
(Playwright's asynchronous API). The server sends one call in one cell, `await sandbox_browser.answer(request)`, and
reads one line of JSON from its output. All traffic goes to the proxy of the sandbox, also that to loopback addresses,
so the server decides on each connection.

Every text, list and waiting time of an answer has a bound here; the server has its own, since cells can replace all of
this.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from playwright.async_api import Error, TimeoutError as Expired, async_playwright

from sandbox_actions import DATA, DOWNLOADS, VIEWPORT, Refused, act, free_name, left_ms, sentence_of
from sandbox_reading import LIBRARY, NOTE_CHARS_MAX, collect, evaluate, extract, fit, world_of

_CHROMIUM = "/usr/bin/chromium-headless-shell"
_PROXY = "http://127.0.0.1:3128"
_SCHEMES = ("http", "https")
# The container is the boundary. Frames of other sites share a process, so that a page has few. A script's memory is
# bounded below the sandbox's, so that a page ends and not the session. Nothing looks up names or uses UDP.
_FLAGS = [
    "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-quic", "--disable-site-isolation-trials",
    "--renderer-process-limit=4", "--js-flags=--max-old-space-size=256", "--disk-cache-size=16777216",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp", "--disable-remote-playback-api", "--no-pings",
]
# What the server opens TLS with, where it does (../README.md, Channels). The browser reads no bundle of certificates.
_AUTHORITY = Path("/tmp/.sandbox-tls/authority.pem")
_PAGES_MAX = 6
_DOWNLOADS_MAX = 20
_NOTES_MAX = 20
_DIALOG_CHARS_MAX = 200
_START_S_MAX = 20
_READ_S_MAX = 6
_QUIET_MS, _SETTLE_S_MAX = 150, 2.5
_ERROR_PAGE_POLLS = 25


def _trusting():
    """The flag by which the browser accepts what the authority of the sandbox certifies."""
    if not _AUTHORITY.exists():
        return []
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509 import load_pem_x509_certificate

    key = load_pem_x509_certificate(_AUTHORITY.read_bytes()).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return [f"--ignore-certificate-errors-spki-list={base64.b64encode(digest).decode()}"]


class Browser:
    def __init__(self):
        self._flags = []
        self._playwright = None
        self.browser = self.context = self.page = None
        self._given = {}  # the objects that cells have by name
        self._notes, self._saved = [], []
        self._downloads = {}  # by the task that saves or cancels each
        self._requests = set()
        self.crashed, self._sessions = set(), {}
        self._read_s = _READ_S_MAX  # of the current call; what ends after it takes a part of that

    async def start(self):
        """Starts the browser. What fails is tried again by the next call."""
        with contextlib.suppress(Error, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._launch(), _START_S_MAX)

    async def _launch(self):
        if self._playwright is None:
            self._playwright = await async_playwright().start()
        self._flags = _FLAGS + _trusting()
        self.browser = await self._playwright.chromium.launch(
            executable_path=_CHROMIUM, args=self._flags, chromium_sandbox=False, proxy={"server": _PROXY},
            downloads_path=str(DATA), handle_sigint=False, handle_sigterm=False, handle_sighup=False,
        )
        self.context = await self.browser.new_context(viewport=VIEWPORT, accept_downloads=True)
        self.context.set_default_timeout(10_000)
        self.context.on("page", lambda page: self._opened(page))
        self.context.on("request", lambda request: self._requests.add(request))
        self.context.on("requestfinished", lambda request: self._requests.discard(request))
        self.context.on("requestfailed", lambda request: self._requests.discard(request))
        self.page = await self.context.new_page()

    def distrusts(self):
        """Whether it was started before the sandbox had the authority that it has now."""
        return self.browser is not None and self._flags != _FLAGS + _trusting()

    def names(self):
        """The names of cells."""
        self._given = {"browser": self.browser, "context": self.context, "page": self.page}
        return dict(self._given)

    def _rename(self):
        """Follows a new page in the names of cells, except where a cell gave the name another value."""
        shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
        if shell is None:
            return
        for name, now in (("browser", self.browser), ("context", self.context), ("page", self.page)):
            if shell.user_ns.get(name) is self._given.get(name):
                shell.user_ns[name] = self._given[name] = now

    def note(self, text):
        if len(self._notes) < _NOTES_MAX:
            self._notes.append(" ".join(text.split())[:NOTE_CHARS_MAX])

    def _opened(self, page):
        if len(page.context.pages) > _PAGES_MAX:
            asyncio.ensure_future(self._close(page))
            return self.note("A window that a page opened was closed: there are too many.")
        if self.page is not None and page is not self.page:
            self.note("The page opened a new window, which is the current one now.")
        self.page = page
        self._requests.clear()
        page.on("crash", lambda _: self.crashed.add(page))
        page.on("close", lambda _: self._closed(page))
        page.on("dialog", lambda dialog: asyncio.ensure_future(self._dismiss(dialog)))
        page.on("download", lambda download: self._began(download))

    def _closed(self, page):
        self.crashed.discard(page)
        self._sessions.pop(page, None)
        rest = [other for other in page.context.pages if other is not page]
        if page is self.page:
            self.page = rest[-1] if rest else None

    async def _dismiss(self, dialog):
        message = json.dumps(dialog.message[:_DIALOG_CHARS_MAX], ensure_ascii=False)
        self.note(f"The page showed a dialog ({dialog.type}), which was dismissed: {message}")
        with contextlib.suppress(Error):
            await (dialog.accept() if dialog.type == "beforeunload" else dialog.dismiss())

    def _began(self, download):
        keep, finished = len(self._downloads) < _DOWNLOADS_MAX, download.path
        task = asyncio.ensure_future(self._save(download, finished) if keep else self._discard(download))
        self._downloads[task] = download

        # A cell may wait for this object too, and Playwright does not know where its file was moved.
        async def path():
            await asyncio.wait([task])
            stored = None if task.cancelled() else task.result()
            return stored or await finished()

        async def save_as(path):
            source = await download.path()
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(shutil.copyfile, source, path)

        download.path, download.save_as = path, save_as

    async def _save(self, download, finished):
        try:
            path = await finished()
            DOWNLOADS.mkdir(exist_ok=True)
            name = free_name(DOWNLOADS, download.suggested_filename)
            stored = path.rename(DOWNLOADS / name)
            self._saved.append(f"{DOWNLOADS.name}/{name}")
            return stored
        except (Error, OSError) as error:
            self.note(f"A download failed: {sentence_of(error)}")
            await self._discard(download)

    async def _discard(self, download):
        """Ends a download and deletes what came of it."""
        for step in (download.cancel, download.delete):
            with contextlib.suppress(Exception):  # whatever Playwright raises when its driver is gone
                await asyncio.wait_for(step(), self._read_s / 8)

    async def _close(self, page):
        with contextlib.suppress(Error, asyncio.TimeoutError):
            await asyncio.wait_for(page.close(), self._read_s / 4)
            return True
        return False

    def kill(self):
        """Ends the processes of the browser and of its driver at once."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                if b"chromium-headless-shell" in command or b"\0run-driver\0" in command:
                    os.kill(int(folder.name), signal.SIGKILL)

    async def restart(self):
        """A new browser and a new driver: either may be what ended, for want of memory."""
        self.kill()
        self._playwright = self.browser = self.context = self.page = None
        for known in (self._requests, self.crashed, self._sessions, self._downloads):
            known.clear()
        await asyncio.wait_for(self._launch(), _START_S_MAX)
        self._rename()

    async def _ready(self):
        """Makes sure that there is a page that can be used."""
        if self.browser is None or not self.browser.is_connected():
            was_there = self.browser is not None
            await self.restart()
            if was_there:
                self.note("The browser had ended and was started again: its pages and cookies are gone.")
        if self.page is not None and self.page in self.crashed:
            await self._give_up("The page had crashed and was closed.")
        if self.page is None or self.page.is_closed():
            await self.context.new_page()

    async def _give_up(self, why):
        """Closes a page that does not answer; where that fails, the browser is started again."""
        self.note(why)
        if self.page is not None and not await self._close(self.page):
            self.kill()  # the next call starts it again

    async def call(self, request):
        """One call: goes to an address, acts, reads. Answers always."""
        self._notes, self._saved = [], []
        answer, until = {}, time.monotonic() + request["timeoutMs"] / 1000
        self._read_s = min(_READ_S_MAX, request.get("readMs", _READ_S_MAX * 1000) / 1000)
        try:
            async with asyncio.timeout(request["timeoutMs"] / 1000 + self._read_s):
                await self._ready()
                await self._obey(request, answer, until)
        except Refused as refused:
            answer["error"] = {"kind": refused.kind, "sentence": str(refused)[:NOTE_CHARS_MAX]}
        except (Expired, TimeoutError):
            answer["error"] = {"kind": "timeout", "sentence": "The page did not answer in time."}
            await self._give_up("The page was closed, because it did not answer.")
        except Error as error:
            crashed = self.page is not None and self.page in self.crashed or "crash" in str(error).lower()
            why = "The page crashed: it may need more memory than there is." if crashed else sentence_of(error)
            answer["error"] = {"kind": "crashed" if crashed else "failed", "sentence": why}
        except Exception as error:  # whatever Playwright raises when its driver is gone
            answer["error"] = {"kind": "crashed", "sentence": f"The browser ended: {sentence_of(error)}"}
        await self._finish_downloads(until)
        self._rename()
        answer["notes"], answer["downloads"] = self._notes, self._saved
        return answer

    async def _finish_downloads(self, until):
        """Waits for the downloads of this call and those that began since the last one; what takes longer is ended."""
        downloads, self._downloads = self._downloads, {}
        if not downloads:
            return
        left = max(self._read_s / 12, until - time.monotonic())
        _, unfinished = await asyncio.wait(downloads, timeout=left)
        for task in unfinished:
            task.cancel()
            self.note("A download was not finished in time and was given up.")
        await asyncio.gather(*(self._discard(downloads[task]) for task in unfinished))

    async def _obey(self, request, answer, until):
        if viewport := request.get("viewport"):
            await self.page.set_viewport_size(viewport)
        if url := request.get("url"):
            answer["status"] = await self._go(url, until)
        for at, action in enumerate(request.get("actions") or []):
            try:
                await act(self, action, answer, until)
            except Refused as refused:
                raise Refused(refused.kind, f"actions[{at}] ({action['action']}): {refused}") from None
        if request.get("url") or request.get("actions"):
            await self.settle(until)
        await self._read(request, answer, until)

    async def _go(self, url, until):
        if urlsplit(url).scheme.lower() not in _SCHEMES:
            raise Refused("invalid", "url: it must begin with http:// or https://")
        page = self.page
        try:
            response = await page.goto(url, wait_until="load", timeout=left_ms(until))
        except Expired:
            if page.url in ("", "about:blank"):
                raise Refused("timeout", "the page did not answer in time") from None
            self.note("The page was still loading when it was read.")
            return None
        except Error as error:
            if "Download is starting" in str(error):
                return None
            if page in self.crashed:
                raise
            await self._error_page(page)
            raise Refused("navigation", sentence_of(error).removeprefix("Page.goto: ")) from None
        return response.status if response else None

    async def _error_page(self, page):
        """Returns when Chromium shows the error, which comes later and would interrupt the next navigation."""
        with contextlib.suppress(Error):
            session = await self._session(page)
            for _ in range(_ERROR_PAGE_POLLS):
                tree = (await session.send("Page.getFrameTree"))["frameTree"]
                if "unreachableUrl" in tree["frame"]:
                    break
                await asyncio.sleep(0.02)

    async def _session(self, page):
        """Chromium's own protocol, for as long as the page is open: to detach from a page that hangs would hang."""
        if page not in self._sessions:
            self._sessions[page] = await self.context.new_cdp_session(page)
        return self._sessions[page]

    async def settle(self, until):
        """Returns when the page has loaded what it asked for and has not changed for a moment, or soon."""
        end = min(until, time.monotonic() + _SETTLE_S_MAX)
        while (left := end - time.monotonic()) > 0.05:
            try:
                await asyncio.wait_for(self.in_world(f"{LIBRARY}.settled({_QUIET_MS}, {left * 1000})"), left + 1)
            except TimeoutError:
                return  # it is busy, and may still answer when it is read
            except Error:
                await asyncio.sleep(0.05)  # it navigates
                continue
            if not self._requests:
                return

    async def in_world(self, expression):
        """A value of the current page, from a world that its scripts cannot reach."""
        session = await self._session(self.page)
        tree = (await session.send("Page.getFrameTree"))["frameTree"]
        return await evaluate(session, await world_of(session, tree["frame"]["id"]), expression)

    async def _read(self, request, answer, until):
        """Has what is left of the call's time, and a moment where nothing is left."""
        wanted, page = set(request.get("read") or []), self.page
        answer["url"] = page.url[:2000]
        async with asyncio.timeout(max(self._read_s, until - time.monotonic())):
            session = await self._session(page)
            if query := request.get("query"):
                answer |= await extract(session, query)
            if wanted:
                answer |= await collect(session, wanted, request, self._read_s * 500, self.note)
            answer["title"] = await self.in_world(f"{LIBRARY}.title()")

BROWSER = Browser()


async def answer(request):
    """Does what the server asks, and prints one line."""
    request = json.loads(request)
    print(fit(await BROWSER.call(request), request["answerBytesMax"]), flush=True)
