namespace A { export const b = 1; }
abstract class C { constructor(protected readonly n = A.b) {} abstract f(): number; }
class D extends C { f() { return this.n; } }
console.log(new D().f(), D.name, [..."áé"].length);
