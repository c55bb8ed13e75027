for (let i = 0; i < 20000; i++) console.log(i);
for (let i = 0; i < 2000; i++) console.error(i);
