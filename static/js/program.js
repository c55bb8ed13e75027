// Owns the language menu and the examples menu, and their effect on the editor.
import { byId, el } from "./dom.js";
import { displayName } from "./languages.js";
import { EXAMPLES, firstExample, isPristine } from "./examples.js";
import { toast } from "./page.js";
import { visibleName } from "./text.js";

export class Program {
  #editor;
  #runners = [];
  #languages = byId("language");
  #examples = byId("examples");

  constructor(editor) {
    this.#editor = editor;
    this.#languages.addEventListener("change", () => this.#choose(this.#languages.value));
    this.#examples.addEventListener("change", () => this.#load(this.#examples.value));
  }

  get language() {
    return this.#languages.value;
  }

  /** Whether programs of the chosen language can get input while they run. */
  get takesInput() {
    return this.#find(this.language)?.takesInput === true;
  }

  /** Shows the languages of the server and selects the current one, `wanted`, Python, or the first. */
  setRunners(runners, wanted) {
    this.#runners = runners.filter((runner) => typeof runner?.language === "string");
    const current = [this.#editor.language, wanted, "python", this.#runners[0]?.language].find((language) =>
      this.#find(language),
    );
    this.#languages.replaceChildren(...this.#runners.map(languageOption));
    this.#languages.disabled = this.#runners.length === 0;
    if (!this.#runners.length) this.#languages.append(el("option", {}, "No runners"));
    this.#fillExamples();
    if (current) this.#choose(this.#find(current).language);
  }

  /** Offers the program `{language, code}` of the run on display, or hides the button. */
  offer(program) {
    const button = byId("reuse");
    button.hidden = !program;
    button.onclick = () => {
      this.#replace(program, "The run's program replaced yours.");
      this.#editor.focus();
    };
  }

  #find(name) {
    return this.#runners.find((runner) => runner.language === name || runner.aliases?.includes(name));
  }

  #choose(language) {
    this.#languages.value = language;
    this.#editor.setLanguage(language);
    const runner = this.#find(language);
    this.#languages.title = describe(runner);
    byId("runner-note").textContent = note(runner);
    const example = firstExample(language);
    if (example && isPristine(this.#editor.text) && !this.#isExampleOf(language)) this.#editor.replace(example.code);
  }

  #isExampleOf(language) {
    return EXAMPLES.some((example) => example.language === language && example.code === this.#editor.text);
  }

  #fillExamples() {
    const groups = this.#runners
      .map(({ language }) => {
        const options = EXAMPLES.filter((example) => example.language === language).map((example) =>
          el("option", { value: example.id }, example.title),
        );
        return options.length ? el("optgroup", { label: displayName(language) }, ...options) : null;
      })
      .filter(Boolean);
    this.#examples.replaceChildren(el("option", { value: "" }, "Examples"), ...groups);
    this.#examples.disabled = groups.length === 0;
  }

  #load(id) {
    const example = EXAMPLES.find((candidate) => candidate.id === id);
    this.#examples.value = "";
    if (example) this.#replace(example, "The example replaced your program.");
  }

  #replace({ language, code }, notice) {
    if (code === this.#editor.text && language === this.language) return;
    const before = { language: this.language, lost: !isPristine(this.#editor.text) };
    this.#editor.replace(code);
    if (this.#find(language)) this.#choose(language);
    if (!before.lost) return;
    toast(notice, "Undo", () => {
      this.#editor.undo();
      this.#choose(before.language);
      this.#editor.focus();
    });
  }
}

function languageOption(runner) {
  return el("option", { value: runner.language, title: describe(runner) }, visibleName(displayName(runner.language)));
}

function note({ language, version = "", description = "" }) {
  const named = `${displayName(language)} ${version}`.trim();
  if (!description) return visibleName(version ? named : "");
  return visibleName(!version || description.includes(version) ? description : `${named}: ${description}`);
}

function describe(runner) {
  if (!runner) return "";
  const aliases = runner.aliases?.length ? `Also called ${runner.aliases.join(", ")}.` : "";
  return visibleName([runner.description, aliases].filter(Boolean).join(" "));
}
