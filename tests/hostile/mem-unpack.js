const zlib = require("zlib");
const bomb = zlib.deflateSync(Buffer.alloc(32 << 20));
console.log(bomb.length);
const kept = [];
const more = () => {
  kept.push(zlib.inflateSync(bomb));
  setImmediate(more);
};
more();
