let n = 0; const f = () => { n++; f(); };
try { f(); } catch (e) { console.log(e instanceof RangeError, n > 5000, e.message); }
const g = () => g(); g();
