import fs from 'node:fs';
console.log(import.meta.url, import.meta.filename, import.meta.dirname, process.argv, this, typeof require, import.meta.resolve('node:fs'));
console.log(await Promise.resolve(4), new Error('here').stack);
