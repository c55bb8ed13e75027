// Owns the row of this conversation's runs, newest first: a button for each, one tab stop for all; the arrow keys move
// between them.
import { byId, el, icon } from "./dom.js";
import { displayName } from "./languages.js";
import { duration, visibleName } from "./text.js";
import { describe, standing } from "./verdict.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };

export class History {
  #list = byId("history");
  #runs = [];
  #drawn = "";
  #chosen = null;

  /** `onChoose(run)` is called when the user selects one. */
  constructor(onChoose) {
    this.#list.addEventListener("click", (event) => {
      const run = this.#runs.find(({ runId }) => runId === event.target.closest("button")?.dataset.run);
      if (run) onChoose(run);
    });
    this.#list.addEventListener("keydown", (event) => this.#step(event));
  }

  /** Shows runs in the form of `/v1`. */
  show(runs) {
    this.#runs = runs;
    const drawn = JSON.stringify(runs);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const focused = this.#list.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    this.#list.replaceChildren(...runs.map((run) => el("li", {}, chip(run))));
    byId("history-bar").hidden = runs.length === 0;
    this.choose(this.#chosen);
    // The user may have scrolled on.
    if (focused) this.#buttonOf(focused)?.focus({ preventScroll: true });
  }

  /** Changes the state of a listed run. */
  update(runId, state) {
    if (this.#runs.some((run) => run.runId === runId)) {
      this.show(this.#runs.map((run) => (run.runId === runId ? { ...run, state } : run)));
    }
  }

  /** Marks the run whose output is shown. */
  choose(runId) {
    this.#chosen = runId;
    const buttons = [...this.#list.querySelectorAll("button")];
    const stop = this.#buttonOf(runId) ?? buttons[0];
    for (const button of buttons) {
      button.tabIndex = button === stop ? 0 : -1;
      button.setAttribute("aria-current", String(button.dataset.run === runId));
    }
  }

  #buttonOf(runId) {
    return this.#list.querySelector(`button[data-run="${CSS.escape(runId ?? "")}"]`);
  }

  #step(event) {
    const buttons = [...this.#list.querySelectorAll("button")];
    const at = buttons.indexOf(event.target.closest("button"));
    if (!(event.key in STEPS) || at < 0) return;
    event.preventDefault();
    const to = buttons[Math.min(Math.max(at + STEPS[event.key], 0), buttons.length - 1)];
    for (const button of buttons) button.tabIndex = button === to ? 0 : -1;
    to.focus();
    to.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function chip(run) {
  const outcome = standing(run);
  const { kind, icon: symbol, text } = describe(outcome);
  const language = visibleName(displayName(run.language)) + (run.cell ? " cell" : "");
  const took = run.state === "finished" && !run.error ? duration(run.wallMs) : "";
  const detail = took || { queued: "waiting", running: "now" }[run.state];
  const created = new Date(run.createdAt).toLocaleTimeString();
  const words = `${text}, requested at ${created}`;
  return el(
    "button",
    {
      class: "chip",
      type: "button",
      title: words,
      "data-testid": "history-run",
      "data-run": run.runId,
      "data-ended": outcome.ended,
      "data-kind": kind,
      "data-exit-code": outcome.exitCode,
    },
    icon(symbol),
    el("span", {}, language),
    el("span", { class: "chip-detail" }, detail ?? ""),
    el("span", { class: "sr-only" }, `, ${words}`),
  );
}
