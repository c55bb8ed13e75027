// Owns the line below the output where a person types to the program that runs. What is sent is on its way one piece at a
// time, in order; what the server did not take is back in the field. Shown for one run at a time, and hidden without one.
import { byId, showText } from "./dom.js";
import { announce } from "./page.js";
import { plural, visibleName } from "./text.js";

// A program that ends at once makes no line come and go.
const SHOWN_AFTER_MS = 300;
const ANNOUNCED_CHARS_MAX = 100;

export class InputLine {
  #client;
  #onTyped;
  #onFailure;
  #row = byId("input-line");
  #field = byId("input-field");
  #error = byId("input-error");
  /** The run that is typed to: `{ runId, pieces, ended }`. Its pieces are not taken yet; ended, it is sent no more. */
  #line = null;
  #timer = 0;

  /** `onTyped(runId, text)` is told what is sent, and gives back a function that is called when it was not taken. */
  constructor({ client, onTyped, onFailure }) {
    this.#client = client;
    this.#onTyped = onTyped;
    this.#onFailure = onFailure;
    // Enter is a line's end here, on every keyboard; lines that are pasted stay as they are.
    this.#field.addEventListener("beforeinput", (event) => {
      if (event.inputType !== "insertLineBreak" && event.inputType !== "insertParagraph") return;
      event.preventDefault();
      this.#submit(false);
    });
    this.#field.addEventListener("keydown", (event) => {
      const plain = !event.shiftKey && !event.altKey && !event.metaKey;
      if (event.key !== "d" || !event.ctrlKey || !plain || this.#field.value) return;
      event.preventDefault();
      this.#submit(true);
    });
    this.#field.addEventListener("input", () => showText(this.#error, ""));
    byId("input-end").addEventListener("click", () => this.#submit(true));
  }

  /** A program runs that can be typed to. What was begun for it and not sent is still there. `onShow()` is told when it is seen. */
  open(runId, onShow) {
    if (this.#line?.runId !== runId) {
      this.#line = { runId, pieces: [], ended: false };
      this.#field.value = "";
      showText(this.#error, "");
    }
    clearTimeout(this.#timer);
    if (!this.#line.ended) this.#timer = setTimeout(() => this.#show(onShow), SHOWN_AFTER_MS);
  }

  /** No program that is shown can be typed to. */
  close() {
    clearTimeout(this.#timer);
    const focused = this.#row.contains(document.activeElement);
    this.#row.hidden = true;
    // Not to a button: the Enter after the last line would press it.
    if (focused) byId("output-body").focus({ preventScroll: true });
  }

  #show(onShow) {
    this.#row.hidden = false;
    onShow();
    announce("The program runs. A line for its input is below the output.");
  }

  /** What is in the field is a line, and with `last` the end of the input comes after it. */
  #submit(last) {
    const line = this.#line;
    if (!line || line.ended || this.#row.hidden) return;
    const typed = this.#field.value;
    const text = typed.endsWith("\n") || (last && !typed) ? typed : `${typed}\n`;
    this.#field.value = "";
    showText(this.#error, "");
    line.ended = last;
    line.pieces.push({ text, last, takeBack: text ? this.#onTyped(line.runId, text) : () => {} });
    if (line.pieces.length === 1) this.#send(line);
  }

  async #send(line) {
    while (line.pieces.length) {
      const { text, last } = line.pieces[0];
      try {
        await this.#client.sendInput(line.runId, text, last);
      } catch (error) {
        return this.#refused(line, error);
      }
      line.pieces.shift();
      announce(last ? "The input is ended." : sent(text));
      if (last && line === this.#line) this.close();
    }
  }

  #refused(line, error) {
    const pieces = line.pieces.splice(0);
    for (const piece of pieces) piece.takeBack();
    // The run is over, or its input was ended elsewhere: nothing is wrong.
    const over = error.status === 404 || error.status === 409;
    line.ended = over;
    if (line !== this.#line) return;
    if (over) return this.close();
    const back = pieces.map(({ text }) => text).join("") + this.#field.value;
    this.#field.value = this.#field.value ? back : back.replace(/\n$/, "");
    showText(this.#error, visibleName(error.message));
    this.#onFailure(error);
  }
}

function sent(text) {
  const lines = text.split("\n").length - 1;
  return lines > 1 ? `Sent ${plural(lines, "line")}.` : `Sent: ${visibleName(text.trimEnd()).slice(0, ANNOUNCED_CHARS_MAX)}`;
}
