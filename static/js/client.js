// Owns the requests to `/v1` and how its failures look to the page. A run's events are a stream that `fetch` reads,
// because an EventSource cannot send a token. Knows nothing of the page. Paths are relative, so that the page also
// works below a path prefix.

const RUNS_LISTED_MAX = 50;

const BY_STATUS = {
  400: "The server did not understand the request.",
  401: "The server refused the token.",
  403: "The server refused this page's address. Open the page under the address in PUBLIC_BASE_URL.",
  413: "This is larger than the server accepts.",
  429: "Too many requests. Wait a moment and try again.",
  503: "The server cannot take this now. Try again shortly.",
};

/** A failure of the server or of the network, never of the program. */
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

  /** Whether the same request may succeed later: there was no answer, or the server was busy or stopping. */
  get mayPass() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

export class Client {
  #token;

  /** `token` is a function, called for every request, so that a new token needs no new client. */
  constructor(token) {
    this.#token = token;
  }

  /** The installed languages. `token` replaces the stored one. */
  async listRunners({ token } = {}) {
    const { runners = [] } = await this.#json("v1/runners", { token });
    return runners;
  }

  /** `{files, truncated}`, without what is not a plain file. */
  listFiles(conversationId) {
    return this.#json(`v1/conversations/${encodeURIComponent(conversationId)}/files`);
  }

  /** Writes a Blob under a plain name. */
  async writeFile(conversationId, name, blob) {
    const headers = { "Content-Type": "application/octet-stream" };
    await this.#fetch(fileAt(conversationId, { path: name }), { method: "PUT", headers, body: blob });
  }

  /** Deletes a file, named as in a listing. */
  async deleteFile(conversationId, file) {
    await this.#fetch(fileAt(conversationId, file), { method: "DELETE" });
  }

  /** Starts a detached run, so that it continues when the page is closed. */
  createRun({ conversationId, language, code, takesInput }) {
    const request = { conversationId, language, code, wait: 0, detach: true, ...(takesInput && { stdinOpen: true }) };
    const headers = { "Content-Type": "application/json" };
    return this.#json("v1/runs", { method: "POST", headers, body: JSON.stringify(request) });
  }

  /** The newest runs of a conversation, newest first, without output. */
  async listRuns(conversationId) {
    const query = `conversationId=${encodeURIComponent(conversationId)}&limit=${RUNS_LISTED_MAX}`;
    const { runs = [] } = await this.#json(`v1/runs?${query}`);
    return runs;
  }

  /** The state of a run now, or when it ends within `waitS` seconds. */
  getRun(runId, { signal, waitS = 0 } = {}) {
    return this.#json(`v1/runs/${runId}${waitS ? `?wait=${waitS}` : ""}`, { signal });
  }

  /** Resolves when the program is dead. */
  cancelRun(runId) {
    return this.#json(`v1/runs/${runId}/cancel`, { method: "POST" });
  }

  /** Sends input to the program, all of it or nothing; `last` ends the input after it. */
  async sendInput(runId, text, last) {
    const headers = { "Content-Type": "application/octet-stream" };
    await this.#fetch(`v1/runs/${runId}/stdin${last ? "?eof=true" : ""}`, { method: "POST", headers, body: text });
  }

  /** The byte stream of a run's events after this number, or null when there are no more. */
  async runEvents(runId, after, { signal }) {
    const headers = { Accept: "text/event-stream", ...(after > 0 && { "Last-Event-ID": String(after) }) };
    const response = await this.#fetch(`v1/runs/${runId}/events`, { headers, signal });
    return response.status === 204 ? null : response.body;
  }

  async #json(path, options = {}) {
    const response = await this.#fetch(path, options);
    try {
      return await response.json();
    } catch {
      throw options.signal?.aborted ? options.signal.reason : unreachable();
    }
  }

  async #fetch(path, { headers, token = this.#token(), ...options }) {
    let response;
    try {
      response = await fetch(path, {
        ...options,
        headers: { Accept: "application/json", ...headers, Authorization: `Bearer ${token}` },
        credentials: "omit",
        cache: "no-store",
        redirect: "error",
      });
    } catch {
      throw options.signal?.aborted ? options.signal.reason : unreachable();
    }
    if (response.ok) return response;
    throw failureOf(response, await response.json().catch(() => null));
  }
}

// `pathEncoded` is the exact name where `path` had to escape something.
function fileAt(conversationId, { path, pathEncoded }) {
  const encoded = pathEncoded ?? path.split("/").map(encodeURIComponent).join("/");
  return `v1/conversations/${encodeURIComponent(conversationId)}/files/${encoded}`;
}

function unreachable() {
  return new ServerError("The server did not answer. Check that it is running and try again.", { code: "unreachable" });
}

// A refused request carries problem details; a proxy in front of the server may answer with anything else.
function failureOf({ status, headers }, body) {
  let message = typeof body?.detail === "string" && body.detail ? body.detail : BY_STATUS[status];
  message ??= `The server answered with status ${status}.`;
  const wait = headers.get("Retry-After");
  if (/^\d+$/.test(wait ?? "")) message += ` (Retry after ${wait} s.)`;
  return new ServerError(message, { code: String(body?.code ?? status), status, requestId: body?.requestId ?? null });
}
