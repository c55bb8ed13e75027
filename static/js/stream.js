// Owns how one stream of output is shown. A long text is laid out in pieces, of which the browser draws those in sight, so
// that a megabyte costs no more than a page of it. The text of the <pre> as a whole stays exactly what is shown.
import { byId, el } from "./dom.js";
import { announce } from "./page.js";
import { bytes, plural, visibleOutput } from "./text.js";

const PIECE_CHARS = 16 * 1024;

export class Stream {
  #pre;
  #block;
  #note;

  /** `name` is `stdout` or `stderr`, as in the ids of index.html. */
  constructor(name) {
    this.#pre = byId(name);
    this.#block = byId(`${name}-block`);
    this.#note = byId(`${name}-note`);
    byId(`${name}-copy`).addEventListener("click", () => copy(this.#pre.textContent));
  }

  clear() {
    this.#pre.textContent = "";
    this.#block.hidden = true;
  }

  /** `total` is how much the program printed, which is more than `text` when that is cut short. */
  show(text = "", truncated = false, total = undefined) {
    const shown = visibleOutput(text);
    if (shown.length <= PIECE_CHARS) this.#pre.textContent = shown;
    else this.#pre.replaceChildren(...pieces(shown).map((piece) => el("span", { class: "piece" }, piece)));
    this.#block.hidden = text === "" && !truncated;
    const size = Number.isFinite(total) ? bytes(total) : "";
    this.#note.classList.toggle("cut", truncated);
    this.#note.textContent = truncated ? `Cut short: the program printed ${size || "more than is kept"}` : size;
  }
}

// Whole lines where they fit; a longer line is broken as a terminal would, never inside a surrogate pair.
function pieces(text) {
  const cut = [];
  for (let start = 0; start < text.length; ) {
    let end = Math.min(start + PIECE_CHARS, text.length);
    const newline = text.lastIndexOf("\n", end - 1);
    if (end < text.length && newline > start) end = newline + 1;
    else if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end -= 1;
    cut.push(text.slice(start, end));
    start = end;
  }
  return cut;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`Copied ${plural(text.length, "character")}.`);
  } catch {
    announce("The browser did not allow copying.");
  }
}
