let kept = null;
for (;;) kept = { kept, a: Math.random() };
