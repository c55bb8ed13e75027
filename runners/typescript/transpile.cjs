'use strict';
// Transpiles TypeScript when Node loads it: the program and its imports from /data. Types are removed, not checked.
// Source maps give stack traces the user's line numbers.

const fs = require('node:fs');
const { registerHooks } = require('node:module');
const { fileURLToPath } = require('node:url');
const { transformSync } = require('@swc/core');

const SOURCE = /\.([cm]?ts|tsx)$/;
const PROGRAM = 'file:///tmp/main.ts';

// Two kinds of decorators share one syntax. Most programs use the older kind (NestJS, TypeORM, experimentalDecorators);
// a program that uses features of the standard kind gets that.
const STANDARD_DECORATORS = new RegExp([
  /\b(Class\w*|)DecoratorContext\b/,
  /\bcontext\.(addInitializer|kind|name|access|metadata)\b/,
  /^\s*(@\w.*\s)?(public |private |static )*accessor\s+[\w#]/,
].map(({ source }) => source).join('|'), 'm');
// An older field decorator uses the prototype, which a newly defined field would hide.
const ANY_DECORATOR = /^\s*@\w/m;
// An ES module by default, for top-level await. These assignments exist only in CommonJS.
const COMMONJS = /^\s*(module\.)?exports\b.*=|^\s*export\s*=/m;
// In an ES module `require.main` is the global one (see modules.cjs), so only the program may read it. In other modules
// it is replaced by an undefined value of the same length.
const REQUIRE_MAIN = /\brequire\.main\b/g;
const NOTHING = '(undefined) ';
// An imported CommonJS module gets a `require` without hooks; this one has them. The first line of such a module is
// only "use strict", so the user's line numbers stay.
const REQUIRE = '"use strict";require=require("node:module").createRequire(__filename);';

const loaded = new Map(); // Node asks twice for an entry point that turns out to be an ES module

function options(url, source, commonjs) {
  const standard = STANDARD_DECORATORS.test(source);
  return {
    filename: fileURLToPath(url),
    swcrc: false,
    configFile: false,
    sourceMaps: 'inline',
    inlineSourcesContent: true,
    module: commonjs ? { type: 'commonjs' } : { type: 'nodenext' },
    jsc: {
      target: 'es2022',
      parser: { syntax: 'typescript', tsx: url.endsWith('x'), decorators: true },
      transform: standard
        ? { decoratorVersion: '2022-03' }
        : { legacyDecorator: true, decoratorMetadata: true, useDefineForClassFields: !ANY_DECORATOR.test(source) },
    },
  };
}

function isCommonJs(url, source) {
  if (url.endsWith('.cts')) return true;
  if (url.endsWith('.mts')) return false;
  return COMMONJS.test(source);
}

// Formats the report of swc as Node would: position, line, caret, error.
function diagnosis(file, report) {
  const found = [];
  let number;
  for (const line of report.split('\n\nCaused by')[0].split('\n')) {
    const title = /^\s*x\s(.*)/.exec(line)?.[1];
    const [, numbered, code] = /^\s*(\d+) [|] ?(.*)/.exec(line) ?? [];
    const caret = /^\s*: (\s*)(\^+|[|^]|[^\s])/.exec(line);
    if (title !== undefined) found.push({ title });
    else if (numbered) number = { numbered, code };
    else if (caret && number && found.length > 0 && !found.at(-1).place) {
      const column = caret[1].length + 1;
      found.at(-1).place = `${file}:${number.numbered}:${column}\n${number.code}\n${' '.repeat(column - 1)}^\n`;
    }
  }
  if (found.length === 0) return `${file}\nSyntaxError: ${report}`;
  return found.map(({ title, place }) => `${place ?? `${file}\n`}SyntaxError: ${title}`).join('\n\n');
}

function transpile(url) {
  const file = fileURLToPath(url);
  let source = fs.readFileSync(file, 'utf8').replace(/^\uFEFF/, '');
  const commonjs = isCommonJs(url, source);
  if (url !== PROGRAM && !commonjs) source = source.replace(REQUIRE_MAIN, NOTHING);
  try {
    const { code } = transformSync(source, options(url, source, commonjs));
    return { format: commonjs ? 'commonjs' : 'module', source: commonjs ? REQUIRE + code : code, shortCircuit: true };
  } catch (error) {
    const text = diagnosis(file, error.message);
    if (url === PROGRAM) {
      fs.writeSync(2, `${text}\n`);
      process.exit(1);
    }
    const syntaxError = new SyntaxError(text.replace(/\nSyntaxError: /, '\n'));
    syntaxError.stack = text;
    throw syntaxError;
  }
}

registerHooks({
  load(url, context, nextLoad) {
    if (!url.startsWith('file:') || !SOURCE.test(url)) return nextLoad(url, context);
    if (!loaded.has(url)) loaded.set(url, transpile(url));
    return loaded.get(url);
  },
});

// Started ahead of its program: this returns when the program arrives. The example goes through what the program's file
// will: transpiling, and Node's loader of ES modules, whose functions are compiled at their first use.
if (process.env.SANDBOX_CONTROL_FD) {
  require('./warm.cjs')(() => {
    const example = require.resolve('./example.mts');
    require(example);
    delete require.cache[example];
    loaded.clear();
  });
}
