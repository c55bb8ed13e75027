enum Colour { Red = 'r' }
const show = <T>(value: T): void => console.log(value);
show([process.argv, process.execArgv, import.meta.url, import.meta.filename, Colour.Red, typeof require, Object.keys(process.env).sort()]);
show(Object.getOwnPropertyNames(globalThis).sort().join()); show(await Promise.resolve(new Error('here').stack));
