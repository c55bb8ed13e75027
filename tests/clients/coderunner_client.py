"""CodeRunner's interface, called as a client of it would that has only the table of its requests."""

import base64
import json
import sys
import urllib.error
import urllib.request

BASE, TOKEN, SET, GET, FAIL, VALUE = sys.argv[1:7]
KEY = {"X-API-Key": TOKEN}


def call(method, path, body=None, headers=KEY):
    data = None if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    request = urllib.request.Request(BASE + path, data=data, method=method, headers={**headers, **kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def is_executed(answer):
    assert set(answer) >= {"stdout", "stderr", "execution_time", "cpu_time"}, answer
    assert isinstance(answer["execution_time"], float) and isinstance(answer["cpu_time"], float), answer
    return answer["stdout"].strip(), answer["stderr"]


def execute(path, **body):
    status, answer, headers = call("POST", path, body)
    assert status == 200, answer
    assert headers.get("Deprecation") == ("true" if path == "/execute" else None), headers
    return is_executed(answer)


assert call("GET", "/health", headers={})[0] == 200

# Every way of sending the token, on these paths only.
basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
for headers in [KEY, {"Authorization": f"Basic {basic}"}, {"Authorization": f"Bearer {TOKEN}"}]:
    assert call("POST", "/v1/execute", {"code": FAIL}, headers)[0] == 200, headers
for headers in [{}, {"X-API-Key": "wrong"}, {"Authorization": "Basic !"}, {**KEY, "Authorization": "Bearer wrong"}]:
    assert call("POST", "/v1/execute", {"code": SET}, headers)[0] == 401, headers
assert call("GET", "/v1/runs", headers=KEY)[0] == 401
assert call("GET", "/v1/runs", headers={"Authorization": f"Basic {basic}"})[0] == 401

# Sessions are real.
ITS_BODY = {"vm_lifetime_seconds": 300, "memory_mb": 512}
status, opened, _ = call("POST", "/v1/sessions", ITS_BODY)
assert status == 201 and call("DELETE", f"/v1/sessions/{opened['session_id']}")[1]["status"] == "stopped", opened
status, opened, headers = call("POST", "/v1/sessions")
assert status == 201 and opened["status"] == "active" and "Deprecation" not in headers, opened
first = opened["session_id"]
status, opened, headers = call("POST", "/v1/sessions/session", ITS_BODY)
assert status == 200 and opened["status"] == "active" and headers["Deprecation"] == "true", opened
second = opened["session_id"]
assert first != second
execute("/v1/execute", code=SET, session_id=first)
for path in ["/v1/execute", "/execute"]:
    assert execute(path, command=GET, session_id=first) == (VALUE, "")
assert "NameError" in execute("/v1/execute", code=GET, session_id=second)[1]
assert execute("/v1/execute", code=FAIL)[1]
# Without one, nothing is left of a program.
assert execute("/v1/execute", code=f"{SET}\n{GET}") == (VALUE, "")
assert "NameError" in execute("/v1/execute", code=GET)[1]
assert call("GET", f"/v1/sessions/{first}")[1]["status"] == "active"
assert call("GET", f"/v1/sessions/session?session_id={first}")[1]["session_id"] == first
assert call("GET", "/v1/sessions/session")[1]["session_id"] == second
assert call("GET", f"/v1/sessions/status/{first}")[1]["vm_status"] == "active"

# A task is begun and asked about.
task = call("POST", "/execute_async", {"command": GET, "session_id": first})[1]["task_id"]
while not (result := call("GET", f"/v1/executions/{task}")[1])["is_complete"]:
    pass
assert result["serialized_stdout"].strip() == VALUE and result["created_at"], result

# The end of a session.
assert call("DELETE", f"/v1/sessions/{first}")[1]["status"] == "stopped"
assert call("POST", "/kill", {"session_id": second})[1]["status"] == "stopped"
assert call("GET", f"/v1/sessions/status/{second}")[1]["status"] == "stopped"
assert call("GET", f"/v1/sessions/{first}")[0] == 410
status, answer, _ = call("POST", "/v1/execute", {"code": GET, "session_id": first})
assert status == 410 and "variables are gone" in answer["stderr"], answer

# What is wrong is answered in the same shape.
for body, wanted in [
    ({}, 400),
    ({"code": ""}, 400),
    ({"code": SET, "session_id": "x"}, 404),
    ({"code": SET, "language": "none"}, 404),
    ({"code": SET, "session_id": "session-" + "0" * 32}, 404),
]:
    status, answer, _ = call("POST", "/v1/execute", body)
    assert status == wanted and is_executed(answer)[1] and answer["detail"], (status, answer)
for path in ["navigate", "content", "interactions/navigate", "interactions/click", "sessions/"]:
    status, answer, _ = call("POST", f"/v1/browser/{path}", {"url": "https://example.com"})
    assert answer["status"] == "error", answer
    assert "no browser" in answer["error"] or "No network policy" in answer["error"], answer
print("coderunner: as its table says")
