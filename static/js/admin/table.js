// Owns tables of the views for operators. What is shown again keeps the focus of the keyboard on the same button.
import { el, icon } from "../dom.js";
import { visibleName } from "../text.js";

/** A card with a heading and a table. `columns` are `{name, cell(row), kind}`; `cell` returns a text or an element. */
export class Table {
  #columns;
  #body = el("tbody");
  #empty;
  #scroll;
  #title;
  #count = el("span", { class: "table-count" });
  #more = el("button", { class: "button small table-more", type: "button", hidden: true }, "Show more");

  constructor({ id, title, columns, empty, onMore }) {
    this.#columns = columns;
    this.#empty = el("p", { class: "empty" }, empty);
    const heads = columns.map(({ name, kind }) =>
      el("th", { scope: "col", class: kind ?? false }, kind === "act" ? el("span", { class: "sr-only" }, name) : name),
    );
    const head = el("thead", {}, el("tr", {}, ...heads));
    const table = el("table", { "aria-labelledby": `${id}-title` }, head, this.#body);
    // A table that is wider than the screen is scrolled by the keyboard too.
    this.#scroll = el(
      "div",
      { class: "table-scroll", tabindex: 0, role: "region", "aria-label": `${title}, scrolled sideways`, hidden: true },
      table,
    );
    this.#more.addEventListener("click", () => onMore?.());
    this.#title = el("h3", { id: `${id}-title`, tabindex: -1 }, title);
    this.element = el(
      "div",
      { class: "card table-card", "data-testid": id },
      el("div", { class: "card-head" }, this.#title, this.#count),
      this.#scroll,
      this.#empty,
      this.#more,
    );
  }

  /** Shows these rows; `total` is how many there are where not all are shown. */
  show(rows, { total, more = false } = {}) {
    const focused = this.element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    const cells = (row) =>
      this.#columns.map(({ cell, kind }) => el("td", { class: kind ?? false }, cell(row) ?? ""));
    this.#body.replaceChildren(...rows.map((row) => el("tr", {}, ...cells(row))));
    this.#scroll.hidden = rows.length === 0;
    this.#empty.hidden = rows.length > 0;
    this.#more.hidden = !more;
    const all = total ?? rows.length;
    this.#count.textContent = all > rows.length ? `${rows.length} of ${all}` : String(all);
    if (focused === undefined) return;
    const same = [...this.#body.querySelectorAll("[data-key]")].find(({ dataset }) => dataset.key === focused);
    // The user may have scrolled on.
    (same ?? (rows.length ? this.#scroll : this.#title)).focus({ preventScroll: true });
  }
}

/** A foreign name. */
export function name(text) {
  return el("bdi", {}, visibleName(text ?? ""));
}

/** A word with a colour: ok, fail, limit, run or plain. */
export function word(text, kind = "plain") {
  return el("span", { class: "word", "data-kind": kind }, text);
}

/** A moment: the local time, and the day unless it is today. */
export function moment(text) {
  if (!text) return "";
  const at = new Date(text);
  const today = at.toDateString() === new Date().toDateString();
  const shown = today ? at.toLocaleTimeString() : at.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  return el("time", { datetime: text, title: at.toLocaleString(), class: "nowrap" }, shown);
}

/** A button of a row; `key` is the same when the row is shown again. */
export function act({ key, label, of, symbol, onClick }) {
  const button = el(
    "button",
    { class: "button small danger", type: "button", "data-key": key, "data-testid": `act-${symbol}` },
    icon(symbol),
    el("span", { class: "wide-only" }, label),
  );
  // On a phone the sign is all that is seen.
  button.setAttribute("aria-label", `${label} ${of}`);
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    try {
      await onClick();
    } finally {
      button.removeAttribute("aria-disabled");
    }
  });
  return button;
}
