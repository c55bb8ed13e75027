process.on("SIGUSR1", () => { console.log("usr1"); });
process.on("SIGTERM", () => { console.log("term"); process.kill(process.pid, "SIGKILL"); });
process.kill(process.pid, "SIGUSR1"); setTimeout(() => process.kill(process.pid, "SIGTERM"), 50); setInterval(() => {}, 1000);
