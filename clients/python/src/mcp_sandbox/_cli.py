"""The commands of `python -m mcp_sandbox`. The exit status is the program's; 1 and a sentence for an error, 2 for wrong
use, 124 for a time limit as `timeout` has it, 130 after Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import _repl
from ._terminal import Bar, Output, Tracebacks, has_colours, safe
from .client import Sandbox
from .errors import SandboxError
from .models import Event, Outcome

LANGUAGES = {".py": "python", ".sh": "bash", ".js": "javascript", ".mjs": "javascript", ".ts": "typescript"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        with Sandbox(options.url) as sandbox:
            status: int = options.command(sandbox, options)
            return status
    except KeyboardInterrupt:
        return 130
    except (SandboxError, OSError, ValueError) as error:
        print(f"mcp_sandbox: {safe(str(error))}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mcp_sandbox", description="Use a code sandbox server.")
    parser.add_argument("--url", help="the server; default SANDBOX_URL, else http://localhost:8080")
    # There is no option for it: other users of the machine see command lines.
    parser.epilog = "The token is read from MCP_API_TOKEN."
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a program; its exit status is that of the command")
    run.add_argument("file", metavar="FILE", help="the program; - for the standard input")
    run.add_argument("args", nargs="*", metavar="ARG", help="its arguments, after --")
    run.add_argument("--language", help="default: by the ending of FILE")
    run.add_argument("--conversation", help="the conversation whose files are /data; default: a new one")
    run.add_argument("--timeout", type=float, metavar="SECONDS")
    run.set_defaults(command=_run)

    repl = commands.add_parser("repl", help="type cells that share their variables; Ctrl-D ends")
    repl.add_argument("language", metavar="LANGUAGE")
    repl.add_argument("--conversation")
    repl.set_defaults(command=_repl_command)

    upload = commands.add_parser("upload", help="send a file or a folder")
    upload.add_argument("local", type=Path, metavar="PATH")
    upload.add_argument("conversation", metavar="CONVERSATION")
    upload.add_argument("path", nargs="?", metavar="NAME", help="where to, below /data; default: a file's own name")
    upload.set_defaults(command=_upload)

    download = commands.add_parser("download", help="fetch a file, or all files of a conversation or folder")
    download.add_argument("conversation", metavar="CONVERSATION")
    download.add_argument("path", nargs="?", metavar="NAME", help="a file, or a folder with / at its end; default: all")
    download.add_argument("--to", type=Path, metavar="PATH", help="default: the working folder")
    download.set_defaults(command=_download)
    return parser


def _run(sandbox: Sandbox, options: argparse.Namespace) -> int:
    language = options.language or LANGUAGES.get(Path(options.file).suffix.lower())
    if language is None:
        raise ValueError(f"the language of {options.file} is not known by its ending: give --language")
    code = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8")
    events = sandbox.stream(
        language, code, options.conversation, args=options.args or None, timeout=options.timeout
    )
    with events:
        for event in events:
            show(event)
            if event.kind == "finished" and event.outcome is not None:
                return _ended(event.outcome)
            if event.kind == "failed":
                events.result()
    return 1


def _ended(outcome: Outcome) -> int:
    if outcome.ended != "exited":
        print(f"mcp_sandbox: {safe(outcome.sentence)}", file=sys.stderr)
    if outcome.ended == "timed_out":
        return 124
    if outcome.signal is not None:
        number: int = getattr(signal, outcome.signal, 0)
        return 128 + number
    return 1 if outcome.exit_code is None else outcome.exit_code


def show(event: Event) -> None:
    """Shows what a program printed."""
    if event.kind == "stderr":
        _outputs["stderr"].write(_tracebacks.rest(event.data))
    elif event.kind == "stdout":
        _outputs["stdout"].write(event.data)
    elif event.kind == "error":
        _tracebacks.show(str(event.members.get("traceback") or ""))
    elif event.kind in ("cut", "finished"):
        _tracebacks.end()
    if event.kind == "cut":
        print("mcp_sandbox: a part of the output was not kept.", file=sys.stderr)


_outputs = {
    "stdout": Output(sys.stdout.buffer, terminal=sys.stdout.isatty()),
    "stderr": Output(sys.stderr.buffer, terminal=sys.stderr.isatty()),
}
_tracebacks = Tracebacks(_outputs["stderr"], colours=has_colours(sys.stderr))


def _repl_command(sandbox: Sandbox, options: argparse.Namespace) -> int:
    with sandbox.session(options.language, options.conversation) as session:
        return _repl.loop(session, show)


def _upload(sandbox: Sandbox, options: argparse.Namespace) -> int:
    files, local = sandbox.files(options.conversation), options.local
    with Bar(f"{local} to {options.conversation}") as progress:
        if not local.is_dir():
            sent = files.upload(local, options.path, progress)
            report = [f"{sent.path}: {sent.size} bytes"]
        else:
            moved = files.upload_folder(local, options.path or "", progress)
            report = [f"skipped, since it is not a plain file: {name}" for name in moved.skipped]
            report.append(f"{moved.files} files, {moved.bytes} bytes")
    print(safe("\n".join(report)))
    return 0


def _download(sandbox: Sandbox, options: argparse.Namespace) -> int:
    files, path, to = sandbox.files(options.conversation), options.path, options.to or Path(".")
    with Bar(f"{options.conversation} to {to}") as progress:
        if path and not path.endswith("/"):
            report = str(files.download(path, to, progress))
        else:
            moved = files.download_folder(to, (path or "").rstrip("/"), progress)
            report = f"{moved.files} files, {moved.bytes} bytes"
    print(safe(report))
    return 0
