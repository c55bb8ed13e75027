// Formats and checks a JavaScript or TypeScript program by biome, and prints one JSON object. Standard input has the
// name of the program's file, a line feed, and the program, which is read and never executed.
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

const PROBLEMS_MAX = 100;
const MESSAGE_CHARS_MAX = 500;
// The status that says that the tool crashed, which a program does to it that is nested too deeply.
const CRASHED = 3;
const FOLDER = "/tmp/check";
const SIZE = "--files-max-size=134217728";

function biome(words, input = "") {
  const options = { input, encoding: "utf8", cwd: FOLDER, maxBuffer: 2 ** 28 };
  const { error, ...ended } = spawnSync("biome", words, options);
  if (error) throw error;
  if (ended.signal) process.exit(CRASHED);
  return ended;
}

function problem({ severity, message, category, location }) {
  const start = location?.start ?? { line: 1, column: 1 };
  const end = location?.end ?? start;
  const isBefore = end.line < start.line || (end.line === start.line && end.column < start.column);
  const last = isBefore ? start : end;
  const isSyntax = category === "parse";
  const known = { fatal: "error", error: "error", warning: "warning" };
  return {
    line: start.line,
    column: start.column,
    endLine: last.line,
    endColumn: last.column,
    rule: isSyntax ? "syntax" : String(category ?? "biome").replace(/^lint\//, ""),
    message: [...String(message)].slice(0, MESSAGE_CHARS_MAX).join(""),
    severity: known[severity] ?? "info",
  };
}

const input = readFileSync(0, "utf8");
const end = input.indexOf("\n");
const name = input.slice(0, end);
const code = input.slice(end + 1);
mkdirSync(FOLDER);
const style = ["--indent-style=space", "--indent-width=2"];
const formatted = biome(["format", ...style, SIZE, `--stdin-file-path=${name}`], code);
const text = formatted.status === 0 ? formatted.stdout : null;
writeFileSync(`${FOLDER}/${name}`, text ?? code);
const checked = biome(["lint", SIZE, "--reporter=json", `--max-diagnostics=${PROBLEMS_MAX}`, name]);
let problems = JSON.parse(checked.stdout).diagnostics.map(problem);
if (text === null) {
  problems = problems.filter(({ rule }) => rule === "syntax");
  if (!problems.length) throw new Error(formatted.stderr);
}
console.log(JSON.stringify({ code: text, problems: problems.slice(0, PROBLEMS_MAX) }));
