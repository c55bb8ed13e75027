require("child_process").spawn("sleep", ["1000"], { detached: true, stdio: "inherit" }).unref();
console.log("held: 1 attempts");
