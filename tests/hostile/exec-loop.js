const { execFileSync } = require("child_process");
execFileSync("sh", ["-c", 'f=/tmp/again; echo "exec sh $f" > $f; exec sh $f'], { stdio: "inherit" });
