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
  /** `hasOldToken`: another token was entered after the request was made. */
  constructor(message, { code = "unknown", status = 0, requestId = null, hasOldToken = false } = {}) {
    super(message);
    this.name = "ServerError";
    this.code = code;
    this.status = status;
    this.requestId = requestId;
    this.hasOldToken = hasOldToken;
  }

  get needsToken() {
    return this.status === 401 && !this.hasOldToken;
  }

  /** Whether the same request may succeed later: there was no answer, or the server was busy or stopping. */
  get mayPass() {
    return this.hasOldToken || this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

export class Client {
  #token;

  /** `token` is a function, called for every request, so that a new token needs no new client. */
  constructor(token) {
    this.#token = token;
  }

  /** What is at a path of `/v1`. */
  get(path, options) {
    return this.#json(path, options);
  }

  /** Sends a request to a path of `/v1`; null where the answer has no body. */
  async post(path, request) {
    const body = request && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) };
    const response = await this.#fetch(path, { method: "POST", ...body });
    return response.status === 204 ? null : this.#body(response, "json");
  }

  /** Stores JSON, given as its text, at a path of `/v1`. */
  async put(path, body) {
    const headers = { "Content-Type": "application/json" };
    await this.#fetch(path, { method: "PUT", headers, body });
  }

  /** What is at a path of `/v1`, as it is. */
  async blob(path) {
    return this.#body(await this.#fetch(path, {}), "blob");
  }

  /** Stores a Blob at a path of `/v1`. */
  async upload(path, blob, type) {
    await this.#fetch(path, { method: "PUT", headers: { "Content-Type": type }, body: blob });
  }

  /** Deletes what is at a path of `/v1`. */
  async remove(path) {
    await this.#fetch(path, { method: "DELETE" });
  }

  /** `{runners, skills}`: the installed languages with the limits of their runs, and whether there are skills. */
  async listRunners(options) {
    const { runners = [], skills = false } = await this.#json("v1/runners", options);
    return { runners, skills };
  }

  /** A page of conversations `{conversations, after}`. */
  listConversations(after) {
    const query = after ? `&after=${encodeURIComponent(after)}` : "";
    return this.#json(`v1/conversations?limit=200${query}`);
  }

  /** Deletes a conversation with its files. */
  async deleteConversation(conversationId) {
    await this.#fetch(`v1/conversations/${encodeURIComponent(conversationId)}`, { method: "DELETE" });
  }

  /** `{files, truncated, after}`, without what is not a plain file; `after` names the next page. */
  listFiles(conversationId, after) {
    const query = after ? `?after=${encodeURIComponent(after)}` : "";
    return this.#json(`v1/conversations/${encodeURIComponent(conversationId)}/files${query}`);
  }

  /** A file's content as `{blob, etag}`. */
  async readFile(conversationId, file) {
    const response = await this.#fetch(fileAt(conversationId, file), {});
    return { blob: await this.#body(response, "blob"), etag: response.headers.get("ETag") };
  }

  /** The `ETag` of a file as it is now, or null when there is none. */
  async etagOf(conversationId, file) {
    try {
      const response = await this.#fetch(fileAt(conversationId, file), { method: "HEAD" });
      return response.headers.get("ETag");
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }

  /**
   * Writes a Blob to a file of a listing or to `{path}`; resolves to its new `ETag`. `ifMatch` is the version to
   * replace, and `ifNew` refuses to replace any; status 412 means that it was not written. `onProgress(sent)` counts
   * bytes.
   */
  writeFile(conversationId, file, blob, { ifMatch, ifNew, onProgress, signal } = {}) {
    return new Promise((resolve, reject) => {
      // `fetch` does not report how much it has sent.
      const request = new XMLHttpRequest();
      const token = this.#token();
      request.open("PUT", fileAt(conversationId, file));
      request.setRequestHeader("Authorization", `Bearer ${token}`);
      request.setRequestHeader("Content-Type", "application/octet-stream");
      if (ifMatch) request.setRequestHeader("If-Match", ifMatch);
      if (ifNew) request.setRequestHeader("If-None-Match", "*");
      if (onProgress) request.upload.addEventListener("progress", ({ loaded }) => onProgress(loaded));
      signal?.addEventListener("abort", () => request.abort());
      request.addEventListener("abort", () => reject(signal?.reason ?? unreachable()));
      request.addEventListener("error", () => this.#whyBroken(conversationId, file).then(reject));
      request.addEventListener("load", () => {
        if (request.status >= 200 && request.status < 300) return resolve(request.getResponseHeader("ETag"));
        const headers = { get: (name) => request.getResponseHeader(name) };
        const body = parsed(request.responseText);
        reject(failureOf({ status: request.status, headers }, body, token !== this.#token()));
      });
      request.send(blob);
    });
  }

  // A server that refuses a long file closes the connection while it is sent, and then no answer can be read.
  async #whyBroken(conversationId, file) {
    try {
      await this.etagOf(conversationId, file);
    } catch (error) {
      return error;
    }
    const why = "The upload was broken off, but the server still answers. It may be longer than the space left.";
    return new ServerError(why, { code: "broken" });
  }

  /**
   * Gives a file or a folder, named as in a listing, another path; status 412 means that a file has it, which only
   * `replace` replaces.
   */
  moveFile(conversationId, file, path, replace) {
    const body = { from: encodedPath(file), to: encodedPath({ path }), encoded: true, replace };
    return this.#post(`v1/conversations/${encodeURIComponent(conversationId)}/move`, body);
  }

  /** Deletes a file, named as in a listing. */
  async deleteFile(conversationId, file) {
    await this.#fetch(fileAt(conversationId, file), { method: "DELETE" });
  }

  /** `{url}`: a signed link to all files as a tar, for a short time. */
  linkArchive(conversationId) {
    return this.#json(`v1/conversations/${encodeURIComponent(conversationId)}/archive/link`, { method: "POST" });
  }

  /** Starts a detached run, so that it continues when the page is closed. */
  createRun({ conversationId, language, code, args, stdin, takesInput }) {
    const input = takesInput && { args, ...(stdin ? { stdin } : { stdinOpen: true }) };
    return this.#post("v1/runs", { conversationId, language, code, wait: 0, detach: true, ...input });
  }

  /** The open session of a conversation and a language, or a new one. */
  createSession({ conversationId, language }) {
    return this.#post("v1/sessions", { conversationId, language });
  }

  /** The open sessions of a conversation. */
  async listSessions(conversationId) {
    const { sessions = [] } = await this.#json(`v1/sessions?conversationId=${encodeURIComponent(conversationId)}`);
    return sessions;
  }

  /** A session as it is now; status 410 tells why it ended. */
  getSession(sessionId) {
    return this.#json(`v1/sessions/${sessionId}`);
  }

  /** Starts a cell, which is a detached run. */
  createCell(sessionId, { code, stdin }) {
    const input = stdin ? { stdin } : { stdinOpen: true };
    return this.#post(`v1/sessions/${sessionId}/cells`, { code, wait: 0, detach: true, ...input });
  }

  /** Interrupts the cell that runs. */
  async interruptSession(sessionId) {
    await this.#fetch(`v1/sessions/${sessionId}/interrupt`, { method: "POST" });
  }

  /** Resolves when the new interpreter is ready. */
  restartSession(sessionId) {
    return this.#json(`v1/sessions/${sessionId}/restart`, { method: "POST" });
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

  #post(path, request) {
    const headers = { "Content-Type": "application/json" };
    return this.#json(path, { method: "POST", headers, body: JSON.stringify(request) });
  }

  async #json(path, options = {}) {
    return this.#body(await this.#fetch(path, options), "json", options.signal);
  }

  async #body(response, form, signal) {
    try {
      return await response[form]();
    } catch {
      throw signal?.aborted ? signal.reason : unreachable();
    }
  }

  async #fetch(path, { headers, token: tried, ...options }) {
    const token = tried ?? this.#token();
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
    const body = await response.json().catch(() => null);
    throw failureOf(response, body, tried === undefined && token !== this.#token());
  }
}

// `pathEncoded` is the exact name where `path` had to escape something.
function encodedPath({ path, pathEncoded }) {
  return pathEncoded ?? path.split("/").map(encodeURIComponent).join("/");
}

function fileAt(conversationId, file) {
  return `v1/conversations/${encodeURIComponent(conversationId)}/files/${encodedPath(file)}`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function unreachable() {
  return new ServerError("The server did not answer. Check that it is running and try again.", { code: "unreachable" });
}

// A refused request carries problem details; a proxy in front of the server may answer with anything else.
function failureOf({ status, headers }, body, hasOldToken) {
  let message = typeof body?.detail === "string" && body.detail ? body.detail : BY_STATUS[status];
  message ??= `The server answered with status ${status}.`;
  const wait = headers.get("Retry-After");
  if (/^\d+$/.test(wait ?? "")) message += ` (Retry after ${wait} s.)`;
  const requestId = body?.requestId ?? null;
  return new ServerError(message, { code: String(body?.code ?? status), status, requestId, hasOldToken });
}
