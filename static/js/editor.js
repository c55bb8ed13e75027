// Owns the code editor and the draft, which survives a reload of the tab. The element [data-testid=editor] has the
// CodeMirror view in its property `cmView`; tests set the text with
// `cmView.dispatch({changes: {from: 0, to: cmView.state.doc.length, insert: text}})`.
import {
  Compartment,
  EditorState,
  EditorView,
  Prec,
  bracketMatching,
  closeBrackets,
  closeBracketsKeymap,
  defaultKeymap,
  drawSelection,
  dropCursor,
  foldKeymap,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSelectionMatches,
  highlightSpecialChars,
  history,
  historyKeymap,
  indentOnInput,
  indentWithTab,
  isolateHistory,
  keymap,
  lineNumbers,
  rectangularSelection,
  search,
  searchKeymap,
  undo,
} from "../vendor/codemirror.js";
import { byId } from "./dom.js";
import { editorTheme } from "./editor-theme.js";
import { displayName, editorMode } from "./languages.js";
import { announce } from "./page.js";
import { store } from "./store.js";

const SAVE_AFTER_MS = 250;

// When a selection of several lines is typed over, browsers join the lines by wrapping the rest in an element with an
// inline style, which the content policy blocks and reports. This handler gives the text to CodeMirror directly, with
// the same result and without that element.
const typeOverLines = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { state } = view;
    const { from, to } = state.selection.main;
    const oneLine = state.doc.lineAt(from).to >= to;
    if (event.inputType !== "insertText" || !event.data || event.isComposing || view.composing || oneLine) return false;
    const insert = () =>
      state.update(state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
    const handled = state.facet(EditorView.inputHandler).some((handler) => handler(view, from, to, event.data, insert));
    if (!handled) view.dispatch(insert());
    event.preventDefault();
    return true;
  },
});

export class Editor {
  #mode = new Compartment();
  #label = new Compartment();
  #dark = new Compartment();
  #view;
  #language = "";
  #saveTimer = 0;

  /** `onRun` is called for Ctrl/Cmd+Enter. */
  constructor({ text, onRun }) {
    const host = byId("editor");
    this.#view = new EditorView({
      parent: host,
      state: EditorState.create({ doc: text, extensions: this.#extensions(onRun) }),
    });
    host.cmView = this.#view;
    addEventListener("pagehide", () => this.#save());
    this.#showCursor();
  }

  get text() {
    return this.#view.state.doc.toString();
  }

  get language() {
    return this.#language;
  }

  /** Replaces the whole text in one step that can be undone. */
  replace(text) {
    this.#view.dispatch({
      changes: { from: 0, to: this.#view.state.doc.length, insert: text },
      selection: { anchor: 0 },
      scrollIntoView: true,
      annotations: isolateHistory.of("full"),
    });
  }

  setLanguage(language) {
    this.#language = language;
    this.#view.dispatch({
      effects: [this.#mode.reconfigure(editorMode(language)), this.#label.reconfigure(labelled(language))],
    });
    this.#save();
  }

  setDark(dark) {
    this.#view.dispatch({ effects: this.#dark.reconfigure(EditorView.darkTheme.of(dark)) });
  }

  undo() {
    undo(this.#view);
  }

  focus() {
    this.#view.focus();
  }

  #extensions(onRun) {
    const run = () => {
      onRun();
      return true;
    };
    return [
      Prec.highest(keymap.of([{ key: "Mod-Enter", run, preventDefault: true }])),
      Prec.low(keymap.of([{ key: "Escape", run: (view) => this.#releaseTab(view) }])),
      lineNumbers(),
      highlightActiveLineGutter(),
      highlightActiveLine(),
      highlightSpecialChars(),
      history(),
      drawSelection(),
      dropCursor(),
      rectangularSelection(),
      indentOnInput(),
      bracketMatching(),
      closeBrackets(),
      highlightSelectionMatches(),
      search(),
      EditorState.allowMultipleSelections.of(true),
      keymap.of([
        ...closeBracketsKeymap,
        ...searchKeymap,
        ...historyKeymap,
        ...foldKeymap,
        ...defaultKeymap,
        indentWithTab,
      ]),
      this.#mode.of([]),
      this.#label.of(labelled("")),
      this.#dark.of([]),
      editorTheme,
      typeOverLines,
      EditorView.contentAttributes.of({
        "aria-describedby": "tab-hint",
        tabindex: "0",
        autocapitalize: "off",
        spellcheck: "false",
      }),
      EditorView.domEventHandlers({ blur: (_event, view) => view.setTabFocusMode(false) }),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) this.#saveSoon();
        if (update.docChanged || update.selectionSet) this.#showCursor();
      }),
    ];
  }

  // Tab indents, so keyboard users need a way out: after Escape, Tab moves the focus until the editor loses it.
  #releaseTab(view) {
    view.setTabFocusMode(true);
    announce("Tab now leaves the editor.");
    return true;
  }

  #showCursor() {
    const { state } = this.#view;
    const line = state.doc.lineAt(state.selection.main.head);
    byId("cursor").textContent = `Line ${line.number}, column ${state.selection.main.head - line.from + 1}`;
  }

  #saveSoon() {
    clearTimeout(this.#saveTimer);
    this.#saveTimer = setTimeout(() => this.#save(), SAVE_AFTER_MS);
  }

  #save() {
    clearTimeout(this.#saveTimer);
    if (this.#language) store.draft = { language: this.#language, text: this.text };
  }
}

function labelled(language) {
  const label = language ? `Program in ${displayName(language)}` : "Program";
  return EditorView.contentAttributes.of({ "aria-label": label });
}
