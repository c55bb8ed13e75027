"""Clients of Jupyter's API, unmodified, against a server: python jupyter_clients.py PART.

SANDBOX_URL and MCP_API_TOKEN say where it is. Each part prints what it did and fails where a client does.
"""

import asyncio
import importlib.util
import json
import os
import sys
import tempfile
import types
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


def open_webui_executor():
    """Open WebUI's own module. The other modules that it imports are not installed: here are their defaults."""
    sys.modules["open_webui.env"] = types.SimpleNamespace(AIOHTTP_CLIENT_ALLOW_REDIRECTS=False)
    sys.modules["open_webui.utils.json_codec"] = types.SimpleNamespace(JSONCodec=json)
    path = Path(sys.prefix, "open_webui/utils/code_interpreter.py")
    spec = importlib.util.spec_from_file_location("code_interpreter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.execute_code_jupyter


def open_webui():
    execute = open_webui_executor()

    def shown(code):
        return asyncio.run(execute(URL, code, token=TOKEN))

    done = shown("a = 41\nprint('hi')\na + 1")
    assert done == {"stdout": "hi", "stderr": "", "result": "42"}, done
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    assert shown(plot)["result"].startswith("data:image/png;base64,iVBOR")
    failed = shown("1 / 0")
    assert "ZeroDivisionError" in failed["stderr"], failed


if __name__ == "__main__":
    globals()[sys.argv[1]]()
