// Owns the editor of the program and the draft, which survives a reload of the tab. The element [data-testid=editor]
// has the CodeMirror view in its property `cmView`; tests set the text with
// `cmView.dispatch({changes: {from: 0, to: cmView.state.doc.length, insert: text}})`.
import { isolateHistory, undo } from "@codemirror/commands";
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
   * `onRun` is called for Ctrl/Cmd+Enter; `onStop` for Escape, and returns whether there was something to stop.
   * `given()` returns what the draft has beside the text.
   */
  constructor({ text, onRun, onStop, given }) {
    this.#given = given;
    const run = () => {
      onRun();
      return true;
    };
    const host = byId("editor");
    this.#code = new CodeView({
      parent: host,
      text,
      onEscape: onStop,
      extensions: [
        Prec.highest(keymap.of([{ key: "Mod-Enter", run, preventDefault: true }])),
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

  setLanguage(language) {
    this.#code.setLanguage(language);
    this.#code.view.dispatch({ effects: this.#label.reconfigure(labelled(language)) });
    this.#save();
  }

  setDark(dark) {
    this.#code.setDark(dark);
  }

  undo() {
    undo(this.#code.view);
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
    if (this.language) store.draft = { language: this.language, text: this.text, ...this.#given() };
  }
}

function labelled(language) {
  const label = language ? `Program in ${displayName(language)}` : "Program";
  return EditorView.contentAttributes.of({ "aria-label": label });
}
