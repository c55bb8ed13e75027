// Owns what is run beside the editor's text: the language menu, the examples menu, arguments and input, and what is
// said about a runner.
import { byId, el, showText } from "./dom.js";
import { displayName } from "./languages.js";
import { EXAMPLES, firstExample, isPristine } from "./examples.js";
import { toast } from "./page.js";
import { bytes, duration, visibleName } from "./text.js";
import { lineOf, wordsOf } from "./words.js";

export class Program {
  #editor;
  #runners = [];
  #languages = byId("language");
  #examples = byId("examples");
  #onRunner;
  #runsCells = false;
  #args = byId("args");
  #stdin = byId("stdin");

  /** `onRunner(runner)` is called when a language is chosen. */
  constructor(editor, draft, onRunner) {
    this.#editor = editor;
    this.#onRunner = onRunner;
    this.#languages.addEventListener("change", () => this.#choose(this.#languages.value));
    this.#examples.addEventListener("change", () => this.#load(this.#examples.value));
    for (const field of [this.#args, this.#stdin]) {
      field.addEventListener("input", () => {
        showText(byId("args-error"), "");
        this.#args.removeAttribute("aria-invalid");
        this.#describeGiven();
        editor.saveSoon();
      });
    }
    byId("runner-info").addEventListener("click", () => this.#showRunner());
    byId("runner-close").addEventListener("click", () => byId("runner-dialog").close());
    this.#give(draft ?? {});
  }

  get language() {
    return this.#languages.value;
  }

  /** Whether programs of the chosen language can get arguments and input. */
  get takesInput() {
    return this.#find(this.language)?.takesInput === true;
  }

  /** Whether Run executes cells, which take no arguments. */
  set runsCells(value) {
    this.#runsCells = value;
    byId("given-args").hidden = value;
    byId("given-label").textContent = value ? "Input" : "Arguments and input";
    this.#describeGiven();
  }

  /** `{args, stdin}` as they are in the fields; an unclosed quote is as if closed. */
  get given() {
    try {
      return { args: wordsOf(this.#args.value), stdin: this.#stdin.value };
    } catch {
      return { args: [], stdin: this.#stdin.value };
    }
  }

  /** Whether there is a runner for a language. */
  offers(language) {
    return this.#find(language) !== undefined;
  }

  /** What the draft has beside the text: `{line, stdin}`, as they are typed. */
  get typed() {
    return { line: this.#args.value, stdin: this.#stdin.value };
  }

  /** The whole program, or null when the arguments are wrong, which is then said beside them. */
  checked() {
    try {
      const given = this.takesInput
        ? { args: this.#runsCells ? [] : wordsOf(this.#args.value), stdin: this.#stdin.value }
        : { args: [], stdin: "" };
      return { language: this.language, code: this.#editor.text, takesInput: this.takesInput, ...given };
    } catch (error) {
      byId("given").open = true;
      this.#args.setAttribute("aria-invalid", "true");
      showText(byId("args-error"), error.message);
      this.#args.focus();
      return null;
    }
  }

  /** Shows the languages of the server and selects the current one, `wanted`, Python, or the first. */
  setRunners({ runners }, wanted) {
    this.#runners = runners.filter((runner) => typeof runner?.language === "string");
    const current = [this.#editor.language, wanted, "python", this.#runners[0]?.language].find((language) =>
      this.#find(language),
    );
    this.#languages.replaceChildren(...this.#runners.map(languageOption));
    this.#languages.disabled = this.#runners.length === 0;
    if (!this.#runners.length) this.#languages.append(el("option", {}, "No runners"));
    this.#fillExamples();
    this.#choose(current);
  }

  /** Offers the program `{language, code, args, stdin}` of the run on display, or hides the button. */
  offer(program) {
    const button = byId("reuse");
    button.hidden = !program;
    button.onclick = () => {
      this.replace(program, "The run's program replaced yours.");
      this.#editor.focus();
    };
  }

  /** Puts a program into the editor; `notice` says so when text is lost. Offers to undo what it tells of. */
  replace({ language, code, args = [], stdin = "" }, notice) {
    const { text } = this.#editor;
    const before = { language: this.language, ...this.typed };
    this.#give({ line: lineOf(args), stdin });
    const hasLost = (old, now) => old.trim() !== "" && old !== now;
    const isLost =
      (hasLost(text, code) && !isPristine(text)) ||
      hasLost(before.line, this.#args.value) ||
      hasLost(before.stdin, this.#stdin.value);
    if (code !== text) this.#editor.replace(code);
    this.#choose(language);
    const isKnown = this.#runners.length === 0 || this.offers(language);
    if (!isLost && isKnown) return;
    const unknown = `The server has no runner for ${visibleName(displayName(language))}.`;
    toast([isLost && notice, !isKnown && unknown].filter(Boolean).join(" "), "Undo", () => {
      if (code !== text) this.#editor.replace(text);
      this.#choose(before.language);
      this.#give(before);
      this.#editor.focus();
    });
  }

  #find(name) {
    return this.#runners.find((runner) => runner.language === name || runner.aliases?.includes(name));
  }

  // Selects a language by its name or an alias. One without a runner changes nothing.
  #choose(name) {
    const runner = this.#find(name);
    if (!runner) return;
    const { language } = runner;
    this.#languages.value = language;
    this.#editor.setLanguage(language);
    this.#languages.title = describe(runner);
    byId("runner-note").textContent = note(runner);
    byId("given-none").hidden = runner.takesInput === true;
    document.querySelector(".given-fields").hidden = runner.takesInput !== true;
    this.#onRunner(runner);
    const example = firstExample(language);
    if (example && isPristine(this.#editor.text) && !this.#isExampleOf(language)) this.#editor.replace(example.code);
  }

  #isExampleOf(language) {
    return EXAMPLES.some((example) => example.language === language && example.code === this.#editor.text);
  }

  #give({ line = "", stdin = "" }) {
    this.#args.value = line;
    this.#stdin.value = stdin;
    if (line || stdin) byId("given").open = true;
    this.#describeGiven();
  }

  #describeGiven() {
    const { args, stdin } = this.given;
    const line = !this.#runsCells && args.length && this.#args.value.trim();
    const parts = [line, stdin && `${bytes(new Blob([stdin]).size)} of input`];
    byId("given-note").textContent = visibleName(parts.filter(Boolean).join(" · "));
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
    if (example) this.replace(example, "The example replaced your program.");
  }

  #showRunner() {
    const runner = this.#find(this.language);
    if (!runner) return;
    byId("runner-title").textContent = visibleName(`${displayName(runner.language)} ${runner.version ?? ""}`.trim());
    const facts = [
      ["Installed", runner.description],
      ["Packages", runner.packages?.join(", ")],
      ["Image", runner.image],
      ["Also called", runner.aliases?.join(", ")],
      ["Arguments and input", runner.takesInput ? "yes, also while it runs" : "no"],
      ["Sessions", runner.sessions === true ? "yes" : runner.sessions === false ? "no" : undefined],
      ["Standing by", runner.standingBy],
      ...limitsOf(runner.limits),
    ];
    const known = facts.filter(([, value]) => value !== undefined && value !== "");
    byId("runner-facts").replaceChildren(
      ...known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, visibleName(String(value)))]),
    );
    byId("runner-dialog").showModal();
  }
}

function limitsOf(limits) {
  if (!limits) return [];
  const { wallMs, memoryBytes, cpuMillis, processesMax, outputBytesMax } = limits;
  return [
    ["Time", duration(wallMs)],
    ["Memory", bytes(memoryBytes)],
    ["CPU", Number.isFinite(cpuMillis) ? `${cpuMillis / 1000} of a core` : ""],
    ["Processes", processesMax],
    ["Output", bytes(outputBytesMax)],
  ];
}

function languageOption(runner) {
  return el("option", { value: runner.language, title: describe(runner) }, visibleName(displayName(runner.language)));
}

function note({ language, version = "", description = "" }) {
  const named = `${displayName(language)} ${version}`.trim();
  if (!description) return visibleName(named);
  return visibleName(!version || description.includes(version) ? description : `${named}: ${description}`);
}

function describe(runner) {
  const aliases = runner.aliases?.length ? `Also called ${runner.aliases.join(", ")}.` : "";
  return visibleName([runner.description, aliases].filter(Boolean).join(" "));
}
