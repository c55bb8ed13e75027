// Owns what the editor offers while one types: words of the language and of the program, and marks where the program
// cannot be parsed, without the server; and marks of what the server's tools found. Loaded after the page.
import "../kit.js";
import { autocompletion, completeAnyWord, completionKeymap } from "@codemirror/autocomplete";
import { language, syntaxTree } from "@codemirror/language";
import { forceLinting, linter } from "@codemirror/lint";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { keymap } from "@codemirror/view";

const MARKS_MAX = 20;
// Above this, a program is not checked while one types.
const CHECKED_CHARS_MAX = 200_000;

const setFound = StateEffect.define();

// What the tools found, until its place is edited or the language changes.
const foundByTools = StateField.define({
  create: () => [],
  update(found, { changes, docChanged, effects, startState, state }) {
    const set = effects.find((effect) => effect.is(setFound));
    if (set) return set.value;
    if (startState.facet(language) !== state.facet(language)) return [];
    if (!docChanged) return found;
    const kept = found.filter(({ from, to }) => !changes.touchesRange(from, to));
    return kept.map((mark) => ({ ...mark, from: changes.mapPos(mark.from), to: changes.mapPos(mark.to) }));
  },
});

function marks({ state }) {
  const found = state.field(foundByTools);
  // The tools say more about it than the editor can.
  return found.some(({ isSyntax }) => isSyntax) ? found : [...found, ...syntaxErrors(state)];
}

function syntaxErrors(state) {
  const found = [];
  if (state.doc.length > CHECKED_CHARS_MAX) return found;
  syntaxTree(state).iterate({
    enter({ type, from, to }) {
      if (!type.isError || found.length >= MARKS_MAX) return;
      const line = state.doc.lineAt(from);
      const start = from === to ? Math.max(line.from, from - 1) : from;
      const end = Math.min(Math.max(to, start + 1), Math.max(line.to, start));
      if (found.at(-1)?.from !== start)
        found.push({ from: start, to: end, severity: "error", message: "Syntax error" });
    },
  });
  return found;
}

// These languages offer words of their own.
function isParsed(state) {
  return /^(python|javascript|typescript)$/.test(state.facet(language)?.name ?? "");
}

export const help = [
  autocompletion({ activateOnTypingDelay: 150, maxRenderedOptions: 10 }),
  EditorState.languageData.of((state) => (isParsed(state) ? [] : [{ autocomplete: completeAnyWord }])),
  foundByTools,
  linter(marks, {
    delay: 700,
    needsRefresh: ({ startState, state }) =>
      startState.field(foundByTools, false) !== state.field(foundByTools, false),
  }),
  keymap.of(completionKeymap),
];

/** Marks problems of `/v1/check` in the editor's text, in place of those that were marked before. */
export function markProblems(view, problems) {
  const { doc } = view.state;
  const found = problems.map(({ line, column, endLine, endColumn, rule, message, severity }) => {
    const from = placeOf(doc, line, column);
    const isSyntax = rule === "syntax";
    const to = Math.max(from, placeOf(doc, endLine, endColumn));
    return { from, to, severity, isSyntax, message: isSyntax ? message : `${message} (${rule})` };
  });
  view.dispatch({ effects: setFound.of(found) });
  forceLinting(view);
}

// Columns count characters, of which some are two of the editor's.
function placeOf(doc, line, column) {
  const { from, text } = doc.line(Math.min(Math.max(line, 1), doc.lines));
  return from + [...text].slice(0, column - 1).join("").length;
}
