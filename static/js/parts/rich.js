// Owns how the HTML and the Markdown that a cell shows become elements. HTML is parsed into a document that is never
// shown, runs nothing and loads nothing; what is kept of it is made anew, from a fixed set of elements with text nodes
// and almost no attributes. Bounded in elements and depth.
import "../kit.js";
import { el, linkTo } from "../dom.js";
import { visibleName, visibleText } from "../text.js";

const KEPT = new Set(
  (
    "abbr b blockquote br caption code del details div em figcaption figure hr i ins kbd li mark ol p pre s samp " +
    "small span strong sub summary sup table tbody td tfoot th thead tr u ul var"
  ).split(" "),
);
const DIVISIONS = new Set("address article aside dd dl dt footer header main nav section".split(" "));
const DROPPED = new Set(
  (
    "applet audio base button canvas dialog embed frame frameset head iframe input link map math meta noembed " +
    "noframes noscript object optgroup option progress script select style svg template textarea title video"
  ).split(" "),
);
const ONLY_ELEMENTS = new Set("table thead tbody tfoot tr ul ol".split(" "));
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+$/;
const NUMBER = /^\s*[-+−]?(\d[\d_,]*)?(\.\d+)?([eE][-+]?\d+)?\s*%?$|^\s*(nan|inf|-inf|none|<na>)\s*$/i;
const NODES_MAX = 20_000;
const DEPTH_MAX = 60;
const SPAN_MAX = 1000;

// The page's content policy wants markup to pass here, and nowhere else does it.
const policy = globalThis.trustedTypes?.createPolicy("inert-document", { createHTML: (text) => text });

/** The element of a cell's richest form that is text, or null when nothing of it can be seen. */
export async function elementOf(data) {
  const html = data["text/html"];
  const made = html === undefined ? null : htmlOf(html);
  if (made || data["text/markdown"] === undefined) return made;
  const { documentOf } = await import("./markdown.js");
  const element = documentOf(data["text/markdown"]);
  element.removeAttribute("tabindex");
  return element;
}

function htmlOf(text) {
  const parsed = new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
  const state = { left: NODES_MAX };
  const host = el("div", { class: "rich" }, ...inside(parsed.body, state, 0));
  if (state.left <= 0) host.append(el("p", { class: "placeholder" }, "The rest is not shown."));
  for (const table of host.querySelectorAll("table")) finish(table);
  return host.textContent.trim() || host.querySelector("img") ? host : null;
}

function inside(node, state, depth) {
  const made = [];
  const wordless = ONLY_ELEMENTS.has(node.localName);
  for (const child of node.childNodes) {
    if ((state.left -= 1) <= 0) break;
    if (child.nodeType === Node.TEXT_NODE) {
      if (!wordless || child.data.trim()) made.push(visibleText(child.data));
    } else if (child.nodeType === Node.ELEMENT_NODE) made.push(...elements(child, state, depth + 1));
  }
  return made;
}

function elements(node, state, depth) {
  const name = node.localName;
  if (DROPPED.has(name)) return [];
  if (depth > DEPTH_MAX) return [visibleText(node.textContent)];
  if (name === "img") return [picture(node)];
  const parts = inside(node, state, depth);
  if (name === "a") return [linkTo(node.getAttribute("href") ?? "", parts)];
  const heading = /^h([1-6])$/.exec(name);
  if (heading) return [el(`h${Math.min(Number(heading[1]) + 2, 6)}`, {}, ...parts)];
  if (name === "td" || name === "th") return [cell(node, parts)];
  if (name === "li" && !/^[uo]l$/.test(node.parentNode.localName)) return [el("div", {}, ...parts)];
  if (DIVISIONS.has(name)) return [el("div", {}, ...parts)];
  return KEPT.has(name) ? [el(name, {}, ...parts)] : parts;
}

function cell(node, parts) {
  const text = node.textContent.trim();
  const span = (name) => {
    const count = Number.parseInt(node.getAttribute(name), 10);
    return count > 1 && Math.min(count, SPAN_MAX);
  };
  return el(
    text ? node.localName : "td",
    {
      class: text && NUMBER.test(text) ? "number" : false,
      colspan: span("colspan"),
      rowspan: span("rowspan"),
    },
    ...parts,
  );
}

function picture(node) {
  const alt = visibleName(node.getAttribute("alt") ?? "");
  const src = node.getAttribute("src") ?? "";
  if (PICTURE.test(src)) return el("img", { src, alt });
  return el("span", { class: "picture" }, `Picture: ${alt}`);
}

// The head of a column of numbers stands above them; a wide table scrolls by itself.
function finish(table) {
  const rows = [...table.rows].filter((row) => row.parentNode.localName !== "thead");
  for (const head of table.querySelectorAll("thead tr")) {
    if (head.querySelector("[colspan]")) continue;
    [...head.cells].forEach((one, at) => {
      const below = rows[0]?.cells[at]?.classList.contains("number");
      one.classList.toggle("number", Boolean(below) && one.localName === "th");
    });
  }
  if (table.parentNode.closest("table")) return;
  const box = el("div", { class: "rich-table", tabindex: "0", role: "group", "aria-label": "Table" });
  table.replaceWith(box);
  box.append(table);
}
