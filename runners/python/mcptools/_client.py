"""Calls tools through the sandbox's server (../../README.md, Tools): one connection for the whole process, on which
calls of all threads go at once."""

import contextvars
import json
import os
import socket
import struct
import sys
import threading
from _queue import SimpleQueue  # not `queue`: a program may have a file of that name

_SERVER = ("127.0.0.1", 3128)
_MESSAGES = b"\x02"
_MESSAGE_BYTES_MAX = 1 << 20
_LENGTH = struct.Struct(">I")


class ToolError(Exception):
    """A call was not answered; `code` is a word for why."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class ToolFailed(ToolError):
    """The tool itself failed."""


class ToolDenied(ToolError):
    """A rule or a person said no."""


def _error(error):
    code, message = str(error.get("code")), str(error.get("message"))
    return {"tool_failed": ToolFailed, "tool_denied": ToolDenied}.get(code, ToolError)(code, message)


class Answer:
    """What a tool answered: `structured` (JSON, or None), `text`, and `files`: paths of what was long or no text."""

    def __init__(self, result):
        self.has_structured = "structured" in result
        self.structured = result.get("structured")
        self.text = result.get("text", "")
        self.files = result.get("files", [])


class _Connection:
    def __init__(self):
        # Apart, so that answers are read while a long message is written.
        self.lock, self.sending = threading.Lock(), threading.Lock()
        self.waiting = {}  # what takes the answer of each request, and what takes its progress
        self.count = 0
        self.broken = None
        try:
            self.socket = socket.create_connection(_SERVER)
        except OSError as error:
            raise ToolError("tool_unavailable", "No tools are offered to this program.") from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(_MESSAGES)
        threading.Thread(target=self._read, name="mcptools", daemon=True).start()

    def _exactly(self, stream, length):
        data = stream.read(length)
        if data is None or len(data) < length:
            raise EOFError
        return data

    def _read(self):
        error = None
        try:
            with self.socket.makefile("rb") as stream:
                while True:
                    message = json.loads(self._exactly(stream, *_LENGTH.unpack(self._exactly(stream, _LENGTH.size))))
                    if message.get("id") is None:
                        error = _error(message.get("error", {}))
                        break
                    with self.lock:
                        last = "progress" not in message
                        waiting = self.waiting.pop(message["id"], None) if last else self.waiting.get(message["id"])
                    if waiting is not None:
                        done, progress = waiting
                        done(message) if last else self._tell(progress, message["progress"])
        except (OSError, EOFError, ValueError):
            pass
        finally:
            self._end(error or ToolError("tool_unavailable", "No tools are offered to this program, or they ended."))

    @staticmethod
    def _tell(on_progress, progress):
        if on_progress is None:
            return
        try:
            on_progress(progress)
        except Exception:
            # It is the program's own; its call goes on.
            sys.excepthook(*sys.exc_info())

    def _end(self, error):
        with self.lock:
            self.broken = self.broken or error
            left, self.waiting = list(self.waiting.values()), {}
        for done, _ in left:
            done({"error": {"code": self.broken.code, "message": str(self.broken)}})

    def _write(self, data):
        try:
            with self.sending:
                self.socket.sendall(_LENGTH.pack(len(data)) + data)
        except BaseException as error:
            # Half a message may have been sent, so nothing can follow it.
            self._end(ToolError("tool_unavailable", "The connection to the server is broken."))
            self.socket.close()
            if isinstance(error, OSError):
                raise self.broken from error
            raise

    def send(self, message, done, on_progress):
        """Sends a request; `done` gets its answer, in the thread that reads."""
        with self.lock:
            if self.broken is not None:
                raise self.broken
            self.count += 1
            number = self.count
            data = json.dumps({"id": number, **message}).encode()
            if len(data) > _MESSAGE_BYTES_MAX:
                why = f"The arguments are longer than {_MESSAGE_BYTES_MAX} bytes: put large data into a file in /data."
                raise ToolError("invalid_arguments", why)
            self.waiting[number] = done, on_progress
        self._write(data)
        return number

    def cancel(self, number):
        with self.lock:
            is_waiting = self.waiting.pop(number, None) is not None
        if is_waiting and self.broken is None:
            try:
                self._write(json.dumps({"id": number, "cancel": True}).encode())
            except ToolError:
                pass


_shared = None
_sharing = threading.Lock()
# Of the last call of this thread or task.
_last = contextvars.ContextVar("mcptools_files", default=())


def _forked():
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _connection():
    global _shared
    with _sharing:
        if _shared is None or _shared.broken is not None:
            _shared = _Connection()
        return _shared


def _request(message, on_progress=None):
    connection, answers = _connection(), SimpleQueue()
    number = connection.send(message, answers.put, on_progress)
    try:
        return answers.get()
    except BaseException:
        connection.cancel(number)
        raise


def _answer(message):
    if "error" in message:
        raise _error(message["error"])
    answer = Answer(message["result"])
    _last.set(tuple(answer.files))
    return answer


def call(server, tool, arguments=None, on_progress=None):
    """Calls a tool by its names; returns an Answer. `on_progress` gets dicts, in another thread."""
    return _answer(_request({"call": {"server": server, "tool": tool, "arguments": arguments or {}}}, on_progress))


async def call_async(server, tool, arguments=None, on_progress=None):
    """The same for a program with an event loop. A cancelled task cancels the call."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def take(answer):
        def put():
            if not future.done():
                future.set_result(answer)

        try:
            loop.call_soon_threadsafe(put)
        except RuntimeError:
            pass  # the loop is closed

    def tell(progress):
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_progress, progress)

    connection = _connection()
    message = {"call": {"server": server, "tool": tool, "arguments": arguments or {}}}
    number = connection.send(message, take, on_progress and tell)
    try:
        return _answer(await future)
    except asyncio.CancelledError:
        connection.cancel(number)
        raise


