// Owns what every editor of the page has: keys, search, look, and how its language is set. `Editor` is the one for the
// program, `Viewer` has another for files.
import { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, foldKeymap, indentOnInput } from "@codemirror/language";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import {
  EditorView,
  drawSelection,
  dropCursor,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  keymap,
  lineNumbers,
  rectangularSelection,
} from "@codemirror/view";
import { editorTheme } from "./editor-theme.js";
import { editorMode } from "./languages.js";
import { announce, toast } from "./page.js";
import { store } from "./store.js";

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

export class CodeView {
  view;
  #mode = new Compartment();
  #help = new Compartment();
  #vim = new Compartment();
  #dark = new Compartment();
  #language = "";
  #usesVim = false;
  #tabLeaves = false;

  /** `onEscape()` returns whether it handled the key. */
  constructor({ parent, text, extensions = [], onEscape = () => false }) {
    this.view = new EditorView({
      parent,
      state: EditorState.create({ doc: text, extensions: this.#extensions(extensions, onEscape) }),
    });
    this.useVim(store.choice("vim") === "yes");
    this.#loadHelp();
  }

  get text() {
    return this.view.state.doc.toString();
  }

  get language() {
    return this.#language;
  }

  /** Whether Vim's keys are chosen. */
  get usesVim() {
    return this.#usesVim;
  }

  /** Whether Tab moves the focus now, after Escape. */
  get tabLeaves() {
    return this.#tabLeaves;
  }

  async setLanguage(language) {
    if (language === this.#language) return;
    this.#language = language;
    try {
      const mode = await editorMode(language);
      if (language === this.#language) this.view.dispatch({ effects: this.#mode.reconfigure(mode) });
    } catch {
      toast("The editor's mode for this language could not be loaded. Reload the page to try again.");
    }
  }

  setDark(dark) {
    this.view.dispatch({ effects: this.#dark.reconfigure(EditorView.darkTheme.of(dark)) });
  }

  async useVim(on) {
    this.#usesVim = on;
    try {
      const extension = on ? [(await import("./parts/vim.js")).vim({ status: true })] : [];
      if (on === this.#usesVim) this.view.dispatch({ effects: this.#vim.reconfigure(extension) });
    } catch {
      toast("Vim's keys could not be loaded. Reload the page to try again.");
    }
  }

  async #loadHelp() {
    try {
      const { help } = await import("./parts/editor-help.js");
      this.view.dispatch({ effects: this.#help.reconfigure(help) });
    } catch {
      toast("The editor's completion could not be loaded. Reload the page to try again.");
    }
  }

  #extensions(more, onEscape) {
    return [
      this.#vim.of([]),
      Prec.low(keymap.of([{ key: "Escape", run: () => onEscape() || this.#releaseTab() }])),
      more,
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
      search({ top: true }),
      EditorState.allowMultipleSelections.of(true),
      this.#help.of([]),
      keymap.of([
        ...closeBracketsKeymap,
        ...searchKeymap,
        ...historyKeymap,
        ...foldKeymap,
        ...defaultKeymap,
        indentWithTab,
      ]),
      this.#mode.of([]),
      this.#dark.of([]),
      editorTheme,
      typeOverLines,
      EditorView.contentAttributes.of({ tabindex: "0", autocapitalize: "off", spellcheck: "false" }),
      EditorView.domEventHandlers({ blur: () => this.#setTabLeaves(false) }),
    ];
  }

  // Tab indents, so keyboard users need a way out: after Escape, Tab moves the focus until the editor loses it.
  #releaseTab() {
    this.#setTabLeaves(true);
    announce("Tab now leaves the editor.");
    return true;
  }

  #setTabLeaves(leaves) {
    this.#tabLeaves = leaves;
    this.view.setTabFocusMode(leaves);
  }
}
