// Owns the view of a Markdown file: the parser's tree becomes elements of a fixed set, with text nodes. Markup inside
// is shown as text; links lead to other sites in a new window, and pictures are named, not loaded.
import "../kit.js";
import { GFM, parser } from "@lezer/markdown";
import { el, linkTo } from "../dom.js";
import { visibleText } from "../text.js";

const BLOCKS = {
  Paragraph: "p",
  Blockquote: "blockquote",
  BulletList: "ul",
  OrderedList: "ol",
  ListItem: "li",
  HorizontalRule: "hr",
  TableHeader: "tr",
  TableRow: "tr",
  Emphasis: "em",
  StrongEmphasis: "strong",
  Strikethrough: "del",
  HardBreak: "br",
};
const DROPPED = /Mark$|^(LinkTitle|LinkLabel|LinkReference|TableDelimiter|CodeInfo|Comment|CommentBlock)$/;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const DEPTH_MAX = 60;

/** The element of a document. */
export function documentOf(text) {
  const source = text.replaceAll("\r\n", "\n");
  const tree = parser.configure(GFM).parse(source);
  const host = el("article", { class: "markdown", tabindex: "0" });
  host.append(...inside(tree.topNode, source, 0, false));
  return host;
}

// The children of a node, and with `text` what is written between them.
function inside(node, source, depth, text = true) {
  const made = [];
  let at = node.from;
  const write = (to) => {
    if (text && to > at) made.push(visibleText(source.slice(at, to)));
  };
  for (let child = node.firstChild; child; child = child.nextSibling) {
    write(child.from);
    made.push(...elements(child, source, depth + 1));
    at = child.to;
  }
  write(node.to);
  return made;
}

function elements(node, source, depth) {
  const { name, from, to } = node;
  const raw = () => visibleText(source.slice(from, to));
  if (depth > DEPTH_MAX) return [raw()];
  if (name === "TaskMarker") return [box(source.slice(from, to))];
  if (DROPPED.test(name)) return [];
  const heading = /Heading(\d)$/.exec(name);
  if (heading) return [el(`h${Math.min(Number(heading[1]) + 2, 6)}`, {}, ...trimmed(inside(node, source, depth)))];
  if (name === "FencedCode" || name === "CodeBlock")
    return [el("pre", { tabindex: "0" }, el("code", {}, codeOf(node, source)))];
  if (name === "InlineCode") return [el("code", {}, codeBetween(node, source))];
  if (name === "Link") return [link(node, source, depth)];
  if (name === "Autolink" || name === "URL") return [linkTo(source.slice(from, to).replace(/^<|>$/g, ""), [raw()])];
  if (name === "Image")
    return [el("span", { class: "picture" }, "Picture: ", ...inside(node, source, depth).slice(0, 1))];
  if (name === "Escape") return [visibleText(source.slice(from + 1, to))];
  if (name === "Entity") return [entity(source.slice(from, to))];
  if (name === "Table") return [el("table", {}, ...inside(node, source, depth, false))];
  if (name === "TableCell") {
    return [el(node.parent.name === "TableHeader" ? "th" : "td", {}, ...inside(node, source, depth))];
  }
  if (name === "Task") return inside(node, source, depth);
  if (name === "HTMLBlock" || name === "ProcessingInstructionBlock") return [el("pre", { tabindex: "0" }, raw())];
  if (!Object.hasOwn(BLOCKS, name)) return [raw()];
  const holdsText = /^(Paragraph|Emphasis|StrongEmphasis|Strikethrough)$/.test(name);
  return [el(BLOCKS[name], {}, ...inside(node, source, depth, holdsText))];
}

function trimmed(parts) {
  if (typeof parts[0] === "string") parts[0] = parts[0].trimStart();
  if (typeof parts.at(-1) === "string") parts[parts.length - 1] = parts.at(-1).trimEnd();
  return parts;
}

function codeOf(node, source) {
  return node
    .getChildren("CodeText")
    .map(({ from, to }) => visibleText(source.slice(from, to)))
    .join("");
}

function codeBetween({ firstChild, lastChild }, source) {
  return visibleText(source.slice(firstChild.to, lastChild.from).replace(/\n/g, " "));
}

function link(node, source, depth) {
  const url = node.getChild("URL");
  const marks = node.getChildren("LinkMark");
  // The text is between the first two marks.
  const words = [];
  let at = marks[0].to;
  const end = marks[1]?.from ?? node.to;
  for (let child = node.firstChild; child && child.from < end; child = child.nextSibling) {
    if (child.from < at) continue;
    words.push(visibleText(source.slice(at, child.from)), ...elements(child, source, depth + 1));
    at = child.to;
  }
  words.push(visibleText(source.slice(at, end)));
  return linkTo(url ? source.slice(url.from, url.to) : "", words);
}

function entity(text) {
  const name = text.slice(1, -1);
  const code = /^#(?:x([0-9a-f]{1,6})|(\d{1,7}))$/i.exec(name);
  if (!code) return ENTITIES[name] ?? text;
  const point = code[1] ? parseInt(code[1], 16) : Number(code[2]);
  return point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point < 0xe000)
    ? visibleText(String.fromCodePoint(point))
    : text;
}

function box(marker) {
  return el("input", {
    type: "checkbox",
    disabled: true,
    checked: /x/i.test(marker),
    "aria-label": /x/i.test(marker) ? "done" : "to do",
  });
}
