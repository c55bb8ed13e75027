console.log("a");
process.kill(process.pid, "SIGABRT");
setInterval(() => {}, 1000);
