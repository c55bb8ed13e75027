// Owns the running clock: how long the program has run so far by this page's clock. The server's own figure replaces it
// at the end.
import { byId, showText } from "./dom.js";
import { duration } from "./text.js";

const TICK_MS = 100;

export class Clock {
  #timer = 0;
  #face = byId("wall");

  get isRunning() {
    return this.#timer !== 0;
  }

  /** Starts at `elapsed` milliseconds. */
  start(elapsed = 0) {
    this.stop();
    const began = performance.now() - elapsed;
    const show = () => showText(this.#face, running(performance.now() - began));
    show();
    this.#timer = setInterval(show, TICK_MS);
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
  }

  /** Stops and shows a figure, or nothing. */
  settle(milliseconds) {
    this.stop();
    showText(this.#face, duration(milliseconds));
  }
}

// One decimal, so that the width stays the same within a minute.
function running(milliseconds) {
  if (milliseconds >= 60_000) return duration(milliseconds);
  return `${(Math.floor(milliseconds / TICK_MS) / 10).toFixed(1)} s`;
}
