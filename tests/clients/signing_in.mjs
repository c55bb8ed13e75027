// The TypeScript SDK signs in and refreshes. Arguments: URL, token. Fails on any unexpected result.

import assert from "node:assert";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const tools = createRequire(process.execPath);
const sdk = (name) => import(pathToFileURL(tools.resolve(`@modelcontextprotocol/sdk/client/${name}.js`)));
const { Client } = await sdk("index");
const { StreamableHTTPClientTransport } = await sdk("streamableHttp");
const { UnauthorizedError } = await sdk("auth");

const [url, token] = process.argv.slice(2);
const redirect = "http://localhost:3030/callback";
let tokens, information, verifier, answer;
let pages = 0;

// A person with a browser.
async function allow(address) {
  pages += 1;
  const response = await fetch(address);
  const page = await response.text();
  const decoded = (text) => text.replaceAll("&amp;", "&").replaceAll("&quot;", '"').replaceAll("&#39;", "'");
  const form = new URLSearchParams({ decision: "allow", token });
  for (const [, name, value] of page.matchAll(/name="(request|seal)" value="([^"]*)"/g)) form.set(name, decoded(value));
  const cookie = response.headers.get("set-cookie").split(";")[0];
  const headers = { cookie, origin: new URL(address).origin };
  const back = await fetch(new URL("/authorize", address), { method: "POST", body: form, headers, redirect: "manual" });
  assert.equal(back.status, 303);
  answer = new URL(back.headers.get("location")).searchParams;
}

const authProvider = {
  redirectUrl: redirect,
  clientMetadata: { client_name: "TypeScript", redirect_uris: [redirect], token_endpoint_auth_method: "none" },
  clientInformation: () => information,
  saveClientInformation: (saved) => { information = saved; },
  tokens: () => tokens,
  saveTokens: (saved) => { tokens = saved; },
  redirectToAuthorization: allow,
  saveCodeVerifier: (saved) => { verifier = saved; },
  codeVerifier: () => verifier,
};

async function call() {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { authProvider }));
  const run = { conversationId: "signed-in", language: "python", code: "print Hello!" };
  const result = await client.callTool({ name: "sandbox_run_code", arguments: run });
  assert(!result.isError && result.content[0].text.includes("Hello!"), JSON.stringify(result));
  await client.close();
}

await assert.rejects(call(), UnauthorizedError);
await new StreamableHTTPClientTransport(new URL(url), { authProvider }).finishAuth(answer.get("code"));
await call();
const first = tokens;
// As if it had expired.
tokens = { ...tokens, access_token: "expired" };
await call();
assert.equal(pages, 1, "the second time it refreshed");
assert.notEqual(tokens.access_token, first.access_token);
