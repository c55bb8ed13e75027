// Owns the editor's look. Every colour is a custom property of style.css, so that light and dark need no second theme.
import { EditorView, HighlightStyle, syntaxHighlighting, tags as t } from "../vendor/codemirror.js";

const frame = EditorView.theme({
  "&": { height: "100%", color: "var(--text)", backgroundColor: "transparent", fontSize: "var(--code-size)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", overflow: "auto" },
  ".cm-content": { padding: "12px 0", caretColor: "var(--accent)" },
  ".cm-line": { padding: "0 16px 0 8px" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--faint)", border: "none", paddingLeft: "6px" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "28px" },
  ".cm-activeLine": { backgroundColor: "var(--line)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--muted)" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--accent)", borderLeftWidth: "2px" },
  "& > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { background: "var(--selection)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { background: "var(--selection)" },
  ".cm-selectionMatch": { backgroundColor: "var(--match)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "var(--match)", outline: "1px solid var(--border-strong)" },
  "&.cm-focused .cm-nonmatchingBracket": { backgroundColor: "var(--fail-soft)" },
  ".cm-searchMatch": { backgroundColor: "var(--match)", outline: "1px solid var(--border-strong)" },
  ".cm-searchMatch.cm-searchMatch-selected": { backgroundColor: "var(--selection)" },
  ".cm-specialChar": { color: "var(--fail)" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-foldPlaceholder": {
    background: "var(--raised)",
    border: "1px solid var(--border)",
    color: "var(--muted)",
    padding: "0 4px",
  },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", fontFamily: "var(--sans)", zIndex: "5" },
  ".cm-panels.cm-panels-bottom": { borderTop: "1px solid var(--border)" },
  ".cm-panel.cm-search": { padding: "8px 32px 8px 10px" },
  ".cm-panel.cm-search label": { fontSize: "12.5px", color: "var(--muted)" },
  ".cm-panel.cm-search [name=close]": { color: "var(--muted)", fontSize: "18px", right: "8px", top: "4px" },
  ".cm-textfield": {
    backgroundColor: "var(--surface)",
    border: "1px solid var(--border-strong)",
    borderRadius: "6px",
    color: "var(--text)",
    fontSize: "13px",
    padding: "4px 8px",
  },
  ".cm-button": {
    backgroundImage: "none",
    backgroundColor: "var(--surface)",
    border: "1px solid var(--border-strong)",
    borderRadius: "6px",
    color: "var(--text)",
    fontSize: "12.5px",
    padding: "4px 9px",
  },
});

const syntax = HighlightStyle.define([
  {
    tag: [t.keyword, t.modifier, t.operatorKeyword, t.controlKeyword, t.definitionKeyword, t.moduleKeyword],
    color: "var(--syn-keyword)",
  },
  { tag: [t.string, t.special(t.string), t.regexp, t.character, t.escape], color: "var(--syn-string)" },
  { tag: [t.number, t.bool, t.null, t.atom], color: "var(--syn-number)" },
  {
    tag: [t.comment, t.lineComment, t.blockComment, t.docComment, t.meta],
    color: "var(--syn-comment)",
    fontStyle: "italic",
  },
  {
    tag: [t.function(t.variableName), t.function(t.propertyName), t.function(t.definition(t.variableName))],
    color: "var(--syn-function)",
  },
  { tag: [t.typeName, t.className, t.namespace, t.standard(t.variableName), t.self], color: "var(--syn-type)" },
  { tag: [t.propertyName, t.attributeName], color: "var(--syn-property)" },
  { tag: t.invalid, color: "var(--fail)" },
]);

export const editorTheme = [frame, syntaxHighlighting(syntax)];
