// Owns the way to runs: `/v1` as plain JSON, and a run's events as a stream that `fetch` reads, since an EventSource can
// send no token. Knows nothing of the page. Paths are relative, so the page also works below a path prefix.
import { failureOf, unreachable } from "./server-error.js";

const LISTED_MAX = 50;

export class RunsClient {
  #token;

  /** `token` is a function, asked at every call, so that a new token needs no new client. */
  constructor(token) {
    this.#token = token;
  }

  /** Begins a run that goes on by itself, whatever becomes of this page. */
  create({ conversationId, language, code, takesInput }) {
    const asked = { conversationId, language, code, wait: 0, detach: true, ...(takesInput && { stdinOpen: true }) };
    return this.#json("v1/runs", { method: "POST", body: JSON.stringify(asked) });
  }

  /** The newest runs of a conversation, newest first, without output. */
  async list(conversationId) {
    const { runs = [] } = await this.#json(`v1/runs?conversationId=${encodeURIComponent(conversationId)}&limit=${LISTED_MAX}`);
    return runs;
  }

  /** As it is now, or when it is over; `waitS` seconds later at the latest. */
  get(runId, { signal, waitS = 0 } = {}) {
    return this.#json(`v1/runs/${runId}${waitS ? `?wait=${waitS}` : ""}`, { signal });
  }

  /** Answers when the program is dead. */
  cancel(runId) {
    return this.#json(`v1/runs/${runId}/cancel`, { method: "POST" });
  }

  /** Sends its program some input, all of it or nothing; `last` ends the input after it. */
  async sendInput(runId, text, last) {
    const headers = { Accept: "application/json", "Content-Type": "application/octet-stream" };
    await this.#fetch(`v1/runs/${runId}/stdin${last ? "?eof=true" : ""}`, { method: "POST", headers, body: text });
  }

  /** The bytes of its events after this number, or null when nothing follows. */
  async events(runId, after, { signal }) {
    const headers = { Accept: "text/event-stream", ...(after > 0 && { "Last-Event-ID": String(after) }) };
    const response = await this.#fetch(`v1/runs/${runId}/events`, { headers, signal });
    return response.status === 204 ? null : response.body;
  }

  async #json(path, options = {}) {
    const headers = { Accept: "application/json", ...(options.body && { "Content-Type": "application/json" }) };
    const response = await this.#fetch(path, { ...options, headers });
    try {
      return await response.json();
    } catch {
      throw options.signal?.aborted ? options.signal.reason : unreachable();
    }
  }

  async #fetch(path, { headers, ...options }) {
    let response;
    try {
      response = await fetch(path, {
        ...options,
        headers: { ...headers, Authorization: `Bearer ${this.#token()}` },
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