def last_files():
    """The files that the last call of this thread or task made."""
    return list(_last.get())


class Tool:
    """A tool with the classes of its parameters and its result, for generated modules."""

    def __init__(self, server, tool, params, result):
        self.server, self.tool, self.params, self.result = server, tool, params, result

    def _arguments(self, params, arguments):
        if params is None:
            params = self.params(**arguments)
        elif arguments:
            raise TypeError("give either Params or arguments by name")
        elif isinstance(params, dict):
            params = self.params.model_validate(params)
        # What was not given is not sent, and names are the tool's own.
        return params.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def _result(self, answer):
        if self.result is None:
            files = "".join(f"\n[file: {path}]" for path in answer.files)
            if answer.text or not answer.has_structured:
                return (answer.text + files).lstrip("\n")
            return json.dumps(answer.structured) + files
        if answer.has_structured:
            value = answer.structured
        else:
            try:
                value = json.loads(answer.text)
            except ValueError:
                raise ToolFailed("tool_failed", f"{self.tool} gave no structured answer: {answer.text[:500]}") from None
        return self.result.model_validate(value) if hasattr(self.result, "model_validate") else value

    def run(self, params, arguments):
        return self._result(call(self.server, self.tool, self._arguments(params, arguments)))

    async def run_async(self, params, arguments):
        return self._result(await call_async(self.server, self.tool, self._arguments(params, arguments)))


class _Loader:
    def __init__(self, source):
        self.source = source

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        import linecache

        text, name = self.source["text"], module.__spec__.origin
        # So that tracebacks and help() show it.
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), module.__dict__)
        if self.source.get("package"):
            package = module.__name__

            def get(attribute):
                import importlib

                if attribute.startswith("_"):
                    raise AttributeError(attribute)
                try:
                    return importlib.import_module(f"{package}.{attribute}")
                except ModuleNotFoundError as error:
                    raise AttributeError(str(error)) from None

            module.__getattr__ = get

    def get_source(self, name):
        return self.source["text"]


def spec(name):
    """For the finder."""
    from importlib.machinery import ModuleSpec

    try:
        answer = _request({"module": name, "language": "python"})
    except ToolError as error:
        raise ModuleNotFoundError(str(error), name=name) from None
    if "error" in answer:
        raise ModuleNotFoundError(str(answer["error"].get("message")), name=name)
    source = answer["source"]
    made = ModuleSpec(name, _Loader(source), origin=f"<{name}>", is_package=bool(source.get("package")))
    made.has_location = False
    return made
