// Owns what a person typed to one run, and after which of its events: whenever the run is shown anew in this tab, each line
// is drawn where it was typed.
export class Typed {
  #lines = [];
  #told = 0;

  /** Draws a line now; returns how to take it back. */
  add(text, output) {
    const line = { text, after: this.#told, erase: output.typed(text) };
    this.#lines.push(line);
    return () => {
      this.#lines = this.#lines.filter((other) => other !== line);
      line.erase?.();
    };
  }

  /** The run is shown from its beginning. */
  rewind() {
    this.#told = 0;
    for (const line of this.#lines) line.erase = null;
  }

  /** Tells an event, and what was typed before and after it. Events that are no longer kept are missing in between. */
  tell(event, output) {
    this.#draw(event.number - 1, output);
    output.event(event);
    this.#told = event.number;
    this.#draw(event.number, output);
  }

  #draw(upTo, output) {
    for (const line of this.#lines) {
      if (!line.erase && line.after <= upTo) line.erase = output.typed(line.text);
    }
  }
}
