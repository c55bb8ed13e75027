// openapi-fetch with the types that openapi-typescript makes of docs/generated/openapi.json: runs a program, follows
// its events as they come, and writes and reads a file in a folder. Arguments: URL, token. Fails on any unexpected
// result.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const [baseUrl, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${token}` } });

const begun = await client.POST("/v1/runs", {
  body: { conversationId: "c", language: "python", code: "print hi\nsleep 300ms\nprint there\n", wait: 0 },
});
assert(begun.data, JSON.stringify(begun.error));
const run = { params: { path: { runId: begun.data.runId } } };

const events = await client.GET("/v1/runs/{runId}/events", { ...run, parseAs: "stream" });
assert(events.data);
let text = "";
for await (const piece of events.data.pipeThrough(new TextDecoderStream())) text += piece;
const data = text.split("\n").filter((line) => line.startsWith("data: "));
const seen = data.map((line) => JSON.parse(line.slice(6)) as components["schemas"]["RunEvent"]);
assert.equal(seen.at(-1)?.kind, "finished");
assert.equal(seen.at(-1)?.outcome?.exitCode, 0);
assert.equal(seen.map((event) => event.text ?? "").join(""), "hi\nthere\n");
assert.equal((await client.GET("/v1/runs/{runId}", run)).data?.result?.stdout, "hi\nthere\n");

const at = { params: { path: { conversationId: "c", path: "notes/über uns.bin" } } };
const content = Uint8Array.from({ length: 256 }, (_, n) => n);
const written = await client.PUT("/v1/conversations/{conversationId}/files/{path}", {
  ...at,
  // The type of bytes is a string in the document's language.
  body: content as unknown as string,
  bodySerializer: (body) => body,
  headers: { "content-type": "application/octet-stream" },
});
assert.equal(written.data?.path, "notes/über uns.bin");
const read = await client.GET("/v1/conversations/{conversationId}/files/{path}", { ...at, parseAs: "arrayBuffer" });
assert(read.data && Buffer.from(read.data).equals(content));
const { data: listing } = await client.GET("/v1/conversations/{conversationId}/files", {
  params: { path: { conversationId: "c" }, query: { folder: "notes" } },
});
assert.deepEqual(listing?.files.map((file) => file.path), ["notes/über uns.bin"]);
assert.equal((await client.DELETE("/v1/conversations/{conversationId}/files/{path}", at)).response.status, 204);
const gone = await client.GET("/v1/conversations/{conversationId}/files/{path}", { ...at, parseAs: "arrayBuffer" });
assert.equal(gone.error?.code, "file_not_found");
