// Owns the terminal on the page: what both streams print, in the order it came, drawn at most once a frame. Bounded:
// the beginning and the end are kept, laid out in pieces of which the browser draws those in view. Text gets in as text
// nodes and colours as numbers, so no output can become markup.
import { Reader, styleOf } from "./ansi.js";
import { byId, el } from "./dom.js";
import { copy } from "./page.js";
import { Screen } from "./screen.js";
import { bytes, plural, visibleText } from "./text.js";

const FRAME_MS = 16;
const PIECE_CHARS = 16 * 1024;
const PIECE_NODES = 400;
const HEAD_PIECES_MAX = 32;
const TAIL_PIECES_MAX = 32;
const TYPED_CHARS_MAX = 4096;
// Within this distance of the end, the view scrolls along with new output.
const NEAR_PX = 24;
// A scroll this long after the wheel, a key or a finger is the user's.
const GESTURE_MS = 1000;
const PALETTE = [
  "0 0 0",
  "205 49 49",
  "13 188 121",
  "229 229 16",
  "36 114 200",
  "188 63 188",
  "17 168 205",
  "229 229 229",
  "102 102 102",
  "241 76 76",
  "35 209 139",
  "245 245 67",
  "59 142 234",
  "214 112 214",
  "41 184 219",
  "255 255 255",
];
const FLAGS = ["bold", "dim", "italic", "underline", "strike", "typed"];
const decoder = new TextDecoder();
const encoder = new TextEncoder();

export class Terminal {
  #pre = byId("terminal");
  #done = el("span");
  #live = el("span");
  #screen;
  #readers;
  #printed;
  #binary;
  #timer = 0;
  #drawnAt = 0;
  #follows = true;
  #gestureAt = -Infinity;
  #typedCount = 0;
  #gap;
  #piece;
  #heads;
  #tails;

