'use strict';
// Tools of MCP servers for Node (../README.md, Tools): calls go through the sandbox's server, on one connection for the
// whole process. `mcptools/<server>/<tool>` is a module that the server makes; modules.cjs asks for its source here.

const net = require('node:net');
const { spawnSync } = require('node:child_process');

const PORT = 3128;
const MESSAGES = 2;
const MESSAGE_BYTES_MAX = 1 << 20;
const NONE = 'No tools are offered to this program.';

class ToolError extends Error {
  constructor(code, message) {
    super(message);
    this.name = 'ToolError';
    this.code = code;
  }
}

let connection;
let count = 0;

function connect() {
  if (connection && !connection.ended) return connection;
  const socket = net.connect(PORT, '127.0.0.1');
  const made = { socket, waiting: new Map(), ended: false };
  let held = Buffer.alloc(0);
  const end = (error) => {
    made.ended = true;
    for (const waiting of made.waiting.values()) waiting.reject(error);
    made.waiting.clear();
    socket.destroy();
  };
  socket.setNoDelay(true);
  socket.write(Buffer.from([MESSAGES]));
  socket.on('data', (data) => {
    held = held.length === 0 ? data : Buffer.concat([held, data]);
    while (held.length >= 4 && held.length >= 4 + held.readUInt32BE()) {
      const length = 4 + held.readUInt32BE();
      const message = JSON.parse(held.subarray(4, length).toString('utf8'));
      held = held.subarray(length);
      if (message.id == null) return end(new ToolError(message.error?.code, message.error?.message));
      const waiting = made.waiting.get(message.id);
      if (message.progress) waiting?.onProgress?.(message.progress);
      else {
        made.waiting.delete(message.id);
        // A program ends when it waits for nothing.
        if (made.waiting.size === 0) socket.unref();
        if (message.error) waiting?.reject(new ToolError(message.error.code, message.error.message));
        else waiting?.resolve(message);
      }
    }
  });
  socket.on('error', () => end(new ToolError('tool_unavailable', NONE)));
  socket.on('close', () => end(new ToolError('tool_unavailable', NONE)));
  connection = made;
  return made;
}

function send(message, { signal, onProgress } = {}) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const frame = (content) => {
      const data = Buffer.from(JSON.stringify(content));
      if (data.length > MESSAGE_BYTES_MAX) {
        const why = `The arguments are longer than ${MESSAGE_BYTES_MAX} bytes: put large data into a file in /data.`;
        throw new ToolError('invalid_arguments', why);
      }
      const length = Buffer.alloc(4);
      length.writeUInt32BE(data.length);
      return Buffer.concat([length, data]);
    };
    const id = (count += 1);
    const data = frame({ id, ...message });
    const to = connect();
    const abort = () => {
      if (!to.waiting.delete(id)) return;
      to.socket.write(frame({ id, cancel: true }));
      if (to.waiting.size === 0) to.socket.unref();
      reject(signal.reason);
    };
    const over = (end) => (value) => {
      signal?.removeEventListener('abort', abort);
      end(value);
    };
    to.waiting.set(id, { resolve: over(resolve), reject: over(reject), onProgress });
    to.socket.ref();
    to.socket.write(data);
    signal?.addEventListener('abort', abort, { once: true });
  });
}

/** Calls a tool by its names: `{structured, text, files}`. */
async function call(server, tool, args = {}, options = {}) {
  const { result } = await send({ call: { server, tool, arguments: args } }, options);
  return { text: '', files: [], ...result };
}

/** For generated modules: the structured answer, or the text with the paths of files. */
async function invoke(server, tool, args, options, isStructured) {
  const { structured, text, files } = await call(server, tool, args, options);
  if (structured !== undefined && (isStructured || text === '')) return structured;
  if (isStructured) {
    try {
      return JSON.parse(text);
    } catch {
      throw new ToolError('tool_failed', `${tool} gave no structured answer: ${text.slice(0, 500)}`);
    }
  }
  return [text, ...files.map((path) => `[file: ${path}]`)].filter(Boolean).join('\n');
}

/** The source of a module, at once: an import waits for it. */
function source(name) {
  const options = { encoding: 'utf8', env: {}, maxBuffer: 8 << 20 };
  const { status, stdout } = spawnSync(process.execPath, [__filename, name], options);
  const answer = status === 0 ? JSON.parse(stdout) : { error: NONE };
  if (answer.error) {
    const error = new Error(`Cannot find module '${name}': ${answer.error}`);
    error.code = 'ERR_MODULE_NOT_FOUND';
    throw error;
  }
  return answer.text;
}

module.exports = { ToolError, call, invoke, source };

if (require.main === module) {
  send({ module: process.argv[2], language: 'typescript' }).then(
    (answer) => process.stdout.write(JSON.stringify({ text: answer.source.text })),
    (error) => process.stdout.write(JSON.stringify({ error: error.message })),
  );
}
