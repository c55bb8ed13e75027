for (;;) console.log("all work and no play ".repeat(50));
