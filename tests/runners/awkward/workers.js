const { Worker, isMainThread, workerData } = require('node:worker_threads');
if (isMainThread) { const w = new Worker(__filename, { workerData: 5 }); w.on('exit', (code) => console.log('exit', code)); }
else { console.log('worker', workerData, process.argv.length, Object.keys(process.env).includes('SANDBOX_CONTROL_FD')); process.exit(4); }
