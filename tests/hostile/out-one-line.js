const fs = require("fs");
for (;;) fs.writeSync(1, "x".repeat(65536));
