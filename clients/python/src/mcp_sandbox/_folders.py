"""Local files and folders on their way to and from a conversation: found, packed, unpacked.

It knows no connection. What comes back from a sandbox is untrusted: an archive may only make plain files strictly below
the chosen folder, and never writes through a link.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from .errors import InvalidRequest, UnexpectedAnswer
from .models import Transferred

PIECE_BYTES = 256 << 10
PACKED_FILE_BYTES_MAX = 1 << 20
"""A longer file is sent on its own and never held in memory."""
BATCH_BYTES_MAX = 4 << 20
"""Of the files in one archive; the server takes requests of 12 MiB by default."""
BATCH_ENTRIES_MAX = 1000
DOWNLOAD_BYTES_MAX = 4 << 30


@dataclass(frozen=True)
class Entry:
    """A file or a folder to send. `source` is None for a folder."""

    name: str
    source: Path | bytes | None
    size: int = 0


@dataclass(frozen=True)
class Found:
    """What a local folder holds."""

    entries: tuple[Entry, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class BytesBody:
    """A body in memory."""

    content: bytes

    @property
    def length(self) -> int:
        return len(self.content)

    def pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self.content), PIECE_BYTES):
            yield self.content[start : start + PIECE_BYTES]


@dataclass(frozen=True)
class FileBody:
    """A body on the disk, of the length that the file had when it was found."""

    path: Path
    length: int

    def pieces(self) -> Iterator[bytes]:
        left = self.length
        with self.path.open("rb") as file:
            while left > 0:
                piece = file.read(min(PIECE_BYTES, left))
                if not piece:
                    raise InvalidRequest(f"{self.path} became shorter while it was sent.", code="invalid_argument")
                left -= len(piece)
                yield piece


def file_body(path: Path) -> FileBody:
    """The body of a local file, which links may lead to."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise InvalidRequest(f"{path} is not a plain file.", code="invalid_argument", param="local")
    return FileBody(path, info.st_size)


def scan(folder: Path, into: str = "") -> Found:
    """The plain files and empty folders below a local folder, in order. Links are not followed."""
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is not a folder.", code="invalid_argument", param="local")
    entries: list[Entry] = []
    skipped: list[str] = []
    for place, folders, files in os.walk(folder, onerror=_fail):
        folders.sort()
        here = Path(place)
        if not folders and not files and here != folder:
            entries.append(Entry(_name(folder, here, into), None))
        for name in sorted(files + [one for one in folders if (here / one).is_symlink()]):
            path = here / name
            info = path.lstat()
            if stat.S_ISREG(info.st_mode):
                entries.append(Entry(_name(folder, path, into), path, info.st_size))
            else:
                skipped.append(path.relative_to(folder).as_posix())
    return Found(tuple(entries), tuple(skipped))


def given(files: Mapping[str, str | bytes | Path]) -> Found:
    """Files by their names in /data: their content, or where it is."""
    entries = []
    for name, source in files.items():
        if isinstance(source, Path):
            entries.append(Entry(name, source, file_body(source).length))
        else:
            content = source.encode() if isinstance(source, str) else source
            entries.append(Entry(name, content, len(content)))
    return Found(tuple(entries), ())


def batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries by request: small ones together, a large one alone."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.size > PACKED_FILE_BYTES_MAX:
            yield [entry]
            continue
        if batch and (size + entry.size > BATCH_BYTES_MAX or len(batch) == BATCH_ENTRIES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def alone(batch: list[Entry]) -> BytesBody | FileBody | None:
    """The body of a batch that is one large file, which goes as it is."""
    source = batch[0].source
    if len(batch) > 1 or source is None or batch[0].size <= PACKED_FILE_BYTES_MAX:
        return None
    return FileBody(source, batch[0].size) if isinstance(source, Path) else BytesBody(source)


def pack(batch: list[Entry]) -> BytesBody:
    """A plain tar. A file that grows meanwhile is cut at the length that it had."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for entry in batch:
            info = tarfile.TarInfo(entry.name)
            if entry.source is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                continue
            content = _content(entry.source, entry.size)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return BytesBody(packed.getvalue())


def unpack(archive: IO[bytes], to: Path, folder: str, bytes_max: int) -> Transferred:
    """Writes the plain files of an archive below `to`: all of them, or those of one folder."""
    inside = tuple(PurePosixPath(folder).parts)
    files = size = 0
    archive.seek(0)
    to.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=archive, mode="r:", encoding="utf-8") as entries:
            for entry in entries:
                if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    continue
                parts = _parts(entry.name)
                if parts[: len(inside)] != inside or len(parts) == len(inside):
                    continue
                size += entry.size
                if size > bytes_max:
                    raise UnexpectedAnswer(f"The files have more than {bytes_max} bytes.")
                content = entries.extractfile(entry)
                if content is not None:
                    _write(content, to, parts[len(inside) :])
                    files += 1
    except tarfile.TarError as error:
        raise UnexpectedAnswer("The server's archive cannot be read.") from error
    return Transferred(files, size)


def local_target(path: str, to: str | os.PathLike[str] | None) -> Path:
    """Where a downloaded file goes: by default the file's own name, in the working folder."""
    target = Path(".") if to is None else Path(to)
    return target / _parts(path)[-1] if target.is_dir() else target


def part_of(target: Path) -> Path:
    """Where a file is written before it is put into its place, so that it is complete or not there."""
    return target.with_name(f".{uuid.uuid4().hex}.part")


def _fail(error: OSError) -> None:
    raise error


def _name(folder: Path, path: Path, into: str) -> str:
    return (PurePosixPath(into) / path.relative_to(folder).as_posix()).as_posix()


def _content(source: Path | bytes, size: int) -> bytes:
    if isinstance(source, bytes):
        return source
    with source.open("rb") as file:
        return file.read(size)


def _parts(name: str) -> tuple[str, ...]:
    """The names of a path in an archive; refused where it could lead out of the folder on any system."""
    parts = tuple(name.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or (os.name == "nt" and set(part) & set('\\:*?"<>|')):
            raise UnexpectedAnswer(f"{name!a} cannot be the name of a local file.")
    return parts


def _write(content: IO[bytes], to: Path, parts: tuple[str, ...]) -> None:
    target = to
    for part in parts:
        target = target / part
        if target.is_symlink():
            raise InvalidRequest(f"{target} is a link, which is not written through.", code="invalid_argument")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = part_of(target)
    try:
        with unfinished.open("xb") as file:
            while piece := content.read(PIECE_BYTES):
                file.write(piece)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
