// Owns one output stream on the page while it grows: bounded, inert, and drawn at most once a frame. Bytes that are not
// text, missing output and typed input are marked.
import { byId } from "./dom.js";
import { announce } from "./page.js";
import { Pieces } from "./pieces.js";
import { bytes, plural, visibleOutput } from "./text.js";

const FRAME_MS = 16;
// Within this distance of the end, the view scrolls along with new output.
const NEAR_PX = 24;
const TYPED_CHARS_MAX = 4096;
const encoder = new TextEncoder();
const decoder = new TextDecoder();

export class Stream {
  #pre;
  #block;
  #note;
  #pieces;
  #waiting = [];
  #timer = 0;
  #drawnAt = 0;
  #follows = true;
  #heldBack = "";
  #inLine = false;
  #printed = 0;
  #binary = false;

  /** `name` is `stdout` or `stderr`, as in the ids of index.html. */
  constructor(name) {
    this.#pre = byId(name);
    this.#block = byId(`${name}-block`);
    this.#note = byId(`${name}-note`);
    this.#pieces = new Pieces(this.#pre);
    this.#pre.addEventListener(
      "scroll",
      () => {
        const { scrollTop, clientHeight, scrollHeight } = this.#pre;
        this.#follows = scrollHeight - scrollTop - clientHeight < NEAR_PX;
      },
      { passive: true },
    );
    // Another stream, a notice or a rotated phone changes its height.
    new ResizeObserver(() => this.#toEnd()).observe(this.#pre);
    byId(`${name}-copy`).addEventListener("click", () => copy(this.#pieces.text));
  }

  /** Whether nothing was printed to it. */
  get isEmpty() {
    return this.#printed === 0;
  }

  /** Whether the last line has no newline yet. */
  get isInLine() {
    return this.#inLine;
  }

  clear() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#waiting = [];
    this.#heldBack = "";
    this.#inLine = false;
    this.#printed = 0;
    this.#binary = false;
    this.#follows = true;
    this.#pieces.clear();
    this.#block.hidden = true;
  }

  /** Appends an event: `text`, or `base64` of bytes that are not UTF-8. */
  print({ text, base64 }) {
    if (base64 !== undefined) {
      const raw = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
      this.#binary = true;
      this.#printed += raw.length;
      this.#add(decoder.decode(raw));
    } else if (text) {
      this.#printed += encoder.encode(text).length;
      this.#add(text);
    }
  }

  /** Shows typed lines here and scrolls to the end; returns a function that removes them. */
  typed(text) {
    this.#draw();
    this.#block.hidden = false;
    this.#inLine = false;
    const shown = text.length > TYPED_CHARS_MAX ? `${text.slice(0, TYPED_CHARS_MAX)}…` : text.replace(/\n$/, "");
    const mark = this.#pieces.typed(visibleOutput(shown).split("\n"));
    this.#follows = true;
    this.#toEnd();
    return () => {
      mark.remove();
      if (!this.#pre.textContent) this.#block.hidden = true;
    };
  }

  /** Marks missing output between the text so far and what follows. */
  cut() {
    this.#draw();
    this.#block.hidden = false;
    this.#pieces.cut();
  }

  /** Ends the stream; `total` is how many bytes the program printed. */
  end(total) {
    const rest = this.#heldBack;
    this.#heldBack = "";
    if (rest) this.#waiting.push(visibleOutput(rest));
    if (Number.isFinite(total)) this.#printed = total;
    this.#draw();
  }

  // A trailing carriage return may be the first half of CRLF, so it waits for the next text.
  #add(text) {
    this.#inLine = !text.endsWith("\n");
    const whole = this.#heldBack + text;
    this.#heldBack = whole.endsWith("\r") ? "\r" : "";
    this.#waiting.push(visibleOutput(this.#heldBack ? whole.slice(0, -1) : whole));
    if (!this.#timer)
      this.#timer = setTimeout(() => this.#draw(), Math.max(0, this.#drawnAt + FRAME_MS - performance.now()));
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#drawnAt = performance.now();
    const text = this.#waiting.join("");
    this.#waiting = [];
    if (text) {
      this.#block.hidden = false;
      this.#pieces.append(text);
      this.#toEnd();
    }
    this.#describe();
  }

  #toEnd() {
    if (this.#follows) this.#pre.scrollTop = this.#pre.scrollHeight;
  }

  #describe() {
    const cut = this.#pieces.isCut;
    const size = bytes(this.#printed);
    const parts = [cut ? `Cut short: the program printed ${size}` : size, this.#binary && "not all of it is text"];
    this.#note.classList.toggle("cut", cut || this.#binary);
    this.#note.textContent = parts.filter(Boolean).join(" · ");
  }
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`Copied ${plural(text.length, "character")}.`);
  } catch {
    announce("The browser did not allow copying.");
  }
}
