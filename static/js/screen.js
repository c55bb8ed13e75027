// Owns the rows of a terminal: the last ones can still be changed by the program, older ones are final. Every row has a
// bounded length and a bounded number of styles. Knows nothing of the page.

/** How many rows cursor movements reach. */
export const ROWS_MAX = 50;
const COLUMNS_MAX = 4096;
const SEGMENTS_MAX = 200;

/** The style of text that no sequence changed. */
export const PLAIN = Object.freeze({ key: "" });

/** Cells are code points, each with its style. Changing some of them costs nothing for the others. */
class Row {
  #texts = [];
  #styles = [];
  #segments = null;
  /** The style of the newline, or null when the row has none. */
  end = null;
  /** Whether it changed since it was drawn. */
  changed = true;

  get width() {
    return this.#texts.length;
  }

  /** `[{text, style}]`: neighbours differ in style; beyond the bound, text takes the style before it. */
  get segments() {
    this.#segments ??= this.#joined();
    return this.#segments;
  }

  /** Writes a cell at a column of the row or behind its last one. */
  put(column, text, style) {
    this.#texts[column] = text;
    this.#styles[column] = style;
    this.#touch();
  }

  blank(from, to) {
    for (let column = from; column < to; column += 1) {
      this.#texts[column] = " ";
      this.#styles[column] = PLAIN;
    }
    this.#touch();
  }

  remove(from, count = Infinity) {
    this.#texts.splice(from, count);
    this.#styles.splice(from, count);
    this.#touch();
  }

  removeStyle(key) {
    const keeps = this.#styles.map((style) => style.key !== key);
    this.#texts = this.#texts.filter((_, column) => keeps[column]);
    this.#styles = this.#styles.filter((_, column) => keeps[column]);
    this.#touch();
  }

  /** What is left of it when it is final. */
  settled() {
    const { segments, width, end, element } = this;
    return { segments, width, end, element };
  }

  #touch() {
    this.changed = true;
    this.#segments = null;
  }

  #joined() {
    const segments = [];
    this.#texts.forEach((text, column) => {
      const style = this.#styles[column];
      const last = segments.at(-1);
      if (last && (last.style.key === style.key || segments.length >= SEGMENTS_MAX)) last.text += text;
      else segments.push({ text, style });
    });
    return segments;
  }
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
    for (const cell of text) {
      if (this.column >= COLUMNS_MAX) this.#continue();
      const row = this.#current();
      row.blank(row.width, this.column);
      row.put(this.column, cell, style);
      this.column += 1;
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
    if (what === 1) for (const row of this.rows.slice(this.top, this.row)) row.remove(0);
    else this.rows.splice(from);
    if (!this.rows.length || this.rows.at(-1).end) this.rows.push(new Row());
    this.eraseLine(what);
    const row = this.rows[this.row];
    if (what === 0 && row) row.end = null;
  }

  /** 0: from the cursor to the end; 1: up to the cursor; 2: all of it. */
  eraseLine(what) {
    const row = this.rows[this.row];
    if (what === 1) row?.blank(0, Math.min(this.column + 1, row.width));
    else row?.remove(what === 0 ? this.column : 0);
  }

  eraseCells(count) {
    const row = this.rows[this.row];
    if (this.column + count < row?.width) row.blank(this.column, this.column + count);
    else row?.remove(this.column);
  }

  deleteCells(count) {
    this.rows[this.row]?.remove(this.column, count);
  }

  /** Removes the text of one style where it can still be changed, and the line that only its newline began. */
  erase({ key }) {
    const last = this.rows[this.lastRow - 1];
    if (last?.end?.key === key && !this.isInLine) {
      this.rows.pop();
      last.end = null;
      this.row = this.lastRow;
    }
    for (const row of this.rows) row.removeStyle(key);
    this.row = Math.min(this.row, this.lastRow);
    this.column = this.rows[this.row].width;
  }

  /** Makes all rows final. */
  finish() {
    this.#final.push(...this.rows.splice(0, Infinity, new Row()).map((row) => row.settled()));
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
    this.#final.push(this.rows.shift().settled());
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
}
