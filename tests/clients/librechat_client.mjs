// The code execution tool of LibreChat's agents, unmodified, and the calls of LibreChat's server. Arguments: the
// package's folder, the base URL, the token, then programs: one that prints `made` and writes made.txt, one that prints
// `seen` (and needs made.txt where programs are real), one that fails. Fails on any unexpected result.

import assert from "node:assert";
import { pathToFileURL } from "node:url";

const [folder, base, token, make, see, fail] = process.argv.slice(2);
const inPath = `${base}/${encodeURIComponent(token)}/v1`;
process.env.LIBRECHAT_CODE_BASEURL = inPath;
const agents = await import(pathToFileURL(`${folder}/dist/esm/main.mjs`));

const tool = agents.createCodeExecutionTool();
const asked = (lang, code) => ({ name: "execute_code", args: { lang, code }, id: "1", type: "tool_call" });
const call = async (code, extra = {}) => {
  const message = await tool.invoke({ ...asked("py", code), ...extra });
  return [message.content, message.artifact];
};

const ID = /^[A-Za-z0-9_-]{21}$/;
let [text, artifact] = await call(make);
assert.match(text, /^stdout:\nmade\b/, text);
assert.match(artifact.session_id, ID);
assert.deepEqual(artifact.files.map((file) => file.name), ["made.txt"]);
const made = artifact.files[0];
assert.match(made.id, ID);

// A later program is given the file by reference, as LibreChat's server does.
const reference = {
  id: made.id, resource_id: "user", storage_session_id: made.storage_session_id, name: made.name, kind: "user",
};
[text, artifact] = await call(see, { _injected_files: [reference] });
assert.match(text, /^stdout:\nseen\b/, text);
assert.notEqual(artifact.session_id, made.storage_session_id);
assert.deepEqual(artifact.files.map(({ name, inherited, id }) => [name, inherited, id]), [["made.txt", true, made.id]]);

[text] = await call(fail);
assert.match(text, /stderr:\n[^]*no/, text);
await assert.rejects(() => tool.invoke(asked("f90", "x")), /rejected/);

// LibreChat's server.
const at = async (path, options = {}, status = 200) => {
  const response = await fetch(`${inPath}${path}`, options);
  assert.equal(response.status, status, `${path}: ${response.status}`);
  return response;
};
const where = `${made.storage_session_id}/${made.id}`;
assert.equal((await (await at(`/download/${where}?kind=user&id=u`)).text()).trim(), "text");
const object = await (await at(`/sessions/${made.storage_session_id}/objects/${made.id}?kind=user&id=u`)).json();
assert.ok(Date.now() - Date.parse(object.lastModified) < 3600e3, object.lastModified);
const [listed] = await (await at(`/files/${made.storage_session_id}?detail=full`)).json();
assert.ok(listed.name.startsWith(where) && listed.metadata["original-filename"] === "made.txt", JSON.stringify(listed));

const form = (...names) => {
  const body = new FormData();
  body.append("kind", "user");
  body.append("id", "u");
  for (const name of names) body.append("file", new Blob(["content"]), name);
  return { method: "POST", body, headers: { "User-Id": "u" } };
};
const one = await (await at("/upload", form("a b.txt"))).json();
assert.deepEqual([one.message, one.files[0].filename], ["success", "a b.txt"]);
assert.match(one.storage_session_id, ID);
assert.match(one.files[0].fileId, ID);
const many = await (await at("/upload/batch", form("skill/SKILL.md", "skill/run.py", "../x"))).json();
assert.deepEqual([many.succeeded, many.failed, many.files.map((file) => file.status)],
  [2, 1, ["success", "success", "error"]]);
await at(`/files/${one.storage_session_id}/${one.files[0].fileId}`, { method: "DELETE" });
await at(`/download/${one.storage_session_id}/${one.files[0].fileId}`, {}, 404);
await at("/download/..%2F..%2F..%2F..%2F..%2F..%2F/x", {}, 404);
await at("/exec/programmatic", { method: "POST", body: "{}", headers: { "content-type": "application/json" } }, 501);

// The token in other places, and a wrong one.
const direct = (headers) => fetch(`${base}/v1/files/${made.storage_session_id}`, { headers });
assert.equal((await direct({ "X-API-Key": token })).status, 200);
assert.equal((await direct({ Authorization: `Bearer ${token}` })).status, 200);
assert.equal((await direct({})).status, 401);
assert.equal((await fetch(`${base}/wrong/v1/files/${made.storage_session_id}`)).status, 401);
process.env.LIBRECHAT_CODE_BASEURL = `${base}/wrong/v1`;
const refused = agents.createCodeExecutionTool();
await assert.rejects(() => refused.invoke(asked("py", "x")), /not authorized/);
