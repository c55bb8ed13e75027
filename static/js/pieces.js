// Owns a growing text in the page that never becomes too much for it. It is laid out in pieces, of which the browser draws
// those in sight; its beginning and its end are kept, and a mark stands for what fell out between. Without a mark the text
// of the host is exactly what was appended.
import { el } from "./dom.js";

const PIECE_CHARS = 16 * 1024;
const HEAD_PIECES_MAX = 32;
const TAIL_PIECES_MAX = 32;

export class Pieces {
  #host;
  #gap = null;
  #open = null;
  #chars = 0;
  #head = 0;
  #tail = [];

  constructor(host) {
    this.#host = host;
  }

  clear() {
    this.#gap = null;
    this.#open = null;
    this.#head = 0;
    this.#tail = [];
    this.#host.replaceChildren();
  }

  /** Whether something is missing in the middle. */
  get isCut() {
    return this.#gap !== null;
  }

  append(text) {
    for (let rest = text; rest; ) {
      if (!this.#open) this.#begin();
      const end = endOfPiece(rest, PIECE_CHARS - this.#chars);
      this.#open.firstChild.appendData(rest.slice(0, end));
      this.#chars += end;
      rest = rest.slice(end);
      if (rest || this.#chars >= PIECE_CHARS) this.#close();
    }
  }

  /** Something is missing between what is there and what comes. */
  cut() {
    this.#close();
    this.#gap ??= this.#host.appendChild(gapMark());
  }

  #begin() {
    this.#open = el("span", { class: "piece" }, document.createTextNode(""));
    this.#chars = 0;
    this.#host.append(this.#open);
    if (!this.#gap && this.#head < HEAD_PIECES_MAX) {
      this.#head += 1;
      return;
    }
    this.#tail.push(this.#open);
    if (this.#tail.length <= TAIL_PIECES_MAX) return;
    if (!this.#gap) this.#gap = this.#host.insertBefore(gapMark(), this.#tail[0]);
    this.#tail.shift().remove();
  }

  #close() {
    this.#open?.classList.add("whole");
    this.#open = null;
  }
}

function gapMark() {
  return el("span", { class: "gap" }, "Some of the output is left out here.\n");
}

// Whole lines where they fit; a longer line is broken as a terminal would, never inside a surrogate pair.
function endOfPiece(text, room) {
  if (text.length <= room) return text.length;
  const newline = text.lastIndexOf("\n", room - 1);
  if (newline >= 0) return newline + 1;
  return room > 1 && /[\ud800-\udbff]/.test(text[room - 1]) ? room - 1 : Math.max(room, 1);
}
