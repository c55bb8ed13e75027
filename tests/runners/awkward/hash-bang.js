#!/usr/bin/env node
console.log("ran", __filename);
