const fs = require("fs");
for (;;) fs.writeSync(2, "x".repeat(4096));
