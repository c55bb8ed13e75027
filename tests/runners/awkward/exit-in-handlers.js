process.on("exit", (code) => { console.log("exit", code); process.exitCode = 9; });
process.on("beforeExit", () => console.log("beforeExit"));
setTimeout(() => console.log("timer"), 20);
