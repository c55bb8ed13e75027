"""Operations on the files of a conversation, one by one and as folders. They know the routes and no connection."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from . import _folders, errors
from ._steps import Answer, Call, Flow, Local, Meter, Progress, Sink, call, pages
from .models import File, FileT, Json, MakeFile, Transferred

T = TypeVar("T")
Sources = Mapping[str, "str | bytes | Path"]

READ_BYTES_MAX = 64 << 20


def with_files(members: Json, files: Sources | None) -> Flow[Json]:
    """Writes the files of a run before it. They need a conversation, so one is named where none was."""
    if not files:
        return members
    conversation = members.get("conversationId") or uuid.uuid4().hex
    found = yield from call(Local(lambda: _folders.given(files)))
    yield from _send(conversation, found, None)
    return {**members, "conversationId": conversation}


def list_files(conversation: str, folder: str | None, file: MakeFile[FileT]) -> Flow[list[FileT]]:
    query = {} if folder is None else {"folder": folder}
    return pages(f"{conversation_path(conversation)}/files", "files", lambda one: file(conversation, one), query)


def read_file(conversation: str, path: str | File, bytes_max: int) -> Call[bytes]:
    """A file in memory. The server's own bound is that of the conversation, which is larger."""
    return Call("GET", file_path(conversation, path), _content, repeatable=True, bytes_max=bytes_max)


def write_file(
    conversation: str,
    path: str | File,
    body: _folders.BytesBody | _folders.FileBody,
    file: Callable[[str, Json], T],
    meter: Meter | None = None,
) -> Call[T]:
    return Call(
        "PUT",
        file_path(conversation, path),
        lambda answer: file(conversation, answer.json()),
        headers={"Content-Type": "application/octet-stream"},
        body=body,
        meter=meter or Meter(),
        repeatable=True,
    )


def delete_file(conversation: str, path: str | File) -> Call[None]:
    return Call("DELETE", file_path(conversation, path), nothing)


def upload(
    conversation: str, local: Path, path: str | None, progress: Progress | None, file: MakeFile[FileT]
) -> Flow[FileT]:
    body = yield from call(Local(lambda: _folders.file_body(local)))
    meter = Meter(progress, body.length)
    uploaded = yield from call(write_file(conversation, path or local.name, body, file, meter))
    return uploaded


def download(
    conversation: str, path: str | File, to: str | os.PathLike[str] | None, progress: Progress | None
) -> Flow[Path]:
    """A file to the disk. It is complete or not there: it is received beside its place and then put there."""
    name = path.path if isinstance(path, File) else path
    target = yield from call(Local(lambda: _folders.local_target(name, to)))
    part = _folders.part_of(target)
    try:
        with (yield from call(Local(lambda: part.open("xb")))) as file:
            step: Call[bytes] = Call(
                "GET",
                file_path(conversation, path),
                _content,
                sink=Sink(file),
                meter=Meter(progress),
                repeatable=True,
            )
            yield from call(step)
        yield from call(Local(lambda: part.replace(target)))
    finally:
        part.unlink(missing_ok=True)
    return target


def upload_folder(conversation: str, local: Path, folder: str, progress: Progress | None) -> Flow[Transferred]:
    found = yield from call(Local(lambda: _folders.scan(local, folder)))
    return (yield from _send(conversation, found, progress))


def _send(conversation: str, found: _folders.Found, progress: Progress | None) -> Flow[Transferred]:
    total = sum(entry.size for entry in found.entries)
    meter = Meter(progress, total)
    for batch in _folders.batches(found.entries):
        alone = _folders.alone(batch)
        if alone is not None:
            yield from call(write_file(conversation, batch[0].name, alone, _any, meter))
        else:
            yield from _send_packed(conversation, batch)
            meter.add(sum(entry.size for entry in batch))
        meter.begin()
    files = sum(entry.source is not None for entry in found.entries)
    return Transferred(files, total, found.skipped)


def _send_packed(conversation: str, batch: list[_folders.Entry]) -> Flow[None]:
    body = yield from call(Local(lambda: _folders.pack(batch)))
    headers = {"Content-Type": "application/x-tar"}
    step = Call("PUT", _archive(conversation), nothing, headers=headers, body=body, repeatable=True)
    yield from call(step)


def download_folder(
    conversation: str, local: Path, folder: str, progress: Progress | None, bytes_max: int
) -> Flow[Transferred]:
    """The archive is received as a whole before the first file is written."""
    with tempfile.TemporaryFile() as archive:
        sink = Sink(archive, bytes_max)
        step: Call[bytes] = Call(
            "GET", _archive(conversation), _content, sink=sink, meter=Meter(progress), repeatable=True
        )
        yield from call(step)
        return (yield from call(Local(lambda: _folders.unpack(archive, local, folder, bytes_max))))


def file_path(conversation: str, path: str | File) -> str:
    """The route of a file. A name may have any bytes: those that are not UTF-8 are surrogates, as in `os.fsdecode`."""
    if isinstance(path, File):
        encoded = path.path_encoded or _encoded(path.path)
    else:
        encoded = _encoded(path)
    return f"{conversation_path(conversation)}/files/{encoded}"


def _encoded(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")):
        message = f"{path!r} is not a path of a file below /data."
        raise errors.InvalidRequest(message, code="invalid_argument", param="path")
    return quote(path.encode("utf-8", "surrogateescape"), safe="/")


def conversation_path(conversation: str) -> str:
    # Of a path with such a part another one would be made, perhaps that of another conversation.
    if conversation in ("", ".", ".."):
        message = f"{conversation!r} cannot be the id of a conversation."
        raise errors.InvalidRequest(message, code="invalid_argument", param="conversationId")
    return f"/v1/conversations/{quote(conversation, safe='')}"


def _archive(conversation: str) -> str:
    return f"{conversation_path(conversation)}/archive"


def _any(_: str, data: Json) -> Json:
    return data


def nothing(_: Answer) -> None:
    return None


def _content(answer: Answer) -> bytes:
    return answer.content
