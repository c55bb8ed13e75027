function a() { return new Error("x").stack; }
console.log(a(), eval("a()"));
setTimeout(function later() { throw new Error("later"); }, 5);
