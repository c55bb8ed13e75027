setTimeout(() => {}, 1e9);
