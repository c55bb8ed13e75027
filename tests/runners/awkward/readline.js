const rl = require("readline").createInterface({ input: process.stdin, output: process.stdout });
rl.question("name? ", console.log);
rl.on("close", () => console.log("closed"));
