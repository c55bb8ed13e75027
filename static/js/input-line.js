// Owns the input line below the output, for the program that runs. Pieces are sent one at a time, in order; what the
// server refuses returns to the field. Shown for one run at a time, hidden otherwise. A cell's question stands
// before the field; the answer to one that asks for a password is neither shown nor announced.
import { byId, showText } from "./dom.js";
import { announce } from "./page.js";
import { plural, visibleName } from "./text.js";

// The line appears late, so that a short program does not make it flash.
const SHOWN_AFTER_MS = 300;
const ANNOUNCED_CHARS_MAX = 100;
// The line of an answered request stays so long: the next request may follow.
const CLOSED_AFTER_MS = 300;
// The focus does not leave the editor during typing.
const TYPING_MS = 700;
const LABEL = "Program input, Enter sends it";
const SHOWN = "The program runs. A line for its input is below the output.";

export class InputLine {
  #client;
  #onTyped;
  #onFailure;
  #row = byId("input-line");
  #field = byId("input-field");
  #error = byId("input-error");
  #prompt = byId("input-prompt");
  /** `{ runId, pieces, ended }`: `pieces` wait for the server; `ended` when no more input follows. */
  #line = null;
  #timer = 0;
  /** Whether the line had the focus when its request was answered. */
  #hadFocus = false;
  #keyAt = -Infinity;

  /**
   * `onTyped(runId, text)` shows what is sent and returns null or `{keep, remove}`, called when the server has it or
   * refuses it.
   */
  constructor({ client, onTyped, onFailure }) {
    this.#client = client;
    this.#onTyped = onTyped;
    this.#onFailure = onFailure;
    // Enter sends, on every keyboard; newlines in pasted text stay.
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
    byId("editor").addEventListener("keydown", ({ ctrlKey, metaKey }) => {
      if (!ctrlKey && !metaKey) this.#keyAt = performance.now();
    });
    this.#field.addEventListener("input", () => showText(this.#error, ""));
    byId("input-end").addEventListener("click", () => this.#submit(true));
  }

  /**
   * Opens the line for a run, with its unsent text if it was open before. `onShow()` is called when the line becomes
   * visible. A cell's `request` `{prompt, password}` for input shows it at once.
   */
  open(runId, onShow, request) {
    if (this.#line?.runId !== runId) {
      this.#line = { runId, pieces: [], ended: false };
      this.#hadFocus = false;
      this.#field.value = "";
      showText(this.#error, "");
    }
    clearTimeout(this.#timer);
    this.#ask(request ?? {});
    if (this.#line.ended) return;
    if (request) this.#show(onShow, `The program asks for input: ${this.#prompt.textContent}`);
    else this.#timer = setTimeout(() => this.#show(onShow, SHOWN), SHOWN_AFTER_MS);
  }

  /** Takes the focus for a prompt, unless it is somewhere that the user chose; returns whether it is here. */
  focus() {
    const { activeElement } = document;
    if (this.#row.hidden) return false;
    const free = activeElement === document.body || activeElement?.closest("#editor, #run, #stop, #output-body");
    if (!free || document.querySelector("dialog[open]") || performance.now() - this.#keyAt < TYPING_MS) return false;
    this.#field.focus({ preventScroll: true });
    return true;
  }

  /** A cell's request was answered, here or elsewhere. */
  answered() {
    clearTimeout(this.#timer);
    if (this.#row.hidden) return;
    if (this.#field.classList.contains("secret")) this.#field.value = "";
    this.#ask({});
    this.#timer = setTimeout(() => (this.#hadFocus = this.close()), CLOSED_AFTER_MS);
  }

  /** Hides the line; returns whether it had the focus. */
  close() {
    clearTimeout(this.#timer);
    const focused = this.#row.contains(document.activeElement);
    this.#row.hidden = true;
    // Focus does not go to a button, because one more Enter would press it.
    if (focused) byId("output-body").focus({ preventScroll: true });
    return focused;
  }

  #show(onShow, text) {
    this.#row.hidden = false;
    if (this.#hadFocus) this.focus();
    this.#hadFocus = false;
    onShow();
    announce(text);
  }

  #ask({ prompt = "", password = false }) {
    const shown = visibleName(prompt.trim());
    showText(this.#prompt, shown);
    this.#field.classList.toggle("secret", password);
    this.#field.placeholder = shown ? "Enter sends it" : LABEL;
    this.#field.setAttribute("aria-label", shown ? `${shown} (${LABEL})` : LABEL);
  }

  // Sends the field as a line, and with `last` the end of the input after it.
  #submit(last) {
    const line = this.#line;
    if (!line || line.ended || this.#row.hidden) return;
    const typed = this.#field.value;
    const text = typed.endsWith("\n") || (last && !typed) ? typed : `${typed}\n`;
    this.#field.value = "";
    showText(this.#error, "");
    line.ended = last;
    const secret = this.#field.classList.contains("secret");
    const drawn = secret ? text.replace(/[^\n]/g, "") : text;
    line.pieces.push({ text, last, secret, typed: drawn ? this.#onTyped(line.runId, drawn) : null });
    this.#ask({});
    if (line.pieces.length === 1) this.#send(line);
  }

  async #send(line) {
    while (line.pieces.length) {
      const { text, last, secret, typed } = line.pieces[0];
      try {
        await this.#client.sendInput(line.runId, text, last);
      } catch (error) {
        return this.#refused(line, error);
      }
      line.pieces.shift();
      typed?.keep();
      announce(last ? "The input has ended." : secret ? "Sent." : sent(text));
      if (last && line === this.#line) this.close();
    }
  }

  #refused(line, error) {
    const pieces = line.pieces.splice(0);
    for (const piece of pieces) piece.typed?.remove();
    // The run finished, or its input was ended elsewhere: not an error.
    const over = error.status === 404 || error.status === 409;
    line.ended = over;
    if (line !== this.#line) return;
    if (over) return this.close();
    const back = pieces.map(({ text }) => text).join("") + this.#field.value;
    this.#field.value = this.#field.value ? back : back.replace(/\n$/, "");
    if (pieces.some(({ secret }) => secret)) this.#field.classList.add("secret");
    showText(this.#error, visibleName(error.message));
    this.#onFailure(error);
  }
}

function sent(text) {
  const lines = text.split("\n").length - 1;
  return lines > 1
    ? `Sent ${plural(lines, "line")}.`
    : `Sent: ${visibleName(text.trimEnd()).slice(0, ANNOUNCED_CHARS_MAX)}`;
}
