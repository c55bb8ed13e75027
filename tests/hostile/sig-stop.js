process.kill(process.pid, "SIGSTOP");
setInterval(() => {}, 1000);
