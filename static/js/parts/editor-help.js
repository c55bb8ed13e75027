// Owns what the editor offers while one types: words of the language and of the program, and marks where the program
// cannot be parsed. Loaded after the page, without the server.
import "../kit.js";
import { autocompletion, completeAnyWord, completionKeymap } from "@codemirror/autocomplete";
import { language, syntaxTree } from "@codemirror/language";
import { linter } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { keymap } from "@codemirror/view";

const MARKS_MAX = 20;
// Above this, a program is not checked while one types.
const CHECKED_CHARS_MAX = 200_000;

function syntaxErrors({ state }) {
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
  linter(syntaxErrors, { delay: 700 }),
  keymap.of(completionKeymap),
];
