// Owns tables: text with separators taken apart, and the element that shows rows. Bounded in rows, columns and cells.
import "../kit.js";
import { el } from "../dom.js";
import { plural, visibleText } from "../text.js";

const ROWS_MAX = 1000;
const COLUMNS_MAX = 100;
const CELL_CHARS_MAX = 500;
const NUMBER_CHARS_MAX = 64;
const NUMBER = /^([-+]?(\d[\d_,]*)?(\.\d+)?([eE][-+]?\d+)?\s*%?|nan|inf)$/i;

/** A table of a CSV or TSV text, or with `isCut` of its beginning; its first row is the head. */
export function tableOf(text, path, isCut) {
  const separator = path.toLowerCase().endsWith(".tsv") ? "\t" : separatorOf(text);
  const { rows, complete } = parse(text.replace(/^\ufeff/, ""), separator);
  // The last row that was read may be a part of one.
  if (isCut && complete) rows.pop();
  const [head = [], ...body] = rows;
  return table(head, body, complete && !isCut ? "" : `The first ${plural(body.length, "row")} of the file.`);
}

/** The element of a table. */
export function table(head, rows, note) {
  const width = Math.min(Math.max(head.length, ...rows.map((row) => row.length), 0), COLUMNS_MAX);
  const columns = [...Array(width).keys()];
  const numeric = columns.map((at) => rows.length > 0 && rows.every((row) => isNumber(row[at] ?? "")));
  const cell = (tag, row, at, attributes) =>
    el(tag, { ...attributes, class: numeric[at] ? "number" : false }, shown(row[at] ?? ""));
  const body = rows.map((row, index) =>
    el("tr", {}, el("th", { scope: "row" }, String(index + 1)), ...columns.map((at) => cell("td", row, at))),
  );
  const top = el("tr", {}, el("td", {}), ...columns.map((at) => cell("th", head, at, { scope: "col" })));
  const notes = [note, head.length > width && `${head.length - width} more columns are not shown.`].filter(Boolean);
  return el(
    "div",
    { class: "table-box", tabindex: "0", role: "group", "aria-label": "Table" },
    notes.length ? el("p", { class: "table-note" }, notes.join(" ")) : null,
    el("table", {}, el("thead", {}, top), el("tbody", {}, ...body)),
  );
}

function separatorOf(text) {
  const line = text.slice(0, text.search(/\r?\n|$/));
  const count = (separator) => line.split(separator).length;
  return [",", ";", "\t", "|"].reduce((best, one) => (count(one) > count(best) ? one : best));
}

// RFC 4180, with any separator.
function parse(text, separator) {
  const rows = [];
  let row = [];
  let at = 0;
  while (at < text.length && rows.length <= ROWS_MAX) {
    let value = "";
    if (text[at] === '"') {
      let end = at + 1;
      for (;;) {
        const quote = text.indexOf('"', end);
        const stop = quote < 0 ? text.length : quote;
        value += text.slice(end, stop);
        end = stop + 1;
        if (text[end] !== '"') break;
        value += '"';
        end += 1;
      }
      at = end;
    }
    const rest = at;
    while (at < text.length && text[at] !== separator && text[at] !== "\n" && text[at] !== "\r") at += 1;
    row.push(value + text.slice(rest, at));
    if (text[at] === separator) {
      at += 1;
      if (at < text.length) continue;
      row.push("");
    }
    if (text[at] === "\r" && text[at + 1] === "\n") at += 1;
    at += 1;
    rows.push(row);
    row = [];
  }
  return { rows: rows.slice(0, ROWS_MAX + 1), complete: at >= text.length };
}

function isNumber(text) {
  return text.length <= NUMBER_CHARS_MAX && NUMBER.test(text.trim());
}

function shown(text) {
  return visibleText(text.length > CELL_CHARS_MAX ? `${text.slice(0, CELL_CHARS_MAX)}…` : text);
}
