// Owns display names and editor modes of known languages. Any other language of the server works too, as plain text. A
// mode is loaded when it is first needed.
import { StreamLanguage, indentUnit } from "@codemirror/language";

const four = indentUnit.of("    ");
const two = indentUnit.of("  ");
const stream = (load, name) => async () => StreamLanguage.define((await load())[name]);

const python = async () => (await import("./parts/python.js")).python();
const javascript = async (options) => (await import("./parts/javascript.js")).javascript(options);
const shell = stream(() => import("./parts/shell.js"), "shell");
const ruby = stream(() => import("./parts/ruby.js"), "ruby");

const KNOWN = {
  python: { name: "Python", indent: four, mode: python, endings: ["py"] },
  typescript: { name: "TypeScript", mode: () => javascript({ typescript: true }), endings: ["ts", "mts", "cts"] },
  javascript: { name: "JavaScript", mode: () => javascript(), endings: ["js", "mjs", "cjs", "json", "jsx"] },
  bash: { name: "Bash", mode: shell, endings: ["sh", "bash"] },
  sh: { name: "Shell", mode: shell, endings: [] },
  ruby: { name: "Ruby", mode: ruby, endings: ["rb"] },
};

const known = (language) => (Object.hasOwn(KNOWN, language) ? KNOWN[language] : null);

export function displayName(language) {
  return known(language)?.name ?? language;
}

/** Resolves to the extensions of a language. */
export async function editorMode(language) {
  const entry = known(language);
  const indent = entry?.indent ?? two;
  return entry ? [await entry.mode(), indent] : [indent];
}

/** The usual name of a program's file. */
export function fileNameOf(language) {
  return `main.${known(language)?.endings[0] ?? "txt"}`;
}

/** The language of a file by its name, or an empty text. */
export function languageOf(path) {
  const ending = path.slice(path.lastIndexOf(".") + 1).toLowerCase();
  return Object.keys(KNOWN).find((language) => KNOWN[language].endings.includes(ending)) ?? "";
}
