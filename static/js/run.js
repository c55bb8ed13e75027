// Owns one run from the click to its end: the button, the clock, the call. What a run yields goes to `Output` piece by
// piece (begin, finish, fail), so that a stream of events can take the place of the one answer without touching it.
import { byId } from "./dom.js";
import { announce, page } from "./page.js";
import { duration } from "./text.js";

const TICK_MS = 100;

export class Run {
  #client;
  #output;
  #request;
  #onEnd;
  #onFailure;

  /** `request()` says what to run; `onEnd(result)` and `onFailure(error)` are told how it went. */
  constructor({ client, output, request, onEnd, onFailure }) {
    this.#client = client;
    this.#output = output;
    this.#request = request;
    this.#onEnd = onEnd;
    this.#onFailure = onFailure;
    const button = byId("run");
    const apple = /Mac|iPhone|iPad/.test(navigator.platform);
    byId("run-key").textContent = apple ? "⌘ ↵" : "Ctrl ↵";
    button.title = `Run the program (${apple ? "Command" : "Ctrl"}+Enter)`;
    button.setAttribute("aria-keyshortcuts", apple ? "Meta+Enter" : "Control+Enter");
    button.addEventListener("click", () => this.start());
    page.onState((state) => {
      // Not `disabled` while running: that would throw the keyboard focus away.
      button.disabled = state !== "ready" && state !== "running";
      button.setAttribute("aria-disabled", String(state !== "ready"));
      byId("run-label").textContent = state === "running" ? "Running" : "Run";
    });
  }

  async start() {
    if (page.state !== "ready") return;
    const { conversationId, language, code } = this.#request();
    page.state = "running";
    announce("Running");
    this.#output.begin();
    const stopClock = startClock((elapsed) => this.#output.tick(elapsed));
    try {
      const result = await this.#client.runCode(conversationId, language, code);
      stopClock();
      this.#output.finish(result);
      leaveRunning();
      this.#onEnd(conversationId, result);
    } catch (error) {
      stopClock();
      this.#output.fail(error);
      leaveRunning();
      this.#onFailure(error);
    }
  }
}

// Something else may have found out meanwhile that the token is no longer good.
function leaveRunning() {
  if (page.state === "running") page.state = "ready";
}

function startClock(tick) {
  const began = performance.now();
  const show = () => tick(duration(Math.floor((performance.now() - began) / TICK_MS) * TICK_MS));
  show();
  const timer = setInterval(show, TICK_MS);
  return () => clearInterval(timer);
}
