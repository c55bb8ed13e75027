// Owns making and finding elements. Text is always inserted as text nodes; no code of the page inserts
// parsed markup.
import { visibleText } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found;
}

/** An element with attributes (false and undefined omit one) and children (strings become text). */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element that leads to another site in a new window; only its words where the address is of no such kind. */
export function linkTo(address, words) {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (!url || !["https:", "http:", "mailto:"].includes(url.protocol)) return el("span", {}, ...words);
  return el(
    "a",
    { href: url.href, target: "_blank", rel: "noopener noreferrer", title: visibleText(url.href) },
    ...words,
  );
}

/** One of the symbols of shared/symbols.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** Sets a text and shows the element, or hides it when there is none. */
export function showText(element, text) {
  element.textContent = text ?? "";
  element.hidden = !text;
}
