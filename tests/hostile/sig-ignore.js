const os = require("os");
for (const name of Object.keys(os.constants.signals)) {
  try {
    process.on(name, () => {});
  } catch {}
}
setInterval(() => {}, 1000);
