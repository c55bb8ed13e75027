// Owns the only way to the server: a bare JSON-RPC `tools/call` by POST, answered as plain JSON. Knows the shapes of
// failure and nothing of the page. Paths are relative, so the page also works below a path prefix.

/** A failure that is the server's or the network's, never the program's. */
export class ServerError extends Error {
  constructor(message, { code = "unknown", status = 0, requestId = null } = {}) {
    super(message);
    this.name = "ServerError";
    this.code = code;
    this.status = status;
    this.requestId = requestId;
  }

  get needsToken() {
    return this.status === 401;
  }
}

const BY_STATUS = {
  400: "The server did not understand the request.",
  401: "The server refused the token.",
  403: "The server refused this page's address. Open the page under the address in PUBLIC_BASE_URL.",
  413: "This is larger than the server accepts.",
  429: "Too many requests. Wait a moment and try again.",
  503: "The server cannot take this now. Try again shortly.",
};

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

  runCode(conversationId, language, code, options) {
    return this.#call("sandbox.run_code", { conversationId, language, code }, options);
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
      throw new ServerError("The server did not answer. Check that it is running and try again.", { code: "unreachable" });
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
  if (!response.ok || body?.error || !body?.result) throw transportError(response, body);
  const { structuredContent, content, isError } = body.result;
  const failure = structuredContent?.error;
  if (failure) throw new ServerError(failure.message ?? "The server failed.", failure);
  if (structuredContent) return structuredContent;
  const sentence = content?.find?.((block) => block.type === "text")?.text;
  throw new ServerError(isError && sentence ? sentence : "The server's answer holds no result.", { code: "bad_answer" });
}

function transportError(response, body) {
  const told = body?.error?.message ?? body?.message;
  const status = response.ok ? 0 : response.status;
  const wait = response.headers.get("Retry-After");
  let message = typeof told === "string" && told ? told : BY_STATUS[status];
  message ??= status ? `The server answered with status ${status}.` : "The server's answer is not what this page expects.";
  if (/^\d+$/.test(wait ?? "")) message += ` (Retry after ${wait} s.)`;
  return new ServerError(message, {
    code: String(body?.error?.data?.code ?? body?.error?.code ?? body?.code ?? status),
    status,
    requestId: body?.error?.requestId ?? body?.error?.data?.requestId ?? body?.requestId ?? null,
  });
}
