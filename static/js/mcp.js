// Owns the way to languages and files: a bare JSON-RPC `tools/call` by POST, answered as plain JSON. Knows nothing of the
// page. Paths are relative, so the page also works below a path prefix.
import { ServerError, failureOf, unreachable } from "./server-error.js";

export class McpClient {
  #token;
  #nextId = 1;

  /** `token` is a function, asked at every call, so that a new token needs no new client. */
  constructor(token) {
    this.#token = token;
  }

  listRunners(options) {
    return this.#call("sandbox.list_runners", {}, options);
  }

  listFiles(conversationId, options) {
    return this.#call("sandbox.list_files", { conversationId }, options);
  }

  readFile(conversationId, path, options) {
    return this.#call("sandbox.read_file", { conversationId, path }, options);
  }

  writeFile(conversationId, path, base64, options) {
    return this.#call("sandbox.write_file", { conversationId, path, content: base64, encoding: "base64" }, options);
  }

  deleteFile(conversationId, file, options) {
    const which = file.pathEncoded === undefined ? { path: file.path } : { pathEncoded: file.pathEncoded };
    return this.#call("sandbox.delete_file", { conversationId, ...which }, options);
  }

  async #call(name, args, { token = this.#token(), signal } = {}) {
    let response;
    let text;
    try {
      response = await fetch("mcp", {
        method: "POST",
        headers: {
          Authorization: `Bearer ${token}`,
          "Content-Type": "application/json",
          Accept: "application/json",
        },
        body: JSON.stringify({ jsonrpc: "2.0", id: this.#nextId++, method: "tools/call", params: { name, arguments: args } }),
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
        signal,
      });
      text = await response.text();
    } catch (cause) {
      if (signal?.aborted) throw cause;
      throw unreachable();
    }
    return readAnswer(response, text);
  }
}

function readAnswer(response, text) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // What is not JSON is told by its status below.
  }
  if (!response.ok || body?.error || !body?.result) throw failureOf(response, body);
  const { structuredContent, content, isError } = body.result;
  const failure = structuredContent?.error;
  if (failure) throw new ServerError(failure.message ?? "The server failed.", failure);
  if (structuredContent) return structuredContent;
  const sentence = content?.find?.((block) => block.type === "text")?.text;
  throw new ServerError(isError && sentence ? sentence : "The server's answer holds no result.", { code: "bad_answer" });
}
