// Owns the input sent to one run, and after which event each line was sent, so that lines appear in their place
// whenever the run is shown again in this tab, over a reload too.
import { store } from "./store.js";

export class TypedLines {
  #runId;
  #lines;
  #newestEvent = 0;

  constructor(runId) {
    this.#runId = runId;
    this.#lines = store.typed.filter((line) => line.runId === runId);
  }

  /** Draws a line now; `keep()` is to be called when the server has it, `remove()` when the server refuses it. */
  add(text, output) {
    const line = { text, after: this.#newestEvent, erase: output.typed(text) };
    this.#lines.push(line);
    return {
      keep: () => store.keepTyped(this.#runId, line),
      remove: () => {
        this.#lines = this.#lines.filter((other) => other !== line);
        line.erase?.();
      },
    };
  }

  /** Starts over: the run is shown again from its beginning. */
  rewind() {
    this.#newestEvent = 0;
    for (const line of this.#lines) line.erase = null;
  }

  /** Shows an event and the lines around it. The log may have dropped events, so numbers can skip. */
  event(event, output) {
    this.#draw(event.number - 1, output);
    output.event(event);
    this.#newestEvent = event.number;
    this.#draw(event.number, output);
  }

  #draw(upTo, output) {
    for (const line of this.#lines) {
      if (!line.erase && line.after <= upTo) line.erase = output.typed(line.text);
    }
  }
}
