"""Files and folders both ways, and what a hostile archive may not do."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from conftest import Script, file, problem, status
from mcp_sandbox import ConnectionFailed, InvalidRequest, LimitReached, NotFound, Sandbox, UnexpectedAnswer

Entry = tuple[str, bytes, bytes]


def archive(*entries: Entry) -> bytes:
    """A tar of entries: name, type, content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def names(body: bytes) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        read = ((one.name, tar.extractfile(one)) for one in tar)
        return {name: None if content is None else content.read() for name, content in read}


def test_files_of_any_name_are_read_and_written(script: Script, sandbox: Sandbox) -> None:
    strange = "a b/#?%\u00fc\udcff.txt"
    script.add(
        httpx.Response(200, content=b"bytes"), httpx.Response(201, json=file("x")), httpx.Response(204)
    )
    files = sandbox.files("demo")
    assert files.read(strange) == b"bytes"
    assert files.write(strange, "text").path == "x"
    files.delete(strange)
    path = "/v1/conversations/demo/files/a%20b/%23%3F%25%C3%BC%FF.txt"
    assert script.lines() == [f"GET {path}", f"PUT {path}", f"DELETE {path}"]
    assert (script.bodies[1], script.requests[1].headers["content-length"]) == (b"text", "4")


def test_listed_file_is_fetched_by_its_exact_path(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    page = {"files": [file("shown\\xff", pathEncoded="d/shown%FF")], "truncated": False}
    script.add(httpx.Response(200, json=page), *(httpx.Response(200, content=b"x") for _ in range(2)))
    (listed,) = sandbox.files("demo").list("d")
    assert listed.read() == b"x"
    assert listed.download(tmp_path / "here").read_bytes() == b"x"
    assert script.lines()[0].endswith("/files?folder=d")
    assert script.lines()[1:] == ["GET /v1/conversations/demo/files/d/shown%FF"] * 2


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a//b", "../x", "a/.", "a/"])
def test_path_that_leads_elsewhere_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(InvalidRequest):
        sandbox.files("demo").read(path)


@pytest.mark.parametrize("conversation", ["", ".", ".."])
def test_conversation_whose_path_would_be_another_is_refused(sandbox: Sandbox, conversation: str) -> None:
    files = sandbox.files(conversation)
    calls: list[Callable[[], object]] = [
        # With a dot this was the file `a` of the conversation `files`.
        lambda: files.delete("files/a"),
        lambda: files.write("files/a", ""),
        lambda: files.read("files/a"),
        files.list,
        lambda: sandbox.delete_conversation(conversation),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.param == "conversationId"


def test_long_file_is_not_read_into_memory(script: Script, sandbox: Sandbox) -> None:
    script.add(httpx.Response(200, content=b"x" * 11))
    with pytest.raises(UnexpectedAnswer, match="10 bytes"):
        sandbox.files("demo").read("a", bytes_max=10)


def test_upload_is_repeated_and_counted_once(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "big.bin"
    local.write_bytes(os.urandom(600_000))
    seen: list[tuple[int, int | None]] = []
    script.add(httpx.ReadError("reset"), httpx.Response(201, json=file("big.bin")))
    sandbox.files("demo").upload(local, progress=lambda done, total: seen.append((done, total)))
    assert script.bodies[1] == local.read_bytes()
    assert seen == [(262144, 600000), (524288, 600000), (600000, 600000)] * 2


def test_file_that_shrinks_is_named(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    local = tmp_path / "log"
    local.write_bytes(b"x" * 600_000)

    def shrink(_: int, __: int | None) -> None:
        local.write_bytes(b"")

    with pytest.raises(InvalidRequest, match="shorter"):
        sandbox.files("demo").upload(local, progress=shrink)


def test_download_is_complete_or_not_there(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"half"
        raise httpx.ReadError("reset")

    target = tmp_path / "out"
    target.write_bytes(b"before")
    script.add(*(httpx.Response(200, content=breaks()) for _ in range(4)))
    with pytest.raises(ConnectionFailed):
        sandbox.files("demo").download("a", target)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    script.add(problem("file_not_found", 404))
    with pytest.raises(NotFound):
        sandbox.files("demo").download("a", target)
    assert target.read_bytes() == b"before"
    seen: list[tuple[int, int | None]] = []
    script.add(httpx.Response(200, content=breaks()), httpx.Response(200, content=b"whole"))
    got = sandbox.files("demo").download("d/name", tmp_path, lambda done, total: seen.append((done, total)))
    assert (got, got.read_bytes(), seen[-1]) == (tmp_path / "name", b"whole", (5, 5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name", "out"]


def test_download_that_is_interrupted_as_it_begins_leaves_nothing(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, _: str) -> None:
        path.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sandbox.files("demo").download("a", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_travels_in_few_requests(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "small.txt").write_text("small")
    (tmp_path / "big.bin").write_bytes(b"x" * 1_100_000)
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    seen: list[tuple[int, int | None]] = []
    script.add(httpx.Response(201, json=file("big.bin")), httpx.Response(200, json={"files": 1, "bytes": 5}))
    moved = sandbox.files("demo").upload_folder(tmp_path, "to", lambda done, total: seen.append((done, total)))
    assert (moved.files, moved.bytes, sorted(moved.skipped)) == (2, 1_100_005, ["link", "loop", "pipe"])
    assert script.lines() == ["PUT /v1/conversations/demo/files/to/big.bin", "PUT /v1/conversations/demo/archive"]
    assert names(script.bodies[1]) == {"to/d/small.txt": b"small", "to/empty": None}
    assert seen[-1] == (1_100_005, 1_100_005) and seen == sorted(seen)


def test_large_folder_is_sent_in_batches(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}").write_bytes(b"x" * 900_000)
    script.add(*(httpx.Response(200, json={"files": 4, "bytes": 0}) for _ in range(3)))
    assert sandbox.files("demo").upload_folder(tmp_path).files == 12
    assert [len(names(body)) for body in script.bodies] == [4, 4, 4]
    assert max(map(len, script.bodies)) < 5 << 20


def test_long_and_strange_names_are_packed(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    deep = Path(*["d" * 100] * 3, "\u00fc" * 100)
    (tmp_path / deep).parent.mkdir(parents=True)
    (tmp_path / deep).write_text("x")
    odd = os.fsencode(tmp_path) + b"/\xff"
    with open(odd, "wb"):
        pass
    script.add(httpx.Response(200, json={"files": 2, "bytes": 1}))
    sandbox.files("demo").upload_folder(tmp_path)
    assert names(script.bodies[0]) == {deep.as_posix(): b"x", "\udcff": b""}


def test_nothing_is_sent_for_what_is_no_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for local in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(InvalidRequest, match="not a folder"):
            sandbox.files("demo").upload_folder(local)


def test_folder_is_unpacked(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    content = archive(("a.txt", tarfile.REGTYPE, b"one"), ("d/e/f.txt", tarfile.REGTYPE, b"two"))
    script.add(*(httpx.Response(200, content=content) for _ in range(2)))
    seen: list[tuple[int, int | None]] = []
    moved = sandbox.files("demo").download_folder(
        tmp_path / "all", progress=lambda done, total: seen.append((done, total))
    )
    assert (moved.files, seen[-1]) == (2, (len(content), len(content)))
    assert (tmp_path / "all/d/e/f.txt").read_bytes() == b"two"
    moved = sandbox.files("demo").download_folder(tmp_path / "one", "d")
    assert (moved.files, moved.bytes, (tmp_path / "one/e/f.txt").read_bytes()) == (1, 3, b"two")
    assert not (tmp_path / "one/a.txt").exists()


@pytest.mark.parametrize("name", ["/tmp/evil", "../evil", "d/../../evil", "a//b", "./a", "d/.."])
def test_hostile_name_is_not_unpacked(script: Script, sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    script.add(httpx.Response(200, content=archive((name, tarfile.REGTYPE, b"evil"))))
    with pytest.raises(UnexpectedAnswer, match="local file"):
        sandbox.files("demo").download_folder(tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


def test_links_and_devices_are_not_unpacked(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE]
    entries = [(f"bad{number}", kind, b"") for number, kind in enumerate(kinds)]
    script.add(httpx.Response(200, content=archive(*entries)))
    assert sandbox.files("demo").download_folder(tmp_path / "in").files == 0
    assert list((tmp_path / "in").iterdir()) == []


def test_nothing_is_written_through_a_local_link(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/d").symlink_to(tmp_path / "outside")
    (tmp_path / "in/f").symlink_to(tmp_path / "outside/f")
    for name in ("d/x", "f"):
        script.add(httpx.Response(200, content=archive((name, tarfile.REGTYPE, b"evil"))))
        with pytest.raises(InvalidRequest, match="link"):
            sandbox.files("demo").download_folder(tmp_path / "in")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"nonsense" * 100, archive(("a", tarfile.REGTYPE, b"x" * 2000))[:1500]])
def test_broken_archive_is_named(script: Script, sandbox: Sandbox, tmp_path: Path, content: bytes) -> None:
    script.add(httpx.Response(200, content=content))
    (tmp_path / "a").write_text("before")
    with pytest.raises(UnexpectedAnswer):
        sandbox.files("demo").download_folder(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before")]


def test_endless_archive_is_bounded(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    def flood() -> Iterator[bytes]:
        while True:
            yield b"x" * 100_000

    script.add(httpx.Response(200, content=flood()))
    with pytest.raises(UnexpectedAnswer, match="longer"):
        sandbox.files("demo").download_folder(tmp_path, bytes_max=1_000_000)


def test_files_of_a_run_are_written_first(script: Script, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1_100_000)
    script.add(httpx.Response(201, json=file("big")), httpx.Response(200, json={}), httpx.Response(200, json=status()))
    sandbox.run("python", "x", files={"a.txt": "text", "big": tmp_path / "big", "b.bin": b"\xff"})
    conversation = script.json()["conversationId"]
    assert script.lines()[:2] == [
        f"PUT /v1/conversations/{conversation}/files/big",
        f"PUT /v1/conversations/{conversation}/archive",
    ]
    assert names(script.bodies[1]) == {"a.txt": b"text", "b.bin": b"\xff"}
    script.add(problem("quota_exceeded", 507))
    with pytest.raises(LimitReached):
        sandbox.run("python", "x", files={"a.txt": "text"})
