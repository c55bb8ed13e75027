// Owns a growing text of bounded size. It is laid out in pieces, of which the browser draws those in view; the
// beginning and the end are kept, and a mark replaces what is dropped between them. Typed input is shown in its place
// and is not part of the text.
import { el } from "./dom.js";

const PIECE_CHARS = 16 * 1024;
const HEAD_PIECES_MAX = 32;
const TAIL_PIECES_MAX = 32;

export class Pieces {
  #host;
  #gap = null;
  #open = null;
  #end = null;
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

  get isCut() {
    return this.#gap !== null;
  }

  /** The appended text with the mark for missing output, without typed input. */
  get text() {
    const copy = this.#host.cloneNode(true);
    for (const mark of copy.querySelectorAll(".typed")) mark.remove();
    return copy.textContent;
  }

  append(text) {
    for (let rest = text; rest;) {
      if (!this.#open) this.#begin();
      const end = endOfPiece(rest, PIECE_CHARS - this.#chars);
      this.#end.appendData(rest.slice(0, end));
      this.#chars += end;
      rest = rest.slice(end);
      if (rest || this.#chars >= PIECE_CHARS) this.#close();
    }
  }

  /** Inserts typed lines; returns their element. */
  typed(lines) {
    if (!this.#open) this.#begin();
    const mark = el("span", { class: "typed" }, ...lines.flatMap((line) => [el("kbd", {}, line), "\n"]));
    this.#end = document.createTextNode("");
    this.#open.append(mark, this.#end);
    this.#chars += mark.textContent.length;
    if (this.#chars >= PIECE_CHARS) this.#close();
    return mark;
  }

  /** Marks missing text at this place. */
  cut() {
    this.#close();
    this.#gap ??= this.#host.appendChild(gapMark());
  }

  #begin() {
    this.#end = document.createTextNode("");
    this.#open = el("span", { class: "piece" }, this.#end);
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

// Ends after a whole line where one fits; otherwise inside the line, but never inside a surrogate pair.
function endOfPiece(text, room) {
  if (text.length <= room) return text.length;
  const newline = text.lastIndexOf("\n", room - 1);
  if (newline >= 0) return newline + 1;
  return room > 1 && /[\ud800-\udbff]/.test(text[room - 1]) ? room - 1 : Math.max(room, 1);
}
