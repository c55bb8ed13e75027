// Owns the rows of a terminal: the last ones can still be changed by the program, older ones are final. Every row has a
// bounded length and a bounded number of styles. Knows nothing of the page.

/** How many rows cursor movements reach. */
export const ROWS_MAX = 50;
const COLUMNS_MAX = 4096;
const SEGMENTS_MAX = 200;

/** The style of text that no sequence changed. */
export const PLAIN = Object.freeze({ key: "" });

class Row {
  /** `[{text, style}]`: neighbours differ in style. */
  segments = [];
  width = 0;
  /** The style of the newline, or null when the row has none. */
  end = null;
  /** Whether it changed since it was drawn. */
  changed = true;
}

export class Screen {
  rows = [new Row()];
  row = 0;
  column = 0;
  #saved = [0, 0];
  #final = [];

  get lastRow() {
    return this.rows.length - 1;
  }

  /** The index of the screen's first row. */
  get top() {
    return Math.max(this.rows.length - ROWS_MAX, 0);
  }

  /** Whether the last line has no newline yet. */
  get isInLine() {
    return this.rows[this.lastRow].width > 0;
  }

  write(text, style) {
    for (let rest = text; rest;) {
      if (this.column >= COLUMNS_MAX) this.#continue();
      const part = slice(rest, 0, COLUMNS_MAX - this.column);
      this.#put(part, style);
      rest = rest.slice(part.length);
    }
  }

  newline(style) {
    const row = this.#current();
    row.changed = true;
    row.end ??= style;
    this.#continue();
  }

  /** Moves the cursor. A row that does not exist yet is made when something is written there. */
  moveTo(row, column = this.column) {
    this.row = Math.min(Math.max(row, this.top), this.top + ROWS_MAX - 1);
    this.column = Math.min(column, COLUMNS_MAX - 1);
  }

  save() {
    this.#saved = [this.row - this.top, this.column];
  }

  restore() {
    this.moveTo(this.top + this.#saved[0], this.#saved[1]);
  }

  /** 0: from the cursor to the end; 1: up to the cursor; 2 and 3: all of it. */
  eraseScreen(what) {
    const from = what === 0 ? this.row + 1 : this.top;
    if (what === 1) for (const row of this.rows.slice(this.top, this.row)) this.#replace(row, []);
    else this.rows.splice(from);
    if (!this.rows.length || this.rows.at(-1).end) this.rows.push(new Row());
    this.eraseLine(what);
    const row = this.rows[this.row];
    if (what === 0 && row) row.end = null;
  }

  /** 0: from the cursor to the end; 1: up to the cursor; 2: all of it. */
  eraseLine(what) {
    const row = this.rows[this.row];
    if (!row) return;
    const [head, tail] = [cut(row.segments, 0, this.column), cut(row.segments, this.column + 1, Infinity)];
    const blank = blanks(this.column + 1);
    this.#replace(row, what === 0 ? head : what === 1 ? [...blank, ...tail] : []);
  }

  eraseCells(count) {
    const row = this.rows[this.row];
    if (!row) return;
    const tail = cut(row.segments, this.column + count, Infinity);
    this.#replace(row, [...cut(row.segments, 0, this.column), ...(tail.length ? blanks(count) : []), ...tail]);
  }

  deleteCells(count) {
    const row = this.rows[this.row];
    if (!row) return;
    const { segments } = row;
    const rest = cut(segments, this.column + count, Infinity);
    this.#replace(row, [...cut(segments, 0, this.column), ...rest]);
  }

  /** Removes the text of one style where it can still be changed, and the line that only its newline began. */
  erase({ key }) {
    const last = this.rows[this.lastRow - 1];
    if (last?.end?.key === key && !this.isInLine) {
      this.rows.pop();
      last.end = null;
      this.row = this.lastRow;
    }
    for (const row of this.rows)
      this.#replace(
        row,
        row.segments.filter(({ style }) => style.key !== key),
      );
    this.row = Math.min(this.row, this.lastRow);
    this.column = this.rows[this.row].width;
  }

  /** Makes all rows final. */
  finish() {
    this.#final.push(...this.rows.splice(0, Infinity, new Row()));
    this.row = 0;
    this.column = 0;
  }

  /** The rows that became final since the last call. */
  takeFinal() {
    return this.#final.splice(0);
  }

  // To the beginning of the next row, which is made where there is none.
  #continue() {
    this.row += 1;
    this.column = 0;
    if (this.row < this.rows.length) return;
    this.rows.push(new Row());
    if (this.rows.length <= ROWS_MAX) return;
    this.#final.push(this.rows.shift());
    this.row -= 1;
  }

  // The cursor's row.
  #current() {
    while (this.lastRow < this.row) {
      this.rows.at(-1).end ??= PLAIN;
      this.rows.at(-1).changed = true;
      this.rows.push(new Row());
    }
    return this.rows[this.row];
  }

  #put(text, style) {
    const row = this.#current();
    const width = widthOf(text);
    if (this.column < row.width) {
      const tail = cut(row.segments, this.column + width, Infinity);
      this.#replace(row, [...cut(row.segments, 0, this.column), { text, style }, ...tail]);
    } else {
      if (this.column > row.width) add(row.segments, ...blanks(this.column - row.width));
      add(row.segments, { text, style });
      row.width = this.column + width;
      row.changed = true;
    }
    this.column += width;
  }

  #replace(row, segments) {
    row.segments = [];
    for (const segment of segments) add(row.segments, segment);
    row.width = row.segments.reduce((sum, { text }) => sum + widthOf(text), 0);
    row.changed = true;
  }
}

// Appends, joining equal styles; beyond the bound, text takes the style before it.
function add(segments, ...more) {
  for (const { text, style } of more) {
    const last = segments.at(-1);
    if (last && (last.style.key === style.key || segments.length >= SEGMENTS_MAX)) {
      segments[segments.length - 1] = { text: last.text + text, style: last.style };
    } else if (text) segments.push({ text, style });
  }
}

/** The cells `from` to `to` of a row. */
function cut(segments, from, to) {
  const kept = [];
  let at = 0;
  for (const { text, style } of segments) {
    const width = widthOf(text);
    const part = slice(text, Math.max(from - at, 0), Math.max(to - at, 0));
    if (part) kept.push({ text: part, style });
    at += width;
  }
  // A row that is shorter than the cursor's column is filled up to it.
  if (from === 0 && to !== Infinity && at < to) kept.push(...blanks(to - at));
  return kept;
}

function blanks(count) {
  return [{ text: " ".repeat(Math.min(count, COLUMNS_MAX)), style: PLAIN }];
}

// A column is a code point. Only text with surrogate pairs has to be taken apart for that.
const PAIRS = /[\ud800-\udbff]/;

function widthOf(text) {
  return PAIRS.test(text) ? [...text].length : text.length;
}

function slice(text, from, to) {
  if (!PAIRS.test(text)) return text.slice(from, to);
  return [...text].slice(from, to).join("");
}
