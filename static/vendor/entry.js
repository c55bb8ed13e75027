// What the page takes from CodeMirror: this list is the whole bundle. Languages and theme are chosen in static/js.
export { Compartment, EditorState, Prec } from "@codemirror/state";
export {
  EditorView, drawSelection, dropCursor, highlightActiveLine, highlightActiveLineGutter,
  highlightSpecialChars, keymap, lineNumbers, placeholder, rectangularSelection,
} from "@codemirror/view";
export { defaultKeymap, history, historyKeymap, indentWithTab, isolateHistory, undo } from "@codemirror/commands";
export {
  HighlightStyle, StreamLanguage, bracketMatching, foldGutter, foldKeymap, indentOnInput, indentUnit, syntaxHighlighting,
} from "@codemirror/language";
export { closeBrackets, closeBracketsKeymap } from "@codemirror/autocomplete";
export { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
export { python } from "@codemirror/lang-python";
export { javascript } from "@codemirror/lang-javascript";
export { shell } from "@codemirror/legacy-modes/mode/shell";
export { ruby } from "@codemirror/legacy-modes/mode/ruby";
export { tags } from "@lezer/highlight";
