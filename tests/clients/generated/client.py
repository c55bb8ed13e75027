"""The client that openapi-python-client makes of docs/generated/openapi.json: runs a program, follows its events, and
writes and reads a file in a folder. Arguments: URL, token. Fails on any unexpected result."""

import io
import json
import sys

from sandbox_api import AuthenticatedClient
from sandbox_api.api.files import delete_file, list_files, read_file, write_file
from sandbox_api.api.runs import create_run, get_run, watch_run
from sandbox_api.models import CreateRun, Problem, StoredFile
from sandbox_api.types import File


def main(url: str, token: str) -> None:
    with AuthenticatedClient(base_url=url, token=token) as client:
        run = create_run.sync(
            client=client, body=CreateRun(conversation_id="c", language="python", code="print hi\nwrite a.txt x\n")
        )
        assert run.result.stdout == "hi\n" and run.outcome.exit_code == 0, run
        assert [file.path for file in run.result.files] == ["a.txt"], run
        assert get_run.sync(run.run_id, client=client).outcome == run.outcome

        # Whole, when the run is over.
        text = watch_run.sync(run.run_id, client=client)
        kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
        assert "started" in kinds and kinds[-1] == "finished", text
        data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        assert "".join(event.get("text", "") for event in data) == "hi\n", text

        path, content = "notes/über uns.bin", bytes(range(256))
        written = write_file.sync("c", path, client=client, body=File(payload=io.BytesIO(content)))
        assert isinstance(written, StoredFile) and written.path == path, written
        assert read_file.sync("c", path, client=client).payload.read() == content
        assert [file.path for file in list_files.sync("c", client=client, folder="notes").files] == [path]
        assert delete_file.sync("c", path, client=client) is None
        gone = read_file.sync("c", path, client=client)
        assert isinstance(gone, Problem) and gone.code == "file_not_found", gone
    with AuthenticatedClient(base_url=url, token="not the token") as client:
        assert get_run.sync(run.run_id, client=client).code == "unauthorized"


main(*sys.argv[1:3])
