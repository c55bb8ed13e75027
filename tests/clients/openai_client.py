"""OpenAI's client, unmodified: containers and their files. Arguments: base URL, token.
Fails on any unexpected result."""

import sys

from openai import BadRequestError, NotFoundError, OpenAI

base, token = sys.argv[1:]
client = OpenAI(base_url=base, api_key=token, max_retries=0)

containers = [client.containers.create(name=f"c{number}") for number in range(3)]
first = client.containers.create(name="first", expires_after={"anchor": "last_active_at", "minutes": 5})
assert first.id.startswith("cntr_") and first.object == "container" and first.status == "running", first
assert first.expires_after.minutes == 5 and first.name == "first", first
assert client.containers.retrieve(first.id).created_at == first.created_at
ids = {one.id for one in client.containers.list(limit=2)}
assert ids == {one.id for one in [first, *containers]}, ids
assert [one.id for one in client.containers.list(name="c1")] == [containers[1].id]

file = client.containers.files.create(first.id, file=("a b.txt", b"content\x00"))
assert (file.path, file.bytes, file.container_id) == ("/mnt/data/a b.txt", 8, first.id), file
client.containers.files.create(first.id, file=("other.txt", b"x"))
assert client.containers.files.content.retrieve(file.id, container_id=first.id).read() == b"content\x00"
assert client.containers.files.retrieve(file.id, container_id=first.id).id == file.id
paths = {one.path for one in client.containers.files.list(first.id, limit=1)}
assert paths == {"/mnt/data/a b.txt", "/mnt/data/other.txt"}
client.containers.files.delete(file.id, container_id=first.id)


def refused(kind, call):
    try:
        call()
    except kind as error:
        assert error.body["message"], error
        return
    raise SystemExit(f"{call} was not refused")


refused(NotFoundError, lambda: client.containers.files.retrieve(file.id, container_id=first.id))
refused(BadRequestError, lambda: client.containers.create(name="x", file_ids=["file-1"]))
late = {"anchor": "last_active_at", "minutes": 21}
refused(BadRequestError, lambda: client.containers.create(name="x", expires_after=late))
refused(BadRequestError, lambda: client.containers.files.create(first.id, file_id="file-1"))
policy = {"type": "allowlist", "allowed_domains": ["example.com"]}
refused(BadRequestError, lambda: client.containers.create(name="x", network_policy=policy))
client.containers.delete(first.id)
refused(NotFoundError, lambda: client.containers.retrieve(first.id))
refused(NotFoundError, lambda: client.containers.retrieve("c-" + "0" * 32))
for one in containers:
    client.containers.delete(one.id)
assert list(client.containers.list()) == []
