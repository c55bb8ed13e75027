console.log("a");
Promise.reject(new TypeError("nobody caught this"));
setTimeout(() => console.log("never"), 50);
