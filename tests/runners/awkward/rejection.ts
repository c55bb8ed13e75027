type A = { a: string };
async function f(a: A): Promise<void> { throw new Error(a.a); }
f({ a: "lost" });
