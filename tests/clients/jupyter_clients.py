"""Clients of Jupyter's API, unmodified, against a server: python jupyter_clients.py PART.

SANDBOX_URL and MCP_API_TOKEN say where it is. Each part prints what it did and fails where a client does.
"""

import asyncio
import json
import os
import sys
import tempfile
import uuid
from pathlib import Path

URL = os.environ["SANDBOX_URL"] + "/jupyter"
TOKEN = os.environ["MCP_API_TOKEN"]
NOTEBOOKS = Path(__file__).parent / "notebooks"


def gateway():
    """The gateway client sends no credentials on its WebSocket: the token is in the path."""
    from jupyter_server.gateway.gateway_client import GatewayClient
    from jupyter_server.gateway.managers import GatewayKernelManager

    GatewayClient.instance().url = f"{URL}/t/{TOKEN}"
    return GatewayKernelManager


def outputs(notebook):
    """What each cell shows, by its kind."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = output.get("text") or data.get("text/plain") or output.get("ename")
            shown.append((output.output_type, text.strip(), sorted(data)))
    return shown


def check(shown, who):
    """What all notebooks show, by their names."""
    texts = {name: [text for _, text, _ in of_it] for name, of_it in shown.items()}
    assert texts["text"] == ["hello", "42", f"to {who}"], texts
    assert texts["error"] == ["ZeroDivisionError", "caught 'x'"], texts
    assert "image/png" in shown["plot"][0][2] and texts["plot"][1] == "True", shown["plot"]
    assert "text/html" in shown["pandas"][0][2] and texts["pandas"][1].endswith("11.6)"), shown["pandas"]
    # A stream may come in pieces.
    printed = "\n".join(texts["magics"])
    assert printed.startswith("'/data'\nfrom a shell\nline 1\nline 2\nline 3\nCPU times"), texts
    assert texts["magics"][-1] == "['x']", texts


def nbclient():
    import nbformat
    from nbclient import NotebookClient

    manager = gateway()
    shown = {}
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, kernel_manager_class=manager, timeout=120).execute()
        assert all(cell.execution_count == n for n, cell in enumerate(notebook.cells, 1)), path
        shown[path.stem] = outputs(notebook)
        print(path.stem, shown[path.stem])
    check(shown, "the world")


def papermill():
    """It executes a notebook whose cell may fail to its end, and raises what the cell raised after that."""
    import nbformat
    import papermill

    manager = gateway()
    shown, failed = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            out = f"{folder}/{path.name}"
            parameters = {"who": "Ada"} if path.stem == "text" else None
            try:
                papermill.execute_notebook(
                    str(path), out, parameters=parameters, kernel_manager_class=manager, progress_bar=False
                )
            except papermill.PapermillExecutionError as error:
                failed[path.stem] = error.ename
            shown[path.stem] = outputs(nbformat.read(out, as_version=4))
            print(path.stem, shown[path.stem])
    assert failed == {"error": "ZeroDivisionError"}, failed
    check(shown, "Ada")


def kernel_client():
    """In the default form: 1.0.2 drops every message of the other one (a KeyError in its own log line)."""
    from jupyter_kernel_client import JupyterKernelClient

    with JupyterKernelClient(server_url=URL, token=TOKEN) as kernel:
        kernel.execute("a = 41")
        reply = kernel.execute("print('hi'); a + 1")
        assert reply["status"] == "ok", reply
        assert reply["outputs"][0]["text"] == "hi\n", reply
        assert reply["outputs"][1]["data"]["text/plain"] == "42", reply
        failed = kernel.execute("1 / 0")
        assert failed["status"] == "error", failed
        kernel.restart()
        assert kernel.execute("a")["status"] == "error"


class OpenWebUi:
    """Its executor's requests, in their order and form (backend/open_webui/utils/code_interpreter.py)."""

    def __init__(self, code):
        self.code, self.base, self.params = code, f"{URL}/", {"token": TOKEN}
        self.stdout, self.stderr, self.result = "", "", ""

    async def run(self):
        import aiohttp
        import websockets

        async with aiohttp.ClientSession(trust_env=True, base_url=self.base) as session:
            async with session.post(url="api/kernels", params=self.params) as answer:
                answer.raise_for_status()
                kernel = (await answer.json())["id"]
            query = "?" + "&".join(f"{name}={value}" for name, value in self.params.items())
            address = f"{self.base.replace('http', 'ws', 1)}/api/kernels/{kernel}/channels{query}"
            async with websockets.connect(address, additional_headers={}) as socket:
                await self.execute(socket)
            async with session.delete(f"api/kernels/{kernel}", params=self.params) as answer:
                answer.raise_for_status()
        return self

    async def execute(self, socket):
        request = uuid.uuid4().hex
        header = {"msg_id": request, "msg_type": "execute_request", "username": "user"}
        header |= {"session": uuid.uuid4().hex, "date": "", "version": "5.3"}
        content = {"code": self.code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await socket.send(json.dumps(message))
        while True:
            message = json.loads(await asyncio.wait_for(socket.recv(), 60))
            if message.get("parent_header", {}).get("msg_id") != request:
                continue
            kind, content = message.get("msg_type"), message.get("content", {})
            if kind == "stream":
                if content["name"] == "stdout":
                    self.stdout += content["text"]
                else:
                    self.stderr += content["text"]
            elif kind in ("display_data", "execute_result"):
                data = content["data"]
                image = data.get("image/png")
                self.result += f"data:image/png;base64,{image}" if image is not None else data["text/plain"]
            elif kind == "error":
                self.stderr += "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return


def open_webui():
    done = asyncio.run(OpenWebUi("a = 41\nprint('hi')\na + 1").run())
    assert (done.stdout, done.stderr, done.result) == ("hi\n", "", "42"), vars(done)
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    assert asyncio.run(OpenWebUi(plot).run()).result.startswith("data:image/png;base64,iVBOR")
    failed = asyncio.run(OpenWebUi("1 / 0").run())
    assert "ZeroDivisionError" in failed.stderr, vars(failed)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
