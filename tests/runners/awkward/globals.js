console.log(process.argv, process.execArgv, process.title, process.exitCode, process.stdin.constructor.name);
console.log(require.main === module, module.id, module.filename, module.paths, __filename, __dirname, module.parent, module.loaded);
console.log(Object.keys(require.cache), Object.getOwnPropertyNames(globalThis).sort().join());
console.log(Object.keys(process.env).sort(), process.cwd(), process.ppid, require('fs').readdirSync('/proc/self/fd').length, require('fs').readdirSync('/tmp'));
console.log(process.listenerCount('exit'), process.listenerCount('uncaughtException'), process.eventNames(), Error.stackTraceLimit, process.features, process.sourceMapsEnabled);
