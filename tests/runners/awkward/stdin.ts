import * as fs from "node:fs";
const text: string = fs.readFileSync(0, "utf8");
console.log(JSON.stringify(text), process.stdin.isTTY);
