process.stdout.write("x".repeat(200000));
process.exit(3);
