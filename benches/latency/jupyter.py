"""Sessions as a user has them elsewhere: jupyter_client on the host, and a Jupyter Kernel Gateway over HTTP.

Each line of the input is a JSON list: a way ("client" or "gateway") and cells. A new kernel executes them, one after
the other. The answer is a JSON list of milliseconds: the start with the first cell, then each further cell.
"""

import json
import subprocess
import sys
import time
import urllib.request
import uuid

from jupyter_client.manager import start_new_kernel


def by_client(cells):
    begun, times = time.perf_counter(), []
    manager, client = start_new_kernel()
    for cell in cells:
        reply = client.execute_interactive(cell, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return times


def request(method, path):
    call = urllib.request.Request(GATEWAY + path, method=method)
    with urllib.request.urlopen(call) as answer:
        return json.loads(answer.read() or "null")


def by_gateway(cells):
    import websocket

    begun, times = time.perf_counter(), []
    kernel = request("POST", "/api/kernels")["id"]
    address = GATEWAY.replace("http", "ws", 1) + f"/api/kernels/{kernel}/channels"
    socket = websocket.create_connection(address, timeout=60)
    for cell in cells:
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "bench", "username": "",
                  "date": "", "version": "5.3"}
        content = {"code": cell, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        socket.send(json.dumps({"channel": "shell", "header": header, "parent_header": {}, "metadata": {},
                                "content": content, "buffers": []}))
        replied = idle = False
        while not (replied and idle):
            message = json.loads(socket.recv())
            if message["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            replied |= message["msg_type"] == "execute_reply"
            idle |= message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    socket.close()
    request("DELETE", f"/api/kernels/{kernel}")
    return times


PORT = sys.argv[1]
GATEWAY = f"http://127.0.0.1:{PORT}"
gateway = subprocess.Popen(
    [sys.executable, "-m", "kernel_gateway", f"--KernelGatewayApp.port={PORT}", "--KernelGatewayApp.port_retries=0"],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
try:
    while True:
        try:
            request("GET", "/api")
            break
        except OSError:
            assert gateway.poll() is None, "the gateway ended"
            time.sleep(0.1)
    print("ready", flush=True)
    for line in sys.stdin:
        way, *cells = json.loads(line)
        times = by_client(cells) if way == "client" else by_gateway(cells)
        print(json.dumps([round(seconds * 1000, 2) for seconds in times]), flush=True)
finally:
    gateway.terminate()
    gateway.wait()
