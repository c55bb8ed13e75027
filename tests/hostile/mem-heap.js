const kept = [];
const more = () => {
  for (let n = 0; n < 4; n++) kept.push(Buffer.alloc(8 << 20, "x"));
  setImmediate(more);
};
more();
