// Owns the charts: plain SVG, one axis of time and one of counts or durations. Each has the same figures as a table,
// for readers of the screen and for all who want the numbers. A series differs by more than its colour: bars by their
// place and lines by their dashes.
import { el } from "../dom.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480;
const HEIGHT = 170;
const LEFT = 46;
const BOTTOM = 22;
const TOP = 10;
const LABELS = 5;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** The next of 2, 4, 6, 10, 20, 40, … from here: half of each is a whole number. */
function roundUp(number) {
  const power = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
  return [1, 2, 4, 6, 10].map((step) => step * power).find((step) => step >= Math.max(number, 2)) ?? number;
}

const plotHeight = HEIGHT - TOP - BOTTOM;
const yOf = (value, most) => TOP + plotHeight * (1 - value / most);

function frame(times, most, format) {
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const y = yOf(share * most, most);
    parts.push(svg("line", { class: share ? "grid" : "axis", x1: LEFT, x2: WIDTH, y1: y, y2: y }));
    parts.push(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, format(share * most)));
  }
  for (let label = 0; label < LABELS; label += 1) {
    const at = Math.round(((times.length - 1) * label) / (LABELS - 1));
    const anchor = label === 0 ? "start" : label === LABELS - 1 ? "end" : "middle";
    const x = LEFT + ((WIDTH - LEFT) * (at + 0.5)) / times.length;
    parts.push(svg("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, times[at] ?? ""));
  }
  return parts;
}

function bars(rows, series) {
  const most = roundUp(Math.max(...rows.map((row) => series.reduce((sum, _, at) => sum + row.values[at], 0)), 1));
  const width = (WIDTH - LEFT) / rows.length;
  const shapes = [];
  for (const [place, row] of rows.entries()) {
    let below = 0;
    for (const at of series.keys()) {
      const value = row.values[at];
      if (!value) continue;
      const y = yOf(below + value, most);
      const height = yOf(below, most) - y;
      const x = LEFT + place * width + width * 0.1;
      shapes.push(svg("rect", { class: `s${at}`, x, y, width: width * 0.8, height }));
      below += value;
    }
  }
  return { most, shapes };
}

function lines(rows, series) {
  const values = rows.flatMap((row) => row.values.filter((value) => value !== null));
  const most = roundUp(Math.max(...values, 1));
  const xOf = (place) => LEFT + ((WIDTH - LEFT) * (place + 0.5)) / rows.length;
  const shapes = series.flatMap((_, at) => {
    const has = (place) => (rows[place]?.values[at] ?? null) !== null;
    const dots = [];
    let path = "";
    for (const [place, row] of rows.entries()) {
      if (!has(place)) continue;
      const y = yOf(row.values[at], most);
      path += `${has(place - 1) ? "L" : "M"}${xOf(place)} ${y}`;
      // A point alone is no line.
      if (has(place - 1) || has(place + 1)) continue;
      dots.push(svg("circle", { class: `s${at}`, cx: xOf(place), cy: y, r: 2.5 }));
    }
    return [svg("path", { class: `line s${at}`, d: path }), ...dots];
  });
  return { most, shapes };
}

/**
 * A figure. `rows` are `{time, values}` in the order of time, a value for each of `series`, null for none; `kind` is
 * `bars`, which are stacked, or `lines`.
 */
export function chart({ id, title, kind, series, rows, format = String, empty }) {
  const has = (row) => row.values.some((value) => value);
  const times = rows.map(({ time }) => time);
  const filled = rows.filter(has);
  const { most, shapes } = kind === "bars" ? bars(rows, series) : lines(rows, series);
  const none = svg(
    "text",
    { class: "none", x: (WIDTH + LEFT) / 2, y: HEIGHT / 2 - 10, "text-anchor": "middle" },
    empty,
  );
  const plot = svg(
    "svg",
    { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    ...frame(times, most, format),
    ...(filled.length ? shapes : [none]),
  );
  const key = (label, at) => {
    const mark =
      kind === "bars"
        ? svg("rect", { class: `s${at}`, width: 11, height: 11, rx: 2 })
        : svg("path", { class: `line s${at}`, d: "M0 6H11" });
    return el("li", {}, svg("svg", { viewBox: "0 0 11 11", "aria-hidden": "true" }, mark), label);
  };
  const head = ["Time", ...series].map((label) => el("th", { scope: "col" }, label));
  const line = ({ time, values }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, time),
      ...values.map((value) => el("td", { class: "number" }, value === null ? "" : format(value))),
    );
  const table = el(
    "table",
    { "aria-label": title },
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...filled.map(line)),
  );
  const figures = filled.length
    ? el("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": `${title}: figures` }, table)
    : el("p", { class: "note" }, empty);
  return el(
    "figure",
    { class: "card chart", "data-testid": id },
    el("figcaption", {}, title),
    plot,
    el("ul", { class: "legend" }, ...series.map(key)),
    el("details", {}, el("summary", {}, "Figures", el("span", { class: "sr-only" }, ` of ${title}`)), figures),
  );
}
