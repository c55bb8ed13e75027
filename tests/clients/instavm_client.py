"""The vendor's SDK against CodeRunner's interface."""

import os
import sys
import tempfile

from instavm import InstaVM

BASE, TOKEN, SET, GET, FAIL, VALUE = sys.argv[1:7]

with InstaVM(api_key=TOKEN, base_url=BASE) as client, InstaVM(api_key=TOKEN, base_url=BASE) as other:
    assert client.session_id and client.session_id != other.session_id
    assert client.execute(SET)["stderr"] == ""
    assert client.execute(GET, language="python")["stdout"].strip() == VALUE
    assert "NameError" in other.execute(GET)["stderr"]
    assert client.execute(FAIL, timeout=30)["stderr"]
    assert client.is_session_active()
    assert client.get_session_info()["session_id"] == client.session_id
    assert client.get_session_status()["status"] == "active"

    task = client.execute_async(GET)["task_id"]
    assert client.get_task_result(task)["stdout"].strip() == VALUE

    content = bytes(range(256)) * 4096
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, "sent.bin")
        with open(local, "wb") as file:
            file.write(content)
        assert client.upload_file(local, "/app/uploads/in/sent.bin")["path"] == "/data/in/sent.bin"
        assert client.upload_file(local, "/data/in/")["path"] == "/data/in/sent.bin"
    assert client.download_file("in/sent.bin")["content"] == content
    try:
        client.download_file("missing")
        raise AssertionError("there is no such file")
    except Exception as error:
        assert "404" in str(error), error

    assert client.kill()["status"] == "stopped"
    assert other.kill(other.session_id)["status"] == "stopped"
    assert not other.is_session_active()

local = InstaVM(local=True, local_url=BASE)
try:
    local.execute(SET)
    raise AssertionError("without a token")
except Exception as error:
    assert "session expired" in str(error), error
print("instavm: as with its own server")
