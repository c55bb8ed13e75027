'use strict';
// Waits, in a Node that was started ahead of its program, for the program (../README.md, protocol 1). Node loads this
// file before it opens the program's file, and continues as after a plain start when this returns.

const fs = require('node:fs');

const VARIABLE = 'SANDBOX_CONTROL_FD';
// Variables that Node or one of its libraries reads when it starts.
const READ_AT_START = /^(NODE|OPENSSL|SSL_|LD_|LC_|LANG|ICU|UV_|MALLOC|GLIBC|PATH=|HOME=|TMP|TEMP)/;

const control = Number(process.env[VARIABLE]);
delete process.env[VARIABLE];

function say(word) {
  try {
    fs.writeSync(control, word);
  } catch {
    // The other end is closed; the read below handles that.
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
