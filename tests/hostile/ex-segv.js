process.kill(process.pid, "SIGSEGV");
setInterval(() => {}, 1000);