  constructor() {
    this.#pre.append(this.#done, this.#live);
    for (const gesture of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      this.#pre.addEventListener(gesture, () => (this.#gestureAt = performance.now()), { passive: true });
    }
    this.#pre.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    // A notice, an image or a dragged edge changes its height.
    new ResizeObserver(() => this.#toEnd()).observe(this.#pre);
    byId("terminal-end").addEventListener("click", () => {
      this.#follows = true;
      this.#toEnd();
      this.#pre.focus({ preventScroll: true });
    });
    byId("terminal-copy").addEventListener("click", () => {
      const text = this.#text();
      copy(text, `Copied ${plural(text.length, "character")}.`);
    });
    for (const name of ["stdout", "stderr"]) {
      byId(`${name}-note`).addEventListener("click", ({ currentTarget }) => {
        const shown = currentTarget.getAttribute("aria-pressed") !== "true";
        currentTarget.setAttribute("aria-pressed", String(shown));
        this.#pre.classList.toggle(`without-${name}`, !shown);
        this.#toEnd();
      });
    }
    this.clear();
  }

  /** Whether nothing was printed. */
  get isEmpty() {
    return this.#printed.stdout + this.#printed.stderr === 0;
  }

  /** Whether the last line has no newline yet, as that of a prompt. */
  get isInLine() {
    return this.#screen.isInLine;
  }

  clear() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#screen = new Screen();
    this.#readers = {
      stdout: new Reader(this.#screen),
      stderr: new Reader(this.#screen, { stderr: true }),
    };
    this.#printed = { stdout: 0, stderr: 0 };
    this.#binary = { stdout: false, stderr: false };
    this.#follows = true;
    this.#gap = null;
    this.#piece = null;
    this.#heads = 0;
    this.#tails = [];
    this.#done.replaceChildren();
    this.#live.replaceChildren();
    this.#pre.classList.remove("without-stdout", "without-stderr");
    for (const name of ["stdout", "stderr"]) byId(`${name}-note`).setAttribute("aria-pressed", "true");
    byId("terminal-box").hidden = true;
    byId("terminal-end").hidden = true;
  }

  /** Appends an event of a stream: `text`, or `base64` of bytes that are not UTF-8. */
  print(name, { text, base64 }) {
    let printed = text ?? "";
    if (base64 !== undefined) {
      const raw = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
      this.#binary[name] = true;
      this.#printed[name] += raw.length;
      printed = decoder.decode(raw);
    } else this.#printed[name] += encoder.encode(printed).length;
    this.#readers[name].read(printed);
    this.#timer ||= setTimeout(() => this.#draw(), Math.max(0, this.#drawnAt + FRAME_MS - performance.now()));
  }

  /** Shows a sent line at the cursor and scrolls to the end; returns a function that removes it. */
  typed(text) {
    const screen = this.#screen;
    const style = styleOf({ typed: true, number: (this.#typedCount += 1) });
    const shown = text.length > TYPED_CHARS_MAX ? `${text.slice(0, TYPED_CHARS_MAX)}…\n` : text;
    for (const line of shown.split(/(?<=\n)/)) {
      screen.write(visibleText(line.replace(/\n$/, "")), style);
      if (line.endsWith("\n")) screen.newline(style);
    }
    this.#follows = true;
    this.#draw();
    return () => {
      if (screen !== this.#screen) return;
      screen.erase(style);
      this.#draw();
      if (!this.#pre.textContent) byId("terminal-box").hidden = true;
    };
  }

  /** Marks missing output between the text so far and what follows. */
  cut() {
    this.#screen.finish();
    this.#draw();
    byId("terminal-box").hidden = false;
    this.#close();
    this.#gap ??= this.#done.appendChild(gapMark());
    this.#describe();
  }

  /** Ends both streams; `total` is how many bytes the program printed to each. */
  end(total = {}) {
    for (const [name, reader] of Object.entries(this.#readers)) {
      reader.end();
      if (Number.isFinite(total[name])) this.#printed[name] = total[name];
    }
    this.#draw();
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#drawnAt = performance.now();
    for (const row of this.#screen.takeFinal()) this.#settle(row);
    const elements = this.#screen.rows.map((row) => {
      if (row.changed || !row.element) row.element = update(row.element ?? el("span", { class: "row" }), row);
      row.changed = false;
      return row.element;
    });
    elements.forEach((element, at) => {
      if (this.#live.children[at] !== element) this.#live.insertBefore(element, this.#live.children[at] ?? null);
    });
    while (this.#live.children.length > elements.length) this.#live.lastChild.remove();
    if (!this.isEmpty || this.#pre.textContent) byId("terminal-box").hidden = false;
    this.#describe();
    this.#toEnd();
  }

  // Adds a final row to the newest piece; neighbouring rows of one stream share an element and its text node.
  #settle(row) {
    row.element?.remove();
    const size = row.width + 1;
    const nodes = row.segments.length;
    if (!this.#piece || this.#piece.chars + size > PIECE_CHARS || this.#piece.nodes + nodes > PIECE_NODES) this.#open();
    const stderr = isStderr(row);
    let group = this.#piece.element.lastElementChild;
    if (!group || group.classList.contains("stderr") !== stderr || group.classList.contains("mixed") || isMixed(row)) {
      group = this.#piece.element.appendChild(el("span", { class: "row" }));
      label(group, row);
      this.#piece.nodes += 1;
    }
    draw(group, row);
    this.#piece.chars += size;
    this.#piece.nodes += nodes;
  }

  #open() {
    this.#close();
    this.#piece = { element: el("span", { class: "piece" }), chars: 0, nodes: 0 };
    this.#done.append(this.#piece.element);
    if (!this.#gap && this.#heads < HEAD_PIECES_MAX) {
      this.#heads += 1;
      return;
    }
    this.#tails.push(this.#piece.element);
    if (this.#tails.length <= TAIL_PIECES_MAX) return;
    if (!this.#gap) this.#gap = this.#done.insertBefore(gapMark(), this.#tails[0]);
    this.#tails.shift().remove();
  }

  #close() {
    this.#piece?.element.classList.add("whole");
    this.#piece = null;
  }

  // The text as shown, with the mark for missing output, without typed input.
  #text() {
    this.#draw();
    const copied = this.#pre.cloneNode(true);
    for (const mark of copied.querySelectorAll(".typed")) mark.remove();
    for (const name of ["stdout", "stderr"]) {
      if (!this.#pre.classList.contains(`without-${name}`)) continue;
      for (const row of copied.querySelectorAll(name === "stderr" ? ".row.stderr" : ".row:not(.stderr, .mixed)"))
        row.remove();
    }
    return copied.textContent;
  }

  // Only a gesture of the user stops following: layout, new output and a shrinking view scroll too.
  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.#pre;
    const near = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    if (near) this.#follows = true;
    else if (performance.now() - this.#gestureAt < GESTURE_MS) this.#follows = false;
    byId("terminal-end").hidden = this.#follows;
  }

  #toEnd() {
    if (this.#follows) this.#pre.scrollTop = this.#pre.scrollHeight;
    byId("terminal-end").hidden = this.#follows;
  }

  #describe() {
    for (const name of ["stdout", "stderr"]) {
      const note = byId(`${name}-note`);
      note.hidden = this.#printed[name] === 0;
      const parts = [bytes(this.#printed[name]), this.#binary[name] && "partly binary"];
      note.querySelector("span").textContent = parts.filter(Boolean).join(" · ");
    }
    const { stdout, stderr } = this.#printed;
    const cutText = `Cut short: the program printed ${bytes(stdout + stderr)}`;
    byId("terminal-cut").textContent = this.#gap ? cutText : "";
  }
}

function isStderr(row) {
  return row.segments[0]?.style.stderr ?? row.end?.stderr ?? false;
}

function isMixed(row) {
  return row.segments.some(({ style }) => !style.typed && (style.stderr ?? false) !== isStderr(row));
}

function label(element, row) {
  const stderr = isStderr(row);
  element.className = `row${stderr ? " stderr" : ""}${isMixed(row) ? " mixed" : ""}`;
  if (stderr) {
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", "Standard error");
  } else {
    element.removeAttribute("role");
    element.removeAttribute("aria-label");
  }
}

function update(element, row) {
  label(element, row);
  element.replaceChildren();
  draw(element, row);
  return element;
}

// Appends a row's text to an element.
function draw(element, row) {
  const stderr = isStderr(row);
  for (const { text, style } of row.segments) put(element, text, style, stderr);
  if (row.end) put(element, "\n", row.end.typed ? row.end : {}, stderr);
}

function put(element, text, style, stderr) {
  const other = !style.typed && text !== "\n" && (style.stderr ?? false) !== stderr;
  const names = FLAGS.filter((flag) => style[flag]);
  if (other) names.push(stderr ? "from-stdout" : "from-stderr");
  let { fg, bg } = style;
  if (style.inverse) {
    if (fg === undefined && bg === undefined) names.push("inverse");
    [fg, bg] = [bg, fg];
  }
  if (!names.length && fg === undefined && bg === undefined) {
    if (element.lastChild?.nodeType === Node.TEXT_NODE) element.lastChild.appendData(text);
    else element.append(text);
    return;
  }
  const span = el(style.typed && text !== "\n" ? "kbd" : "span", {}, text);
  if (bg !== undefined) {
    span.style.backgroundColor = `rgb(${numbers(bg)})`;
    span.style.color = fg === undefined ? (isLight(numbers(bg)) ? "#000" : "#fff") : `rgb(${numbers(fg)})`;
  } else if (typeof fg === "number") names.push(`fg${fg}`);
  else if (fg !== undefined) {
    // The style sheet makes it as light or dark as the theme needs.
    names.push("fg");
    span.style.setProperty("--fg", `rgb(${fg})`);
  }
  span.className = names.join(" ");
  element.append(span);
}

function numbers(colour) {
  return typeof colour === "number" ? PALETTE[colour] : colour;
}

function isLight(colour) {
  const [red, green, blue] = colour.split(" ");
  return red * 0.299 + green * 0.587 + blue * 0.114 > 128;
}

function gapMark() {
  return el("span", { class: "gap" }, "Some of the output is left out here.\n");
}
