process.exitCode = 17;
console.log("a");
