"""The browser of CodeRunner's interface: by the vendor's SDK, and by the table of its requests."""

import base64
import json
import sys
import urllib.error
import urllib.request

from instavm import InstaVM

BASE, TOKEN, PAGES, REFUSED = sys.argv[1:5]


def call(path, body):
    headers = {"X-API-Key": TOKEN, "Content-Type": "application/json"}
    request = urllib.request.Request(BASE + path, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=100) as response:
            return response.status, json.load(response), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


for path in ["/v1/browser/navigate", "/v1/browser/interactions/navigate"]:
    status, answer, headers = call(path, {"url": f"{PAGES}/late", "wait_timeout": 30000})
    assert status == 200 and answer["status"] == "success" and answer["title"] == "Late", answer
    assert "built late" in answer["content"], answer
    assert headers.get("Deprecation") == ("true" if "interactions" in path else None), headers
status, answer, _ = call("/v1/browser/content", {"url": f"{PAGES}/form"})
assert answer["status"] == "success" and "Name" in answer["readable_content"]["content"], answer
assert any(one["selector"] for one in answer["interactive_elements"]), answer
assert any(one["text"] == "Send it" for one in answer["content_anchors"]), answer
assert call("/v1/browser/content", {"include_anchors": False})[1]["content_anchors"] == []
status, answer, _ = call("/v1/browser/navigate", {"url": REFUSED + "/form"})
assert status == 200 and "no policy allows" in json.dumps(answer), answer
assert call("/v1/browser/navigate", {})[0] == 400
assert call("/v1/browser/navigate", {"url": "file:///etc/passwd"})[0] == 400

with InstaVM(api_key=TOKEN, base_url=BASE, auto_start_session=False) as client:
    with client.browser.create_session(viewport_width=800, viewport_height=600) as session:
        assert client.list_browser_sessions(), "there is one"
        assert client.get_browser_session(session.session_id)["status"] == "active"
        assert session.navigate(f"{PAGES}/form")["status"] == "success"
        session.fill("[name=who]", "Ann")
        session.type("[name=secret]", "hidden", delay=1)
        session.wait_for("visible", "button")
        session.scroll(x=0, y=100)
        picture = base64.b64decode(session.screenshot(full_page=False))
        assert picture.startswith(b"\x89PNG") and int.from_bytes(picture[16:20], "big") == 800, picture[:30]
        assert [one["text"] for one in session.extract_elements("option")] == ["red", "blue"]
        session.click("text=Send it")
        content = session.extract_content()
        assert "got who=Ann&secret=hidden&colour=red" in content["readable_content"]["content"], content
        try:
            session.click("#none", timeout=1000)
            raise AssertionError("there is no such element")
        except Exception as error:
            assert "not found" in str(error), error
    assert session.session_id not in [one["session_id"] for one in client.list_browser_sessions()], "it was closed"
print("browser: as CodeRunner's and the vendor's clients have it")
