// Owns the runs that go on in other conversations of this tab: what they are, and a button that stops each. They are
// kept over a reload.
import { byId, el, icon } from "./dom.js";
import { displayName } from "./languages.js";
import { announce, toast } from "./page.js";
import { store } from "./store.js";
import { visibleName } from "./text.js";
import { describe, standing } from "./verdict.js";

const WAIT_S = 20;
// A browser has six connections to a server, for all tabs together, and a request that waits takes up one.
const WAITING_MAX = 2;
const RETRY_MS = 5000;

export class Elsewhere {
  #client;
  #onOpen;
  #onFailure;
  #box = byId("elsewhere");
  #runs = new Map();
  #conversationId = null;

  /** `onOpen(conversationId)` is called when the user wants to see one. */
  constructor({ client, onOpen, onFailure }) {
    this.#client = client;
    this.#onOpen = onOpen;
    this.#onFailure = onFailure;
    this.#box.addEventListener("click", (event) => {
      const run = this.#runs.get(event.target.closest("[data-run]")?.dataset.run);
      const act = event.target.closest("button")?.dataset.act;
      if (act === "open" && run) this.#onOpen(run.conversationId);
      if (act === "stop" && run) this.#stop(run, event.target.closest("button"));
    });
  }

  /** Watches a run, in the form of `/v1`, until it ends. */
  add(run) {
    if (this.#runs.has(run.runId)) return;
    this.#runs.set(run.runId, run);
    const kept = store.elsewhere.filter(({ runId }) => runId !== run.runId);
    store.elsewhere = [...kept, { runId: run.runId, conversationId: run.conversationId, language: run.language }];
    this.#show();
    this.#wait(run);
  }

  /** Watches those again that were watched before the page was loaded; to be called when the server takes the token. */
  restore() {
    for (const run of store.elsewhere) this.add(run);
  }

  /** Another conversation is open: its runs are not elsewhere. */
  open(conversationId) {
    this.#conversationId = conversationId;
    this.#show();
  }

  async #wait({ runId, conversationId }) {
    let refused = false;
    for (let over = false; !over;) {
      let waits = this.#runs.size <= WAITING_MAX;
      try {
        const run = await this.#client.getRun(runId, { waitS: waits ? WAIT_S : 0 });
        over = run.state === "finished";
        if (over && conversationId !== this.#conversationId) {
          toast(`${visibleName(conversationId)}: ${describe(standing(run)).text}`, "Open", () =>
            this.#onOpen(conversationId),
          );
        }
      } catch (error) {
        over = !error.mayPass;
        refused = error.needsToken;
        waits = false;
      }
      if (!over && !waits) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
    this.#runs.delete(runId);
    // Another token may be good again.
    if (!refused) store.elsewhere = store.elsewhere.filter((run) => run.runId !== runId);
    this.#show();
  }

  async #stop({ runId }, button) {
    button.setAttribute("aria-disabled", "true");
    announce("Stopping");
    try {
      await this.#client.cancelRun(runId);
    } catch (error) {
      button.removeAttribute("aria-disabled");
      toast(`The run could not be stopped: ${visibleName(error.message)}`);
      this.#onFailure(error);
    }
  }

  #show() {
    const runs = [...this.#runs.values()].filter((run) => run.conversationId !== this.#conversationId);
    const focused = this.#box.contains(document.activeElement) ? document.activeElement : null;
    const at = `[data-run="${CSS.escape(focused?.closest("[data-run]").dataset.run ?? "")}"]`;
    this.#box.replaceChildren(...runs.map(entry));
    this.#box.hidden = runs.length === 0;
    // Not to a button of another run, because one more Enter would press it.
    const same = focused && this.#box.querySelector(`${at} [data-act=${focused.dataset.act}]`);
    if (focused) (same ?? byId("output-body")).focus({ preventScroll: true });
  }
}

function entry({ runId, conversationId, language }) {
  const name = visibleName(conversationId);
  const label = visibleName(displayName(language));
  return el(
    "span",
    { class: "elsewhere-run", "data-run": runId },
    el(
      "button",
      { class: "status-button", type: "button", "data-act": "open", title: `Open ${name}` },
      el("span", { class: "spinner", "aria-hidden": "true" }),
      el("span", {}, `${label} runs in `, el("bdi", {}, name)),
    ),
    el(
      "button",
      { class: "button stop small", type: "button", "data-act": "stop", "data-testid": "elsewhere-stop" },
      icon("stop"),
      el("span", {}, "Stop"),
      el("span", { class: "sr-only" }, ` the run in ${name}`),
    ),
  );
}
