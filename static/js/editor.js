// Owns the editor of the program and the draft, which survives a reload of the tab. The element [data-testid=editor]
// has the CodeMirror view in its property `cmView`; tests set the text with
// `cmView.dispatch({changes: {from: 0, to: cmView.state.doc.length, insert: text}})`.
import { isolateHistory } from "@codemirror/commands";
import { Compartment, Prec } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { CodeView } from "./code-view.js";
import { byId } from "./dom.js";
import { displayName } from "./languages.js";
import { store } from "./store.js";

const SAVE_AFTER_MS = 250;

export class Editor {
  #code;
  #label = new Compartment();
  #given;
  #saveTimer = 0;

  /**
   * `onRun` is called for Ctrl/Cmd+Enter, `onSave` for Ctrl/Cmd+S, `onFormat` for Shift+Alt+F; `onStop` for Escape
   * without Vim's keys, and returns whether there was something to stop.
   * `given()` returns what the draft has beside the text.
   */
  constructor({ text, onRun, onSave, onFormat, onStop, given }) {
    this.#given = given;
    const handle = (action) => () => {
      action();
      return true;
    };
    const keys = [
      { key: "Mod-Enter", run: handle(onRun), preventDefault: true },
      { key: "Mod-s", run: handle(onSave), preventDefault: true },
      { key: "Shift-Alt-f", run: handle(onFormat), preventDefault: true },
    ];
    const host = byId("editor");
    this.#code = new CodeView({
      parent: host,
      text,
      // Users of Vim press Escape also where it leaves no mode.
      onEscape: () => !this.#code.usesVim && onStop(),
      extensions: [
        Prec.highest(keymap.of(keys)),
        this.#label.of(labelled("")),
        EditorView.contentAttributes.of({ "aria-describedby": "tab-hint" }),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) this.saveSoon();
          if (update.docChanged || update.selectionSet) this.#showCursor(update.state);
        }),
      ],
    });
    host.cmView = this.#code.view;
    const vim = byId("vim");
    const show = () => vim.setAttribute("aria-pressed", String(store.choice("vim") === "yes"));
    vim.addEventListener("click", () => {
      store.choose("vim", store.choice("vim") === "yes" ? null : "yes");
      this.#code.useVim(store.choice("vim") === "yes");
      show();
      this.focus();
    });
    show();
    addEventListener("pagehide", () => this.#save());
    this.#showCursor(this.#code.view.state);
  }

  get text() {
    return this.#code.text;
  }

  get language() {
    return this.#code.language;
  }

  /** Replaces the whole text in one step that can be undone. */
  replace(text) {
    const { view } = this.#code;
    view.dispatch({
      changes: { from: 0, to: view.state.doc.length, insert: text },
      selection: { anchor: 0 },
      scrollIntoView: true,
      annotations: isolateHistory.of("full"),
    });
  }

  /**
   * Puts the formatted text in place of the whole, in one step that can be undone, and marks problems in it; resolves
   * to whether it is another text. The cursor stays in its line.
   */
  async format(text, problems) {
    const { markProblems } = await import("./parts/editor-help.js");
    const { view } = this.#code;
    const before = view.state.doc;
    const after = view.state.toText(text);
    const changed = !after.eq(before);
    if (changed) {
      view.dispatch({
        changes: difference(before.toString(), after.toString()),
        selection: { anchor: placeAfter(before, after, view.state.selection.main.head) },
        scrollIntoView: true,
        annotations: isolateHistory.of("full"),
      });
    }
    markProblems(view, problems);
    return changed;
  }

  setLanguage(language) {
    this.#code.setLanguage(language);
    this.#code.view.dispatch({ effects: this.#label.reconfigure(labelled(language)) });
    this.#save();
  }

  setDark(dark) {
    this.#code.setDark(dark);
  }

  focus() {
    this.#code.view.focus();
  }

  saveSoon() {
    clearTimeout(this.#saveTimer);
    this.#saveTimer = setTimeout(() => this.#save(), SAVE_AFTER_MS);
  }

  #showCursor(state) {
    const line = state.doc.lineAt(state.selection.main.head);
    byId("cursor").textContent = `Line ${line.number}, column ${state.selection.main.head - line.from + 1}`;
  }

  #save() {
    clearTimeout(this.#saveTimer);
    // Before the server has said its languages, the draft has the one that it had.
    const language = this.language || store.draft?.language;
    store.draft = { language, text: this.text, ...this.#given() };
  }
}

function labelled(language) {
  const label = language ? `Program in ${displayName(language)}` : "Program";
  return EditorView.contentAttributes.of({ "aria-label": label });
}

// The one change between two texts.
function difference(before, after) {
  const most = Math.min(before.length, after.length);
  let start = 0;
  while (start < most && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < most - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  return { from: start, to: before.length - end, insert: after.slice(start, after.length - end) };
}

// Where a place is in a formatted text: in the nearest line with the same characters, as far behind its indentation.
function placeAfter(before, after, at) {
  const line = before.lineAt(at);
  const bare = (text) => text.replace(/\s+/g, "");
  const indent = (text) => text.length - text.trimStart().length;
  const wanted = bare(line.text);
  const isWanted = (number) => number >= 1 && number <= after.lines && bare(after.line(number).text) === wanted;
  let found = Math.min(line.number, after.lines);
  for (let away = 0; away < Math.max(before.lines, after.lines); away += 1) {
    const near = [line.number - away, line.number + away].find(isWanted);
    if (near === undefined) continue;
    found = near;
    break;
  }
  const { from, text } = after.line(found);
  const column = at - line.from - indent(line.text) + indent(text);
  return from + Math.min(Math.max(column, 0), text.length);
}
