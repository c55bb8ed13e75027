// Makes the modules by which JavaScript and TypeScript programs call the tools of one MCP server.
//
// Runs in a sandbox of its own, without a network. Standard input is one JSON object: the server's name and
// description, and its tools with their schemas, which are not trusted. Each line of standard output is one module: its
// text, and its types for readers. A schema is cleaned before a generator sees it: only keywords that describe data,
// references only into itself. A tool whose schema cannot be used takes anything.
'use strict';
const { createRequire } = require('node:module');
const fs = require('node:fs');
const { compile } = createRequire('/opt/runner/tools/')('json-schema-to-typescript');

const BYTES_MAX = 128 << 10;
const DEPTH_MAX = 40;
const MEMBERS_MAX = 2500;
const ENUM_MAX = 1000;
const TEXT_CHARS_MAX = 2000;
const ONE = new Set(['items', 'additionalProperties']);
const LIST = new Set(['anyOf', 'oneOf', 'allOf']);
const NAMED = new Set(['properties', '$defs', 'definitions']);
const PLAIN = new Set(['type', 'required', 'minItems', 'maxItems']);
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// A stranger's text that ends no comment and hides no other text.
function textOf(text) {
  return typeof text === 'string' ? text.slice(0, TEXT_CHARS_MAX).replace(HIDDEN, ' ').replaceAll('*/', '* /') : '';
}

function isScalar(value) {
  return value === null || typeof value !== 'object';
}

function clean(schema, count = { members: 0 }, depth = 0) {
  count.members += 1;
  if (depth > DEPTH_MAX || count.members > MEMBERS_MAX) throw new Error('it is too large');
  if (typeof schema === 'boolean') return schema ? {} : { not: {} };
  if (schema === null || typeof schema !== 'object' || Array.isArray(schema)) throw new Error('a schema is no object');
  const made = Object.create(null);
  for (const [name, value] of Object.entries(schema)) {
    if (ONE.has(name)) made[name] = typeof value === 'boolean' ? value : clean(value, count, depth + 1);
    else if (LIST.has(name) && Array.isArray(value)) made[name] = value.map((one) => clean(one, count, depth + 1));
    else if (NAMED.has(name) && value !== null && typeof value === 'object') {
      const inner = Object.entries(value).map(([key, one]) => [key, clean(one, count, depth + 1)]);
      made[name] = Object.fromEntries(inner);
    } else if (PLAIN.has(name)) made[name] = Array.isArray(value) ? value.filter(isScalar) : value;
    else if (name === 'description') made[name] = textOf(value);
    else if (name === 'const' && isScalar(value)) made.enum = [value];
    else if (name === 'enum' && Array.isArray(value) && value.length <= ENUM_MAX && value.every(isScalar)) {
      made[name] = value;
    } else if (name === '$ref') {
      if (typeof value !== 'string' || !/^#(\/[^/]+)*$/.test(value)) throw new Error('a reference leads elsewhere');
      made[name] = value;
    }
  }
  return made;
}

async function types(schema, name) {
  if (JSON.stringify(schema).length > BYTES_MAX) throw new Error('it is too large');
  return compile(structuredClone(clean(schema)), name, {
    additionalProperties: name === 'Result',
    bannerComment: '',
    format: false,
    $refOptions: { resolve: { external: false, file: false, http: false } },
  });
}

async function declared(tool) {
  let params = 'export type Params = Record<string, unknown>;\n';
  let result = tool.output ? 'export type Result = unknown;\n' : 'export type Result = string;\n';
  let typed = true;
  try {
    params = await types(tool.input, 'Params');
    if (tool.output) result = await types(tool.output, 'Result');
  } catch (error) {
    typed = false;
    process.stderr.write(`${tool.module}: ${String(error?.message ?? error).slice(0, 300)}\n`);
  }
  return [params, result, typed];
}

async function made(server, tool) {
  const [params, result, typed] = await declared(tool);
  const about = textOf(tool.description || tool.title || tool.name).split('\n').map((line) => ` * ${line}`).join('\n');
  const run = 'run(params: Params, options?: { signal?: AbortSignal; onProgress?: (progress: unknown) => void })';
  const names = `${JSON.stringify(server)}, ${JSON.stringify(tool.name)}`;
  return {
    module: tool.module,
    text: `import { invoke } from 'mcptools';\n/**\n${about}\n */\n`
      + 'export const run = (params = {}, options = {}) =>\n'
      + `  invoke(${names}, params, options, ${Boolean(tool.output)});\n`
      + 'export default run;\n',
    types: `${params}\n${result}\n/**\n${about}\n */\nexport declare function ${run}: Promise<Result>;\n`
      .replace(HIDDEN, ' '),
    signature: `${tool.module}(params: Params): Promise<${tool.output ? 'Result' : 'string'}>`,
    typed,
  };
}

async function main() {
  const { server, tools } = JSON.parse(fs.readFileSync(0, 'utf8'));
  const lines = [];
  for (const tool of tools) lines.push(await made(server, tool));
  // A name that JavaScript forbids is quoted.
  const one = (tool) => {
    const names = `${JSON.stringify(server)}, ${JSON.stringify(tool.name)}`;
    return `const f${tools.indexOf(tool)} = (params = {}, options = {}) => `
      + `invoke(${names}, params, options, ${Boolean(tool.output)});\n`
      + `export { f${tools.indexOf(tool)} as ${JSON.stringify(tool.module)} };\n`;
  };
  const text = `import { invoke } from 'mcptools';\n${tools.map(one).join('')}`;
  const about = lines.map((line) => `// ${line.signature}\n`).join('');
  for (const line of [{ module: '', text, types: about, signature: '' }, ...lines]) {
    process.stdout.write(`${JSON.stringify(line)}\n`);
  }
}

main();
