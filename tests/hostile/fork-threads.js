const { Worker } = require("worker_threads");
const start = () => {
  try {
    new Worker("setInterval(() => {}, 1000)", { eval: true, resourceLimits: { maxOldGenerationSizeMb: 16 } }).on("error", () => {});
  } catch {}
};
process.on("uncaughtException", () => {});
setInterval(start, 1);
