// Owns following one run to its end: reads its events, reconnects after the last one received, and passes each event on
// once. Knows nothing of the page.
import { ServerError } from "./client.js";

const LAST = new Set(["finished", "failed"]);
// The server sends at least a comment every 15 s; after three missing ones the connection counts as dead.
const SILENCE_MS_MAX = 45_000;
const RETRY_MS = [250, 500, 1000, 2000, 5000];
const ATTEMPTS_MAX = 30;
// The characters of events after which the browser gets a turn to draw and to take the user's input.
const SLICE_CHARS = 4 * 1024;
// A connection that lasted so long counts as one that works.
const STEADY_MS = 10_000;

/**
 * Resolves after the run's last event. Throws a ServerError when the server refuses or does not come back, and the
 * signal's reason when it is aborted. `onLost()` and `onBack()` report the connection.
 */
export async function follow({ client, runId, signal, onEvent, onLost, onBack }) {
  let after = 0;
  let lost = false;
  for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt += 1) {
    const began = Date.now();
    try {
      for await (const event of events(client, runId, after, signal)) {
        if (lost) onBack();
        lost = false;
        if (event === null) continue;
        attempt = 0;
        after = event.number;
        onEvent(event);
        if (LAST.has(event.kind)) return;
      }
      if (await isOver(client, runId, after, signal)) return;
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (error instanceof ServerError && !error.mayPass) throw error;
    }
    if (!lost) onLost();
    lost = true;
    // A proxy may accept each connection and close it at once, which is no success.
    if (Date.now() - began >= STEADY_MS) attempt = 0;
    await pause(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)], signal);
  }
  throw new ServerError(
    "The connection to the server is lost, so the end of the run is not known here. The run is followed again when " +
      "the server answers and still has it.",
    { code: "lost" },
  );
}

// Yields null when the connection is established.
async function* events(client, runId, after, signal) {
  const silence = new AbortController();
  const either = AbortSignal.any([signal, silence.signal]);
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
  };
  alive();
  try {
    const body = await client.runEvents(runId, after, { signal: either });
    if (!body) return;
    yield null;
    yield* parse(body, alive);
  } finally {
    clearTimeout(timer);
  }
}

// Reads the `data` fields only: the JSON names its own number and kind.
async function* parse(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let passed = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const whole = (rest + value).split("\n\n");
      rest = whole.pop();
      for (const message of whole) {
        const data = message.split("\n").find((line) => line.startsWith("data:"));
        if (!data) continue;
        yield JSON.parse(data.slice("data:".length));
        passed += data.length;
        if (passed < SLICE_CHARS) continue;
        passed = 0;
        await turn();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Unlike a timer, a message is not delayed while the page is in the background.
function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

// A stream that ends without the last event: all events were received before, or a proxy closed it.
async function isOver(client, runId, after, signal) {
  const { state, newestEvent } = await client.getRun(runId, { signal });
  return state === "finished" && newestEvent <= after;
}

// Ends early when the browser is online again.
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      signal.removeEventListener("abort", done);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(done, milliseconds);
    addEventListener("online", done);
    signal.addEventListener("abort", done);
  });
}
