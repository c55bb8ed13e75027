// Owns what a cell shows beside its text: pictures, tables and Markdown in the order they came, what an update
// replaces, and what a clear removes. What turns HTML and Markdown into elements is loaded with the first of them.
import { byId, el } from "./dom.js";
import { visibleName, visibleText } from "./text.js";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
const SVG = "image/svg+xml";
const OTHERS = /^(text\/|application\/([\w.-]+\+)?json$)/;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
// The text of an object that has another form; the server leaves it out of the output.
const IS_REPR = /^(<.*>|Figure\(\))$/;
const STORED = /^figure-[0-9a-f]{6}-\d+\.\w+$/;
const ALT_CHARS_MAX = 200;

export class Displays {
  #box = byId("displays");
  /** The elements that an update replaces, by display id. */
  #named = new Map();
  /** The newest filling of each element: an older one that takes longer is dropped. */
  #filling = new WeakMap();
  /** The sizes in bytes of the pictures that were shown: the run stores each as a file too. */
  #sizes = [];

  /** Whether nothing is shown. */
  get isEmpty() {
    return ![...this.#box.children].some((element) => !element.hidden);
  }

  /** Begins another run. */
  reset() {
    this.clear();
    this.#sizes = [];
  }

  /** Removes what is shown. */
  clear() {
    this.#named.clear();
    this.#box.replaceChildren();
    this.#box.hidden = true;
  }

  /** Shows an event of a cell that has more forms than its text. */
  show({ kind, displayId, data = {} }) {
    const isUpdate = kind === "update";
    const known = isUpdate ? (this.#named.get(displayId) ?? []) : [];
    const elements = known.length ? known : [this.#box.appendChild(el("div", { class: "display", hidden: true }))];
    for (const element of elements) this.#fill(element, data, isUpdate);
    if (!known.length && displayId !== undefined) {
      this.#named.set(displayId, [...(this.#named.get(displayId) ?? []), ...elements]);
    }
    this.#box.hidden = this.isEmpty;
  }

  /** Whether a file of the run is a picture that was shown; true once for each. */
  holds({ path, size }) {
    const at = STORED.test(path) ? this.#sizes.indexOf(size) : -1;
    if (at >= 0) this.#sizes.splice(at, 1);
    return at >= 0;
  }

  async #fill(element, data, isUpdate) {
    const filling = {};
    this.#filling.set(element, filling);
    const picture = this.#picture(data, isUpdate);
    if (picture) return put(element, picture);
    if (data["text/html"] === undefined && data["text/markdown"] === undefined) {
      return put(element, otherText(data, isUpdate));
    }
    element.dataset.loading = "";
    element.hidden = false;
    const made = await rich(data);
    if (this.#filling.get(element) !== filling) return;
    delete element.dataset.loading;
    put(element, made);
    this.#box.hidden = this.isEmpty;
  }

  #picture(data, isUpdate) {
    const alt = visibleName((data["text/plain"] ?? "").slice(0, ALT_CHARS_MAX)) || "A picture that the cell shows";
    for (const type of PICTURES) {
      const digits = data[type]?.replace(/\s/g, "");
      if (!digits || !BASE64.test(digits)) continue;
      if (!isUpdate) this.#sizes.push(Math.floor((digits.replace(/=/g, "").length * 3) / 4));
      return imageOf(`data:${type};base64,${digits}`, alt);
    }
    // As a picture, a drawing runs no script and loads nothing.
    return data[SVG] ? imageOf(`data:${SVG},${encodeURIComponent(data[SVG].toWellFormed())}`, alt) : null;
  }
}

function put(element, made) {
  element.replaceChildren(...(made ? [made] : []));
  element.hidden = !made;
}

// The text of everything but an update is in the terminal already.
function otherText(data, isUpdate) {
  const plain = data["text/plain"];
  const type = plain === undefined ? Object.keys(data).find((name) => OTHERS.test(name)) : "text/plain";
  if (!type || (plain !== undefined && !isUpdate)) return null;
  return el("pre", { tabindex: "0" }, visibleText(data[type]));
}

async function rich(data) {
  try {
    const { elementOf } = await import("./parts/rich.js");
    const made = await elementOf(data);
    if (made) return made;
  } catch {
    return el("p", { class: "placeholder" }, "This cannot be shown.");
  }
  const hasText = data["text/plain"] !== undefined && !IS_REPR.test(data["text/plain"].trim());
  return hasText ? null : el("p", { class: "placeholder" }, "A page with scripts. Open it from the list of files.");
}

function imageOf(src, alt) {
  const image = el("img", { src, alt, decoding: "async" });
  image.addEventListener("error", () =>
    image.replaceWith(el("p", { class: "placeholder" }, "This picture cannot be shown.")),
  );
  return image;
}
