const code: number = 7;
process.on("exit", (c: number) => console.log("exit", c));
process.exit(code);
