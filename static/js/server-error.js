// Owns how the server's failures look to the page, whichever interface told them: JSON-RPC errors and problem details.

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

  /** Whether the same request may succeed later as it is: nobody answered, or the server was busy or stopping. */
  get mayPass() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
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

/** No answer came at all. */
export function unreachable() {
  return new ServerError("The server did not answer. Check that it is running and try again.", { code: "unreachable" });
}

/** What a failed answer says. `body` is its JSON, or null. */
export function failureOf(response, body) {
  const told = body?.error?.message ?? body?.detail ?? body?.message;
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
