// Owns the Format button: sends the program to the tools of its language, puts what they made of it into the editor,
// and shows what they found. Nothing of the program is run.
import { byId } from "./dom.js";
import { announce, page, toast } from "./page.js";
import { plural, visibleName } from "./text.js";

export class Format {
  #client;
  #editor;
  #onFailure;
  #button = byId("format");
  #hasTools = false;

  constructor({ client, editor, onFailure }) {
    this.#client = client;
    this.#editor = editor;
    this.#onFailure = onFailure;
    this.#button.addEventListener("click", () => this.start());
    page.onState(() => this.#show());
  }

  /** To be called with the runner when a language is chosen. */
  offer({ checks }) {
    this.#hasTools = checks === true;
    this.#show();
  }

  async start() {
    const { language, text } = this.#editor;
    if (this.#button.disabled || this.#isBusy || !text) return;
    this.#isBusy = true;
    announce("Formatting…");
    try {
      const { code, problems } = await this.#client.post("v1/check", { language, code: text });
      if (this.#editor.text !== text || this.#editor.language !== language)
        return toast("The program has changed. Format it again.");
      const shown = problems.map((problem) => ({ ...problem, message: visibleName(problem.message) }));
      const changed = await this.#editor.format(code ?? text, shown);
      toast([whatWasDone(code, changed), whatWasFound(shown)].filter(Boolean).join(" "));
    } catch (error) {
      this.#onFailure(error);
      if (!error.needsToken) toast(visibleName(error.message));
    } finally {
      this.#isBusy = false;
    }
  }

  // Not `disabled` while it works: a disabled button loses the keyboard focus.
  get #isBusy() {
    return this.#button.getAttribute("aria-disabled") === "true";
  }

  set #isBusy(value) {
    this.#button.setAttribute("aria-disabled", String(value));
  }

  #show() {
    this.#button.disabled = !this.#hasTools || !["ready", "running"].includes(page.state);
  }
}

function whatWasDone(code, changed) {
  if (code === null) return "Not formatted, because the program cannot be parsed.";
  return changed ? "Formatted." : "Already formatted.";
}

function whatWasFound([first, ...more]) {
  if (!first) return "";
  const where = `line ${first.line}: ${first.message}`;
  return more.length ? `${plural(more.length + 1, "problem")}, the first in ${where}` : `1 problem, in ${where}`;
}
