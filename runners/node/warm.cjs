'use strict';
// Holds a Node that was started ahead of its program, until process 1 tells of one (../README.md, protocol 1). Node loads
// this before it looks at the program's file; when this returns, it goes on as if it had been started a moment ago.

const fs = require('node:fs');

const VARIABLE = 'SANDBOX_CONTROL_FD';
// What Node or a library under it reads when it starts.
const READ_AT_START = /^(NODE|OPENSSL|SSL_|LD_|LC_|LANG|ICU|UV_|MALLOC|GLIBC|PATH=|HOME=|TMP|TEMP)/;

const control = Number(process.env[VARIABLE]);
delete process.env[VARIABLE];

function say(word) {
  try {
    fs.writeSync(control, word);
  } catch {
    // Nobody listens any more; reading tells what to do.
  }
}

function read(length) {
  const bytes = Buffer.alloc(length);
  for (let have = 0; have < length; ) {
    const more = fs.readSync(control, bytes, have, length - have, null);
    if (more === 0) process.reallyExit(0); // process 1 is gone
    have += more;
  }
  return bytes;
}

function become(input, given, variables) {
  if (input === 'null') {
    fs.closeSync(0);
    fs.openSync('/dev/null', 'r'); // takes the lowest number: 0
  }
  for (const variable of variables) {
    const [, name, value] = /^([^=]+)=([^]*)$/.exec(variable);
    process.env[name] = value;
  }
  if (variables.some((variable) => READ_AT_START.test(variable)) && process.execve) {
    process.emitWarning = () => {}; // execve is an experiment of Node's
    process.execve(process.execPath, ['node', ...process.execArgv, process.argv[1], ...given], process.env);
  }
  process.argv.push(...given);
}

module.exports = function wait(warmUp) {
  say('u');
  warmUp();
  say('w');
  const [input, count, ...rest] = read(read(4).readUInt32BE()).toString().split('\0').slice(0, -1);
  fs.closeSync(control);
  delete require.cache[__filename];
  become(input, rest.slice(0, Number(count)), rest.slice(Number(count)));
};
