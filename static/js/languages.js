// Owns display names and editor modes of known languages. Any other language of the server works too, as plain text.
import { StreamLanguage, indentUnit, javascript, python, ruby, shell } from "../vendor/codemirror.js";

const four = indentUnit.of("    ");
const two = indentUnit.of("  ");

const KNOWN = {
  python: { name: "Python", mode: () => [python(), four] },
  typescript: { name: "TypeScript", mode: () => [javascript({ typescript: true }), two] },
  javascript: { name: "JavaScript", mode: () => [javascript(), two] },
  bash: { name: "Bash", mode: () => [StreamLanguage.define(shell), two] },
  sh: { name: "Shell", mode: () => [StreamLanguage.define(shell), two] },
  ruby: { name: "Ruby", mode: () => [StreamLanguage.define(ruby), two] },
};

const known = (language) => (Object.hasOwn(KNOWN, language) ? KNOWN[language] : null);

export function displayName(language) {
  return known(language)?.name ?? language;
}

export function editorMode(language) {
  return known(language)?.mode() ?? [two];
}
