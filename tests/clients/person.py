"""A person with a browser: opens the address of a request for authorization, enters a token and allows."""

import html
import re
import urllib.error
import urllib.parse
import urllib.request


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments):
        return None


def sent_back(address: str, token: str) -> str:
    """Where the server sends the browser."""
    browser = urllib.request.build_opener(NoRedirect)
    with browser.open(address) as response:
        page, cookie = response.read().decode(), response.headers["set-cookie"].split(";")[0]
    fields = re.findall(r'name="(request|seal)" value="([^"]*)"', page)
    form = {name: html.unescape(value) for name, value in fields} | {"decision": "allow", "token": token}
    base = urllib.parse.urlsplit(address)
    headers = {"Cookie": cookie, "Origin": f"{base.scheme}://{base.netloc}"}
    request = urllib.request.Request(f"{base.scheme}://{base.netloc}/authorize", headers=headers)
    request.data = urllib.parse.urlencode(form).encode()
    try:
        browser.open(request)
    except urllib.error.HTTPError as answer:
        assert answer.code == 303, answer.read().decode()
        return answer.headers["location"]
    raise AssertionError("the server did not send the browser back")


def allow(address: str, token: str) -> dict[str, str]:
    """What the client finds in the query of its redirect address."""
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(sent_back(address, token)).query))


class Storage:
    """Where a client of either generation of the SDK keeps what it got."""

    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client
