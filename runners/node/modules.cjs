'use strict';
// Loaded into every Node of the JavaScript and TypeScript images before the program. The program is the file
// /tmp/main.js or /tmp/main.ts, but its other files are in /data: imports are resolved there first.
//
// All of this uses Node's own hooks. None of them is on the stack while the program runs, so a program's stack traces
// have no frame of this file.

const { createRequire, isBuiltin, registerHooks } = require('node:module');
const path = require('node:path');

const PROGRAM = process.argv[1] ?? '/tmp/main.js';
const PROGRAMS = /^file:\/\/\/tmp\/main\.[jt]s$/;
const NEIGHBOURS = '/data';
const NEIGHBOURS_URL = 'file:///data/';

// Variants to try when a specifier is not found, as other tools for these languages do.
const ENDINGS = ['.ts', '.mts', '.cts', '.tsx', '.js', '.mjs', '.cjs', '.json', '/index.ts', '/index.js'];
const WRITTEN_IN = { '.js': '.ts', '.mjs': '.mts', '.cjs': '.cts', '.jsx': '.tsx' };
const NOT_FOUND = new Set(['ERR_MODULE_NOT_FOUND', 'MODULE_NOT_FOUND', 'ERR_UNSUPPORTED_DIR_IMPORT']);

function meanings(specifier) {
  const ending = /\.[^./]+$/.exec(specifier)?.[0];
  const written = ending in WRITTEN_IN ? [specifier.slice(0, -ending.length) + WRITTEN_IN[ending]] : [];
  return [specifier, ...written, ...ENDINGS.map((added) => specifier + added)];
}

// Throws Node's own error for a missing module, without the frames of this file.
function giveUp(specifier, context, nextResolve) {
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 0;
  try {
    return nextResolve(specifier, context);
  } finally {
    Error.stackTraceLimit = limit;
  }
}

function find(specifier, context, nextResolve) {
  const { parentURL } = context;
  const fromProgram = PROGRAMS.test(parentURL);
  const isFile = /^\.{0,2}\/|^\.{1,2}$/.test(specifier);
  const wanted = isFile && fromProgram ? path.resolve(NEIGHBOURS, specifier) : specifier;
  const tries = (isFile ? meanings(wanted) : [wanted]).map((meaning) => [meaning, { ...context }]);
  // A package in /data/node_modules comes before one in /node_modules, where those of the conversation are.
  if (!isFile && fromProgram && !isBuiltin(specifier)) {
    const required = context.conditions?.includes('require');
    tries.unshift(
      required
        ? [path.join(NEIGHBOURS, 'node_modules', specifier), { ...context }]
        : [specifier, { ...context, parentURL: NEIGHBOURS_URL }],
    );
  }
  for (const [meaning, inContext] of tries) {
    try {
      return nextResolve(meaning, inContext);
    } catch (error) {
      if (!NOT_FOUND.has(error?.code)) throw error;
    }
  }
  // Node keeps the last parent in `context`, so it is set again.
  return giveUp(wanted, { ...context, parentURL }, nextResolve);
}

// Tools of MCP servers: modules that the server makes.
const TOOLS = '/opt/runner/mcptools.cjs';
const TOOL = /^mcptools(\/\w+){1,2}$/;

registerHooks({
  load(url, context, nextLoad) {
    if (!url.startsWith('mcptools:')) return nextLoad(url, context);
    return { format: 'module', source: require(TOOLS).source(url.replace(':', '/')), shortCircuit: true };
  },
  resolve(specifier, context, nextResolve) {
    if (specifier === 'mcptools') return { url: `file://${TOOLS}`, format: 'commonjs', shortCircuit: true };
    if (TOOL.test(specifier)) return { url: specifier.replace('/', ':'), format: 'module', shortCircuit: true };
    if (specifier.startsWith('node:') || context.parentURL === undefined) return nextResolve(specifier, context);
    const found = find(specifier, context, nextResolve);
    // `import data from "./data.json"`, as TypeScript and bundlers allow it.
    if (found.url?.endsWith('.json') && !context.importAttributes?.type && context.conditions?.includes('import')) {
      return { ...found, importAttributes: { ...context.importAttributes, type: 'json' } };
    }
    return found;
  },
});

// In a CommonJS module these five are parameters, which hide the globals. In an ES module they would be missing, but
// programs mix both styles, `if (require.main === module)` included.
const main = { exports: {}, filename: PROGRAM, id: '.', loaded: false, children: [], paths: [] };
const requireHere = createRequire(PROGRAM);
requireHere.main = main;
const styles = {
  require: requireHere, module: main, exports: main.exports, __filename: PROGRAM, __dirname: path.dirname(PROGRAM),
};
for (const [name, value] of Object.entries(styles)) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

// Otherwise output to a pipe is written in the background, and process.exit() loses what is not written yet.
for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);

// Started ahead of its program: this returns when the program arrives. For TypeScript, transpile.cjs waits.
if (process.env.SANDBOX_CONTROL_FD && !PROGRAM.endsWith('.ts')) require('./warm.cjs')(() => {});
