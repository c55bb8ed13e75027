// Owns what printed text means on a terminal: control characters and escape sequences become cursor moves and styles;
// all other controls become visible signs or nothing. Knows nothing of the page.
import { PLAIN } from "./screen.js";
import { visibleText } from "./text.js";

// A sequence whose end has not arrived after so many characters is shown as text.
const SEQUENCE_CHARS_MAX = 4096;
const STEPS_MAX = 9999;

// CSI, OSC, other strings, two-character escapes, controls that act, text.
const TOKEN = new RegExp(
  [
    /\x1b\[([0-?]*)[ -/]*([@-~])/,
    /\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)/,
    /\x1b[PX^_][^\x1b\n]*\x1b\\/,
    /\x1b[ -/]*[0-OQ-WYZ`-~=>]/,
    /[\x07\x08\r\n]/,
    /[^\x07\x08\r\n\x1b]+/,
    /\x1b/,
  ]
    .map(({ source }) => source)
    .join("|"),
  "g",
);
const UNFINISHED = /\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?|[PX^_][^\x1b\n]*\x1b?|[ -/]*)$/;

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const FLAGS_OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

/** Reads one stream. Each has its own unfinished sequence and style, since the server may cut streams anywhere. */
export class Reader {
  #screen;
  #base;
  #style;
  #unfinished = "";

  /** `base` are members of every style of this stream. */
  constructor(screen, base = {}) {
    this.#screen = screen;
    this.#base = base;
    this.#style = styleOf(base);
  }

  read(text) {
    const whole = this.#unfinished + text;
    const rest = UNFINISHED.exec(whole.slice(-SEQUENCE_CHARS_MAX))?.[0] ?? "";
    this.#unfinished = rest;
    for (const [token, parameters, final] of whole.slice(0, whole.length - rest.length).matchAll(TOKEN)) {
      this.#take(token, parameters, final);
    }
  }

  /** Shows what remains of an unfinished sequence. */
  end() {
    if (this.#unfinished) this.#screen.write(visibleText(this.#unfinished), this.#style);
    this.#unfinished = "";
  }

  #take(token, parameters, final) {
    const screen = this.#screen;
    if (token === "\n") screen.newline(this.#style);
    else if (token === "\r") screen.column = 0;
    else if (token === "\b") screen.column = Math.max(screen.column - 1, 0);
    else if (final === "m") this.#style = styled(this.#style, this.#base, parameters);
    else if (final) act(screen, parameters, final);
    else if (token === "\x1b" || !"\x1b\x07".includes(token[0])) screen.write(visibleText(token), this.#style);
  }
}

function act(screen, parameters, final) {
  // Private modes, such as a hidden cursor, have no effect here.
  if (/[<-?]/.test(parameters)) return;
  const [first, second] = parameters.split(";").map((part) => Math.min(parseInt(part, 10) || 0, STEPS_MAX));
  const steps = Math.max(first, 1);
  const acts = {
    A: () => screen.moveTo(screen.row - steps),
    B: () => screen.moveTo(Math.min(screen.row + steps, screen.lastRow)),
    C: () => screen.moveTo(screen.row, screen.column + steps),
    D: () => (screen.column = Math.max(screen.column - steps, 0)),
    E: () => screen.moveTo(Math.min(screen.row + steps, screen.lastRow), 0),
    F: () => screen.moveTo(screen.row - steps, 0),
    G: () => screen.moveTo(screen.row, steps - 1),
    H: () => screen.moveTo(screen.top + steps - 1, Math.max(second ?? 1, 1) - 1),
    d: () => screen.moveTo(screen.top + steps - 1),
    J: () => screen.eraseScreen(first),
    K: () => screen.eraseLine(first),
    X: () => screen.eraseCells(steps),
    P: () => screen.deleteCells(steps),
    s: () => screen.save(),
    u: () => screen.restore(),
  };
  acts.f = acts.H;
  if (Object.hasOwn(acts, final)) acts[final]();
}

function styled(before, base, parameters) {
  const style = { ...before };
  const codes = (parameters || "0").split(/[;:]/).map((part) => parseInt(part, 10) || 0);
  while (codes.length) {
    const code = codes.shift();
    if (code === 0) {
      for (const name of Object.keys(style)) delete style[name];
      Object.assign(style, base);
    } else if (FLAGS[code]) style[FLAGS[code]] = true;
    else if (FLAGS_OFF[code]) for (const name of FLAGS_OFF[code]) delete style[name];
    else if (code === 38 || code === 48) {
      const colour = extended(codes);
      if (colour !== null) style[code === 38 ? "fg" : "bg"] = colour;
    } else if (code === 39) delete style.fg;
    else if (code === 49) delete style.bg;
    else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code >= 40 && code <= 47) style.bg = code - 40;
    else if (code >= 90 && code <= 97) style.fg = code - 82;
    else if (code >= 100 && code <= 107) style.bg = code - 92;
  }
  return styleOf(style);
}

/** A style with a key that is equal for equal styles. A colour is 0 to 15 of the palette, or a text `r g b`. */
export function styleOf({ key: _, ...members }) {
  const key = Object.entries(members)
    .map(([name, value]) => `${name}=${value}`)
    .sort()
    .join();
  return key ? { ...members, key } : PLAIN;
}

// `5;n` is one of 256 colours, `2;r;g;b` a colour by its parts.
function extended(codes) {
  const form = codes.shift();
  if (form === 2) return codes.splice(0, 3).map(byte).join(" ");
  if (form !== 5) return null;
  const index = byte(codes.shift() ?? 0);
  if (index < 16) return index;
  if (index >= 232)
    return Array(3)
      .fill(8 + (index - 232) * 10)
      .join(" ");
  const step = (value) => (value ? 55 + value * 40 : 0);
  const cube = index - 16;
  return [step(Math.floor(cube / 36)), step(Math.floor(cube / 6) % 6), step(cube % 6)].join(" ");
}

function byte(value) {
  return Math.min(Math.max(value, 0), 255);
}
