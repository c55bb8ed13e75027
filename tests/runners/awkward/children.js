const { fork, execFileSync, spawnSync } = require('node:child_process');
if (process.argv[2] === 'child') { process.send({ argv: process.argv, execArgv: process.execArgv }); process.exit(6); }
const c = fork(__filename, ['child']); c.on('message', (m) => console.log(m)); c.on('exit', (code) => console.log('exit', code));
console.log(execFileSync(process.execPath, ['-p', 'process.argv.length']).toString(), spawnSync('sh', ['-c', 'kill -9 $$']).signal);
