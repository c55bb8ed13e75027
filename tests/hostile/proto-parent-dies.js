require("child_process").spawn("sh", ["-c", "while :; do echo alive; sleep 0.1; done"], { stdio: "inherit", detached: true });
process.kill(process.pid, "SIGKILL");
