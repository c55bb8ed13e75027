interface Deep { n: number }

function fail(d: Deep): never {
  throw new TypeError(`n is ${d.n}`);
}
setTimeout(() => fail({ n: 3 }), 1);
