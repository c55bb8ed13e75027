const kept = [];
const more = () => {
  kept.push(new Uint8Array(new SharedArrayBuffer(16 << 20)).fill(1));
  setImmediate(more);
};
more();
